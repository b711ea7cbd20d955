"""What every HTTP request passes: a key is shown, errors become replies, calls are counted.

The counterpart of the front's door for gRPC, and of the same mind: `tenancy` decides who may what.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import unquote_to_bytes

import structlog
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protos.errors import InternalFault, RadixdError, Unavailable
from tokenizer_svc.client_streams import ClientStreams
from tokenizer_svc.http.errors import (
    ClientGone,
    HttpRefusal,
    error_body,
    headers_of,
    status_of,
)
from tokenizer_svc.http.metrics import HttpMetrics
from tokenizer_svc.http.pages import refuse_foreign_name, refuse_foreign_page
from tokenizer_svc.tenancy import Access, set_caller

Handler: TypeAlias = Callable[[Request], Awaitable[ASGIApp]]

log = structlog.get_logger()


class _AnyText(Convertor[str]):
    """The rest of a path, whatever it holds: starlette's own `path` knows no newlines."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("any", _AnyText())


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A path, what it does, and the gRPC method whose keys it takes."""

    path: str
    """`{name:any}` at its end stands for any text."""
    verb: str
    handler: Handler
    grpc_method: str | None = None
    """None: open to everybody, and answered while the server shuts down."""


class HttpDoor:
    """Asks who calls, maps errors, counts calls, refuses new ones while draining."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        *,
        access: Access,
        streams: ClientStreams,
        metrics: HttpMetrics,
        names: frozenset[str] | None,
    ) -> None:
        """`names` are those that callers without keys may call the server by; None: any."""
        self.endpoints = tuple(endpoints)
        self._names = names
        self._access = access
        self._streams = streams
        self._metrics = metrics
        self._is_draining = False
        self.num_calls = 0
        """Requests in progress, of those that a drain waits for."""
        routes = [
            Route(each.path, self._behind(each), methods=[each.verb], name=each.path)
            for each in endpoints
        ]
        self._router = Router(routes, redirect_slashes=False)

    def close(self) -> None:
        """Refuses every request that needs a key from now on; those in progress go on."""
        self._is_draining = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        assert scope["type"] == "http", scope["type"]
        scope["app"] = self  # the router raises for this, instead of answering by itself
        reply = _Reply(send)
        started_s = time.monotonic()
        try:
            await self._router(scope, receive, reply.send)
        except ClientGone:
            self._metrics.num_gone.inc()
        except Exception as error:
            await self._answer_error(error, scope, receive, reply)
        route, seconds = scope.get("radixd.route", "none"), time.monotonic() - started_s
        self._metrics.note(route, reply.status, seconds)
        log.debug(
            "http_request",
            method=scope["method"],
            route=route,
            status=reply.status,
            ms=round(seconds * 1000, 3),
        )

    def _behind(self, endpoint: Endpoint) -> ASGIApp:
        async def open_to_all(scope: Scope, receive: Receive, send: Send) -> None:
            scope["radixd.route"] = endpoint.path
            response = await endpoint.handler(Request(scope, receive))
            await response(scope, receive, send)

        async def for_callers(scope: Scope, receive: Receive, send: Send) -> None:
            if self._is_draining:
                raise Unavailable("the server is shutting down")
            assert endpoint.grpc_method is not None
            request = Request(scope, receive)
            # Before anything of the request is looked at: a stranger learns nothing from it.
            caller = self._access.caller(endpoint.grpc_method, _metadata(request))
            set_caller(caller)
            refuse_foreign_page(request.method, request.headers)
            if self._names is not None and self._access.is_open:
                refuse_foreign_name(request.headers, self._names)
            _refuse_bad_utf8(request)
            leave = self._streams.enter(
                caller.tenant, request.client.host if request.client else ""
            )
            self.num_calls += 1
            try:
                await open_to_all(scope, receive, send)
            finally:
                self.num_calls -= 1
                leave()

        handler = open_to_all if endpoint.grpc_method is None else for_callers
        return _App(handler)

    async def _answer_error(
        self, error: Exception, scope: Scope, receive: Receive, reply: "_Reply"
    ) -> None:
        if reply.status:
            # Too late for another status; the connection ends before its reply does.
            log.error("reply_broken", exc_info=error)
            raise error
        problem = _known(error)
        if problem is None:
            log.error("call_failed", route=scope.get("radixd.route"), exc_info=error)
            problem = InternalFault("an unexpected fault in the server; its log says more")
        response = JSONResponse(
            error_body(problem), status_code=status_of(problem), headers=headers_of(problem)
        )
        await response(scope, receive, reply.send)


class _App:
    """An object and no function: the router would wrap a function for requests of its own."""

    def __init__(self, handler: ASGIApp) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._handler(scope, receive, send)


class _Reply:
    """Remembers whether and with what status a reply has begun."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)


def _known(error: Exception) -> RadixdError | HttpRefusal | None:
    if isinstance(error, RadixdError | HttpRefusal):
        return error
    if not isinstance(error, HTTPException):
        return None
    if error.status_code == 405:
        text = "this path takes another method; see the header Allow"
        return HttpRefusal(405, "method_not_allowed", text, headers=dict(error.headers or {}))
    return HttpRefusal(404, "unknown_path", "there is no such path; GET /openapi.json lists all")


def _metadata(request: Request) -> list[tuple[str, str | bytes]]:
    """The key as gRPC carries it; `x-api-key` is the same without the word before it."""
    found: list[tuple[str, Any]] = []
    for name, value in request.headers.items():
        if name == "authorization":
            found.append((name, value))
        elif name == "x-api-key":
            found.append(("authorization", f"Bearer {value}"))
    return found


def _refuse_bad_utf8(request: Request) -> None:
    """Bytes that are no characters would all become the same one, and so name something else."""
    for part in (request.scope["raw_path"], request.scope["query_string"]):
        try:
            unquote_to_bytes(part).decode()
        except UnicodeDecodeError:
            raise HttpRefusal(400, "bad_url", "the URL is not valid UTF-8") from None
