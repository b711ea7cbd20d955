"""GET /health and /ready: whether the process lives, and whether it serves."""

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from protos.errors import Unavailable


class Probes:
    """Answers everybody, also while the server shuts down."""

    def __init__(self, is_serving: Callable[[], bool]) -> None:
        self._is_serving = is_serving

    async def health(self, request: Request) -> ASGIApp:
        """The process answers, and that is all."""
        return JSONResponse({"status": "ok"})

    async def ready(self, request: Request) -> ASGIApp:
        """Scheduler and worker are there, and what was to be warm is.

        Raises:
            Unavailable: not so, or no longer.
        """
        if not self._is_serving():
            raise Unavailable("not ready: the model worker is away, still loads, or all shuts down")
        return JSONResponse({"status": "ready"})
