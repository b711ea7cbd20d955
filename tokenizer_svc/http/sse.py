"""A reply as a stream of server-sent events.

Headers go out with the first event, so that a request which is refused before it gets its status;
or with the first comment, as nobody in between is to take a long prompt for a dead connection.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import structlog
from starlette.types import Receive, Scope, Send

from protos.errors import InternalFault, RadixdError
from tokenizer_svc.http.errors import error_body
from tokenizer_svc.http.watch import while_connected

DONE = b"data: [DONE]\n\n"
_COMMENT = b": keep-alive\n\n"
_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # nginx would collect the events otherwise.
    (b"x-accel-buffering", b"no"),
)

log = structlog.get_logger()

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
"""One for all: `json.dumps` makes itself a new one for every call with options."""


def json_text(value: object) -> str:
    """Compact JSON, with characters as they are."""
    return _ENCODER.encode(value)


def event(body: Mapping[str, Any], *, name: str | None = None) -> bytes:
    """One event."""
    line = f"data: {json_text(body)}\n\n"
    return (line if name is None else f"event: {name}\n{line}").encode()


class EventStream:
    """Sends events as they come; closes their source when the client leaves."""

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        *,
        keep_alive_s: float,
        headers: Mapping[str, str],
        names_errors: bool = False,
    ) -> None:
        """`names_errors`: an error's event has the name `error`."""
        self._events = events
        self._keep_alive_s = keep_alive_s
        self._headers = [(name.encode(), value.encode()) for name, value in headers.items()]
        self._error_name = "error" if names_errors else None
        self._is_open = False
        self._said_s = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers the request.

        Raises:
            RadixdError: before anything was sent.
            ClientGone: the client left before the end.
        """
        self._said_s = asyncio.get_running_loop().time()

        async def comment() -> None:
            await self._say(send, _COMMENT)

        def silent_at() -> float:
            return self._said_s + self._keep_alive_s

        await while_connected(
            receive, self._send_all(send), silent_at=silent_at, on_silence=comment
        )

    async def _send_all(self, send: Send) -> None:
        try:
            async with aclosing(self._events) as events:
                async for each in events:
                    await self._say(send, each)
        except RadixdError as error:
            await self._end_with(send, error)
        except Exception:
            log.exception("stream_failed")
            fault = InternalFault("an unexpected fault in the server; its log says more")
            await self._end_with(send, fault)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _end_with(self, send: Send, error: RadixdError) -> None:
        if not self._is_open:
            raise error
        await self._say(send, event(error_body(error), name=self._error_name))

    async def _say(self, send: Send, data: bytes) -> None:
        self._said_s = asyncio.get_running_loop().time()
        if not self._is_open:
            self._is_open = True
            headers = [*_HEADERS, *self._headers]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": data, "more_body": True})
