"""How one connection is held: limits on what comes in, an end for who does not read.

uvicorn takes headers of any length, waits for ever for a request that is begun and for a reader
that has stopped.  The rest of HTTP is its business.
"""

import asyncio
import json
import socket
from asyncio import TimerHandle
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tokenizer_svc.http.errors import HttpRefusal, error_body

MAX_URL_BYTES = 8 << 10
MAX_HEADER_BYTES = 32 << 10
HEADER_TIMEOUT_S = 30.0
"""Time a client has from connecting, or from the first byte of a request, to the last header."""
MAX_CONNECTIONS = 4096
_LINGER_S = 2.0
"""Time a refused client has to stop writing and read why."""
SEND_BUFFER_BYTES = 64 << 10
"""Of one connection; who lets it fill up has the write timeout to take it."""

SYSTEM_BUFFER_BYTES = 256 << 10
"""Of one connection, in the system, which may double it; thousands of tokens a second fit."""

_STATUS_LINES = {
    400: b"HTTP/1.1 400 Bad Request\r\n",
    414: b"HTTP/1.1 414 URI Too Long\r\n",
    431: b"HTTP/1.1 431 Request Header Fields Too Large\r\n",
    503: b"HTTP/1.1 503 Service Unavailable\r\n",
}


class BoundedConnection(HttpToolsProtocol):
    """A connection that cannot hold anything for longer, or more of it, than it may."""

    def __init__(self, *, write_timeout_s: float, **uvicorn_parts: Any) -> None:
        super().__init__(**uvicorn_parts)
        self._write_timeout_s = write_timeout_s
        self._num_header_bytes = 0
        self._reads_headers = True
        self._refusal: HttpRefusal | None = None
        self._is_refused = False
        self._header_timer: TimerHandle | None = None
        self._write_timer: TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has come."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=SEND_BUFFER_BYTES)
        # The system would take megabytes for a client that does not read.
        transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDBUF, SYSTEM_BUFFER_BYTES
        )
        self._await_headers()
        if len(self.connections) > MAX_CONNECTIONS:
            self._refuse(HttpRefusal(503, "too_many_connections", "too many connections"))

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone, whoever left."""
        _stop(self._header_timer)
        _stop(self._write_timer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request; headers that do not end are counted here."""
        if self._is_refused or self.transport.is_closing():
            return
        if self._reads_headers:
            self._num_header_bytes += len(data)
        super().data_received(data)
        if self._reads_headers and self._num_header_bytes > MAX_URL_BYTES + MAX_HEADER_BYTES:
            self._refuse(_too_large())

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        if self._header_timer is None:
            self._await_headers()

    def on_url(self, url: bytes) -> None:
        """A part of the URL."""
        super().on_url(url)
        if len(self.url) > MAX_URL_BYTES:
            text = f"the URL is longer than {MAX_URL_BYTES} bytes"
            self._stop_parsing(HttpRefusal(414, "url_too_long", text))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        super().on_header(name, value)
        if sum(len(name) + len(value) for name, value in self.headers) > MAX_HEADER_BYTES:
            self._stop_parsing(_too_large())

    def on_headers_complete(self) -> None:
        """The last header has come; the body may take its own time."""
        self._reads_headers = False
        _stop(self._header_timer)
        self._header_timer = None
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request is complete; what comes next are headers again."""
        self._reads_headers, self._num_header_bytes = True, 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What does not parse, or was refused while it was parsed."""
        self._refuse(self._refusal or HttpRefusal(400, "bad_http", "this is no HTTP request"))

    def pause_writing(self) -> None:
        """The buffer is full: the client has its time to read from now on."""
        super().pause_writing()
        loop = asyncio.get_running_loop()
        self._write_timer = loop.call_later(self._write_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """It has read most of the buffer."""
        _stop(self._write_timer)
        self._write_timer = None
        super().resume_writing()

    def _await_headers(self) -> None:
        loop = asyncio.get_running_loop()
        self._header_timer = loop.call_later(HEADER_TIMEOUT_S, self.transport.close)

    def _stop_parsing(self, refusal: HttpRefusal) -> None:
        self._refusal = refusal
        raise httptools.HttpParserError(str(refusal))

    def _refuse(self, refusal: HttpRefusal) -> None:
        if self._is_refused or self.transport.is_closing():
            return
        self._is_refused = True
        body = json.dumps(error_body(refusal)).encode()
        self.transport.write(
            _STATUS_LINES[refusal.status]
            + b"content-type: application/json\r\nconnection: close\r\n"
            + b"content-length: %d\r\n\r\n" % len(body)
            + body
        )
        # Closed at once, with bytes unread, the client would see a reset and no refusal.
        if self.transport.can_write_eof():
            self.transport.write_eof()
        _stop(self._header_timer)
        loop = asyncio.get_running_loop()
        self._header_timer = loop.call_later(_LINGER_S, self.transport.close)


def _too_large() -> HttpRefusal:
    text = f"the headers are longer than {MAX_HEADER_BYTES} bytes"
    return HttpRefusal(431, "headers_too_large", text)


def _stop(timer: TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
