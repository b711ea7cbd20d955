"""Ids of requests with several prompts, each of which is a request of its own to the rest of us."""

import contextlib
from collections.abc import Iterator, Sequence


class PromptIds:
    """What stands behind an id that the client knows, for as long as any of it is live."""

    def __init__(self) -> None:
        self._ids: dict[str, Sequence[str]] = {}

    @contextlib.contextmanager
    def live(self, request_id: str, ids: Sequence[str]) -> Iterator[None]:
        """Knows these ids by their common one for as long as the block runs."""
        if request_id in self._ids:
            yield  # it will be refused, as its prompts' ids are live
            return
        self._ids[request_id] = ids
        try:
            yield
        finally:
            del self._ids[request_id]

    def of(self, request_id: str) -> Sequence[str]:
        """The ids behind this one; none where it is not the id of several prompts."""
        return self._ids.get(request_id, ())
