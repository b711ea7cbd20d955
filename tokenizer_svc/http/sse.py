"""A reply as a stream of server-sent events.

Headers go out with the first event, so that a request which is refused before it gets its status;
or with the first comment, as nobody in between is to take a long prompt for a dead connection.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog
from starlette.types import Receive, Scope, Send

from protos.errors import InternalFault, RadixdError
from tokenizer_svc.http.direct_write import direct_writer
from tokenizer_svc.http.errors import error_body
from tokenizer_svc.http.json_reply import PART_BYTES, json_text, long_json, parts_of
from tokenizer_svc.http.watch import while_connected
from tokenizer_svc.sink import Sink

DONE = b"data: [DONE]\n\n"
_COMMENT = b": keep-alive\n\n"
_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # nginx would collect the events otherwise.
    (b"x-accel-buffering", b"no"),
)

log = structlog.get_logger()


def event(body: Mapping[str, Any], *, name: str | None = None, is_long: bool = False) -> bytes:
    """One event; a long one is written with pauses."""
    line = b"data: %b\n\n" % (long_json(body) if is_long else json_text(body).encode())
    return line if name is None else b"event: %b\n%b" % (name.encode(), line)


class EventStream:
    """A sink of events, which goes out to the client; its source ends when the client leaves."""

    def __init__(
        self,
        tell: Callable[[Sink[bytes]], Awaitable[None]],
        *,
        keep_alive_s: float,
        headers: Mapping[str, str],
        say_error: Callable[[RadixdError], bytes] | None = None,
    ) -> None:
        """`tell` puts all events; `say_error` makes those of an error that ends the stream."""
        self._tell = tell
        self._keep_alive_s = keep_alive_s
        self._headers = [(name.encode(), value.encode()) for name, value in headers.items()]
        self._say_error = say_error or (lambda error: event(error_body(error)))
        self._is_open = False
        self._said_s = 0.0
        self.is_ready = True
        """Nothing waits."""
        self._waiting: list[bytes] = []
        self._turn = asyncio.Lock()
        """Held by who sends what waits."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers the request.

        Raises:
            RadixdError: before anything was sent.
            ClientGone: the client left before the end.
        """
        self._send = send
        self._write_now = direct_writer(scope)
        self._now_s = asyncio.get_running_loop().time
        self._said_s = self._now_s()

        async def comment() -> None:
            self.put(_COMMENT)
            await self.ready()

        def silent_at() -> float:
            return self._said_s + self._keep_alive_s

        await while_connected(receive, self._send_all(), silent_at=silent_at, on_silence=comment)

    def put(self, data: bytes, /) -> bool:
        """Writes it, where the client keeps up; else it waits."""
        if not data:
            return True  # as a chunk, nothing would be the end of the reply
        self._said_s = self._now_s()
        if self.is_ready and len(data) <= PART_BYTES and self._write_now(data):
            return True
        self.is_ready = False
        self._waiting.append(data)
        return False

    async def ready(self) -> None:
        """Returns once what waited is written, which is when the client has read enough."""
        async with self._turn:
            while self._waiting:
                num_said = len(self._waiting)
                await self._say(b"".join(self._waiting))
                # Only now: whoever waits here for others as well may be cancelled.
                del self._waiting[:num_said]
            self.is_ready = True

    async def _send_all(self) -> None:
        try:
            await self._tell(self)
        except RadixdError as error:
            self._end_with(error)
        except Exception:
            log.exception("stream_failed")
            fault = InternalFault("an unexpected fault in the server; its log says more")
            self._end_with(fault)
        await self.ready()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def _end_with(self, error: RadixdError) -> None:
        if not self._is_open:
            raise error
        self.put(self._say_error(error))

    async def _say(self, data: bytes) -> None:
        if not self._is_open:
            headers = [*_HEADERS, *self._headers]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            self._is_open = True
        for part in parts_of(data):
            await self._send({"type": "http.response.body", "body": part, "more_body": True})
