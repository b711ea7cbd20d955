"""The gateway as a running thing: start, refuse what is new, stop."""

from tokenizer_svc.http.app import FrontParts, build_app
from tokenizer_svc.http.config import HttpConfig
from tokenizer_svc.http.server import HttpServer


class HttpService:
    """HTTP beside gRPC, on the same event loop; `start`, `close`, then `stop`."""

    def __init__(self, parts: FrontParts, config: HttpConfig) -> None:
        self._app = build_app(parts, config)
        self._server = HttpServer(self._app.door, config, parts.tls)

    @property
    def port(self) -> int:
        """The port in force, once started."""
        return self._server.port

    @property
    def num_calls(self) -> int:
        """Requests in progress that a drain waits for."""
        return self._app.door.num_calls

    async def start(self) -> None:
        """Listens and serves.

        Raises:
            InvalidRequest: the address cannot be listened on; names the option.
        """
        await self._server.start()

    def close(self) -> None:
        """Refuses new requests; those in progress go on."""
        self._app.door.close()

    async def stop(self) -> None:
        """Ends what is left."""
        self._app.hints.close()
        await self._server.stop()
