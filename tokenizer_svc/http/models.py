"""GET /v1/models, and the names under which a request may ask for the model."""

from collections.abc import Callable, Collection
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from tokenizer_svc.http.errors import HttpRefusal
from tokenizer_svc.served_model import ServedModel


class Models:
    """The one model that is served."""

    def __init__(
        self,
        model_id: str,
        other_names: Collection[str],
        *,
        served: Callable[[], ServedModel | None],
        created_s: int,
    ) -> None:
        """`served` knows what the worker announced; None: nothing yet."""
        self.model_id = model_id
        self._other_names = frozenset(other_names)
        self._served = served
        self._created_s = created_s

    def named(self, name: str | None) -> str:
        """What a reply calls the model: as the request did.

        Raises:
            HttpRefusal: the request names another model.
        """
        if name is None or name == self.model_id:
            return self.model_id
        served = self._served()
        if name not in self._other_names and (served is None or name != served.model_id):
            raise HttpRefusal(
                404,
                "model_not_found",
                f"model: {name[:200]!r} is not served here; {self.model_id!r} is",
                param="model",
            )
        return name

    async def all(self, request: Request) -> ASGIApp:
        """GET /v1/models."""
        return JSONResponse({"object": "list", "data": [self._body()]})

    async def one(self, request: Request) -> ASGIApp:
        """GET /v1/models/{model}."""
        self.named(request.path_params["model"])
        return JSONResponse(self._body())

    @property
    def max_length(self) -> int | None:
        """Longest prompt plus output, in tokens; None: not known yet."""
        served = self._served()
        return None if served is None else served.max_length

    def _body(self) -> dict[str, Any]:
        return {
            "id": self.model_id,
            "object": "model",
            "created": self._created_s,
            "owned_by": "radixd",
            "max_model_len": self.max_length,
        }
