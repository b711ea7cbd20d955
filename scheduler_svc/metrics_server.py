"""HTTP for Prometheus: one registry, a few threads of its own, an answer or an error in time.

Knows nothing of what it serves.  The library's own server waits for ever for a silent client and
starts a thread for each, so only its WSGI application is used.
"""

import socket
import socketserver
import threading
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import structlog
from prometheus_client import CollectorRegistry, make_wsgi_app

from protos.errors import InvalidRequest
from radixd.chassis.grpc_server import check_port_is_free
from scheduler_svc.metrics import ScrapeFailed

MAX_SCRAPES = 8
"""At once; a connection more is closed unread."""

CLIENT_TIMEOUT_S = 5.0
"""A client that sends or reads nothing for so long is cut."""

_OPTION = "metrics_port"
log = structlog.get_logger()


class MetricsServer:
    """Listens from the moment it is made; answers between `start` and `stop`."""

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        """Takes the port; 0: any free one.

        Raises:
            InvalidRequest: names the option, the address and what is wrong.
        """
        check_port_is_free(host, port, option=_OPTION)
        bare_host = host.strip("[]")
        family = socket.AF_INET6 if ":" in bare_host else socket.AF_INET
        try:
            self._server = _Server(bare_host, port, family)
        except OSError as error:  # taken since the check
            raise InvalidRequest(_OPTION, f"{host}:{port}: {error.strerror}") from None
        self._server.set_app(_answer_or_say_why(make_wsgi_app(registry)))
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._serve, name="metrics_server", daemon=True)

    def start(self) -> None:
        """Begins to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Stops listening; an answer under way may go on for at most the client's timeout."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def _serve(self) -> None:
        self._server.serve_forever(poll_interval=0.1)


class _Handler(WSGIRequestHandler):
    timeout = CLIENT_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are no events."""


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    """A thread a connection, and a bound on them."""

    daemon_threads = True
    request_queue_size = MAX_SCRAPES

    def __init__(self, host: str, port: int, family: socket.AddressFamily) -> None:
        self.address_family = family
        self._places = threading.BoundedSemaphore(MAX_SCRAPES)
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Without the look-up of the host's name that the base class does, which may take long."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Closes the connection when all places are taken."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread could be started
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Gives the place free, whatever became of the connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves or is cut in the middle is no event either."""
        log.debug("scrape_broken", exc_info=True)


_Wsgi = Callable[[dict[str, Any], Any], Iterable[bytes]]


def _answer_or_say_why(app: _Wsgi) -> _Wsgi:
    """A failed scrape is an error that Prometheus counts, and no traceback."""

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        try:
            return app(environ, start_response)
        except ScrapeFailed as error:
            log.warning("scrape_failed", reason=str(error))
            text, status = f"{error}\n", "503 Service Unavailable"
        except Exception:
            log.exception("scrape_defect")
            text, status = "the scheduler's log says more\n", "500 Internal Server Error"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [text.encode()]

    return answer
