"""How one connection is held: limits on what comes in, an end for who does not read.

uvicorn takes headers of any length, waits for ever for a request that is begun and for a reader
that has stopped, takes trailers for headers and drops the body of who offers to upgrade.  The rest
of HTTP is its business.
"""

import asyncio
import json
import socket
from asyncio import TimerHandle
from typing import Any

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from radixd.chassis.grpc_server import MAX_CONNECTIONS
from tokenizer_svc.http.direct_write import offer_direct_write
from tokenizer_svc.http.errors import HttpRefusal, error_body

MAX_URL_BYTES = 8 << 10
MAX_HEADER_BYTES = 32 << 10
_HEADER_OVERHEAD_BYTES = 4
"""Colon, blank and line end, which a thousand empty headers have as well."""
HEADER_TIMEOUT_S = 30.0
"""Time a client has from connecting, or from the first byte of a request, to the last header; and
for what it still sends of a request that is answered."""
_LINGER_S = 2.0
"""Time a refused client has to stop writing and read why."""
SEND_BUFFER_BYTES = 64 << 10
"""Of one connection; who lets it fill up has the write timeout to take it."""
MOST_IN_LINE = 32
"""Requests of one connection that wait for the reply before theirs."""
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
        self._num_unread_bytes = 0
        """Received since the parser last told of a body or of the end of something."""
        self._reads_headers = True
        self._awaits_body = False
        """Of a client that offers to upgrade: the parser takes it for nothing of HTTP's."""
        self._is_replaying = False
        self._refusal: HttpRefusal | None = None
        self._is_refused = False
        self._answered: RequestResponseCycle | None = None
        """The request whose reply is under way or went last; `cycle` is the last that came."""
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
        answered = self._answered
        if answered is not None and not answered.response_complete:
            # With another request behind it, uvicorn tells that one alone.
            answered.disconnected = True
            answered.message_event.set()

    def data_received(self, data: bytes) -> None:
        """Bytes of a request; what does not end and is no body is counted here."""
        if self._is_refused or self.transport.is_closing():
            return
        self._num_unread_bytes += len(data)
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError:
            text = "this is no HTTP request"
            self._refuse(self._refusal or HttpRefusal(400, "bad_http", text))
            return
        cycle: Any = self.cycle  # None before the first request
        is_idle = cycle is None or cycle.response_complete
        if self._num_unread_bytes > MAX_URL_BYTES + MAX_HEADER_BYTES:
            self._refuse(_too_large())
        elif is_idle and self._header_timer is None:
            # A blank line, or the rest of a body whose request is answered: not for ever.
            self._await_headers()

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        if self._is_replaying:
            return
        super().on_message_begin()
        self._num_header_bytes = 0
        if self._header_timer is None:
            self._await_headers()

    def on_url(self, url: bytes) -> None:
        """A part of the URL."""
        if self._is_replaying:
            return
        super().on_url(url)
        if len(self.url) > MAX_URL_BYTES:
            text = f"the URL is longer than {MAX_URL_BYTES} bytes"
            self._stop_parsing(HttpRefusal(414, "url_too_long", text))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer, which is read and left out: who stands before us and judges
        requests by their headers has not seen it."""
        if self._is_replaying:
            return
        self._num_header_bytes += len(name) + len(value) + _HEADER_OVERHEAD_BYTES
        if self._num_header_bytes > MAX_HEADER_BYTES:
            self._stop_parsing(_too_large())
        if self._reads_headers:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The last header has come; the body may take its own time."""
        if self._is_replaying:
            return
        self._reads_headers, self._num_unread_bytes = False, 0
        _stop(self._header_timer)
        self._header_timer = None
        super().on_headers_complete()
        if len(self.pipeline) > MOST_IN_LINE:
            text = f"more than {MOST_IN_LINE} requests wait in line"
            self._stop_parsing(HttpRefusal(400, "too_many_in_line", text))
        self._awaits_body = self.parser.should_upgrade() and bool(self._body_headers())
        offer_direct_write(self.cycle)

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._num_unread_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete; what comes next are headers again."""
        if self._awaits_body:
            return
        self._reads_headers, self._num_unread_bytes = True, 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """A reply is written, as far as we can; perhaps nobody reads the rest of it."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._time_writing()

    def timeout_keep_alive_handler(self) -> None:
        """No other request has come."""
        super().timeout_keep_alive_handler()
        self._time_writing()

    def pause_writing(self) -> None:
        """The buffer is full: the client has its time to read from now on."""
        super().pause_writing()
        self._time_writing()

    def resume_writing(self) -> None:
        """It has read most of the buffer."""
        if not self.transport.is_closing():
            _stop(self._write_timer)
            self._write_timer = None
        super().resume_writing()

    def _close(self) -> None:
        self.transport.close()
        self._time_writing()

    def _time_writing(self) -> None:
        """Ends the connection in a while; a close waits for the last byte to be read."""
        if self._write_timer is None:
            loop = asyncio.get_running_loop()
            self._write_timer = loop.call_later(self._write_timeout_s, self.transport.abort)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def _parse(self, data: bytes) -> None:
        while data or self._awaits_body:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as stopped:
                # Nobody is upgraded: what follows is the body, if there is one, or a request.
                data = data[stopped.args[0] :]
                if self._awaits_body:
                    self._read_body_anew()

    def _body_headers(self) -> list[bytes]:
        names = (b"content-length", b"transfer-encoding")
        return [name + b": " + value for name, value in self.headers if name in names]

    def _read_body_anew(self) -> None:
        """Lets a parser that knows of no upgrade read on from the body."""
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._is_replaying, self._awaits_body = True, False
        self.parser.feed_data(b"\r\n".join((b"POST / HTTP/1.1", *self._body_headers(), b"", b"")))
        self._is_replaying = False

    def _await_headers(self) -> None:
        loop = asyncio.get_running_loop()
        self._header_timer = loop.call_later(HEADER_TIMEOUT_S, self._close)

    def _stop_parsing(self, refusal: HttpRefusal) -> None:
        self._refusal = refusal
        raise httptools.HttpParserError(str(refusal))

    def _refuse(self, refusal: HttpRefusal) -> None:
        if self._is_refused or self.transport.is_closing():
            return
        self._is_refused = True
        cycle: Any = self.cycle  # None before the first request
        if self.pipeline or (cycle and cycle.response_started and not cycle.response_complete):
            self._close()  # words of ours would stand in the middle of a reply
            return
        if cycle is not None:
            cycle.disconnected = True
            cycle.message_event.set()
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
        self._header_timer = loop.call_later(_LINGER_S, self._close)


def _too_large() -> HttpRefusal:
    text = f"the headers are longer than {MAX_HEADER_BYTES} bytes"
    return HttpRefusal(431, "headers_too_large", text)


def _stop(timer: TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
