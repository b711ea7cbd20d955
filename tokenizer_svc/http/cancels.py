"""POST /cancel: ends a request by its id, as InferenceService.Cancel does it."""

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from tokenizer_svc.http.bodies import Body
from tokenizer_svc.http.json_body import BodyReader


class CancelBody(Body):
    """POST /cancel."""

    request_id: str


class Cancels:
    """Its own reply then ends with what there is so far."""

    def __init__(self, cancel: Callable[[str], None], *, read: BodyReader) -> None:
        """`cancel` raises UnknownRequestId where no such request is live."""
        self._cancel = cancel
        self._read = read

    async def cancel(self, request: Request) -> ASGIApp:
        """Ends all choices of a request."""
        body = await self._read(request, CancelBody)
        self._cancel(body.request_id)
        return JSONResponse({})
