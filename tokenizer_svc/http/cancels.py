"""POST /cancel: ends a request by its id, as InferenceService.Cancel does it."""

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from protos.errors import UnknownRequestId
from tokenizer_svc.http.bodies import Body
from tokenizer_svc.http.json_body import BodyReader
from tokenizer_svc.http.prompt_ids import PromptIds


class CancelBody(Body):
    """POST /cancel."""

    request_id: str


class Cancels:
    """Its own reply then ends with what there is so far."""

    def __init__(
        self, cancel: Callable[[str], None], *, prompt_ids: PromptIds, read: BodyReader
    ) -> None:
        """`cancel` raises UnknownRequestId where no such request is live."""
        self._cancel = cancel
        self._prompt_ids = prompt_ids
        self._read = read

    async def cancel(self, request: Request) -> ASGIApp:
        """Ends all choices of all prompts of a request."""
        body = await self._read(request, CancelBody)
        # Of several prompts some may be over.
        ended = [self._is_ended(each) for each in self._prompt_ids.of(body.request_id)]
        if not any(ended):
            self._cancel(body.request_id)
        return JSONResponse({})

    def _is_ended(self, request_id: str) -> bool:
        try:
            self._cancel(request_id)
        except UnknownRequestId:
            return False
        return True
