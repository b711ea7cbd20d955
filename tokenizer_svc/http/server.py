"""uvicorn inside the front: on its event loop, without signals of its own, with a clean end."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

import structlog
import uvicorn
from starlette.types import ASGIApp

from protos.errors import InvalidRequest
from radixd.chassis.grpc_server import check_port_is_free, join_address
from radixd.chassis.tls import ServerTls
from tokenizer_svc.http.config import HttpConfig
from tokenizer_svc.http.connection import BoundedConnection

IDLE_CONNECTION_S = 75
"""Longer than load balancers keep a connection that they may still write to."""
_LAST_WORDS_S = 1
"""Time for replies already written to reach their clients."""
_OPTION = "http_port"

log = structlog.get_logger()


class HttpServer:
    """Serves one ASGI application; `start`, then `stop`."""

    def __init__(self, app: ASGIApp, config: HttpConfig, tls: ServerTls | None = None) -> None:
        """With `tls` all of it is encrypted."""
        self._config = config
        connection: Any = partial(BoundedConnection, write_timeout_s=config.write_timeout_s)
        self._server = _QuietServer(
            uvicorn.Config(
                app,
                http=connection,
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                log_level="error",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                headers=[("server", "radixd")],
                reset_contextvars=True,
                timeout_keep_alive=IDLE_CONNECTION_S,
                timeout_graceful_shutdown=_LAST_WORDS_S,
                ssl_context_factory=None if tls is None else lambda *_: tls.ssl_context(),
            )
        )
        self._task: asyncio.Task[None] | None = None
        self.port = 0
        """The port in force, once started."""

    async def start(self) -> None:
        """Listens and serves.

        Raises:
            InvalidRequest: the address cannot be listened on; names the option.
        """
        listener = _listen(self._config)
        self.port = listener.getsockname()[1]
        serving = self._server.serve(sockets=[listener])
        self._task = asyncio.create_task(serving, name="http-server")
        await self._server.is_started.wait()

    async def stop(self) -> None:
        """Closes what is idle, gives replies under way a moment, ends the rest."""
        if self._task is not None:
            self._server.should_exit = True
            await self._task
            self._task = None


class _QuietServer(uvicorn.Server):
    """Leaves signals to the process and says when it is up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_started = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None of them."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to serve."""
        await super().startup(sockets)
        # What every reply carries is set once a second; the first may come before that.
        await self.on_tick(0)
        self.is_started.set()


def _listen(config: HttpConfig) -> socket.socket:
    try:
        check_port_is_free(config.host, config.port, option=_OPTION)
        return _bound(config.host, config.port)
    except InvalidRequest:
        if not config.gives_way:
            raise
        return _bound(config.host, 0)


def _bound(host: str, port: int) -> socket.socket:
    bare_host = host.strip("[]")
    is_any = bare_host == "::"
    family = socket.AF_INET6 if ":" in bare_host else socket.AF_INET
    try:
        return socket.create_server(
            (bare_host, port), family=family, backlog=1024, dualstack_ipv6=is_any
        )
    except OSError as error:
        address = join_address(host, port)
        raise InvalidRequest(_OPTION, f"{address}: {error.strerror}") from None
