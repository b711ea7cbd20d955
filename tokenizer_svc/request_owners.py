"""Whose a live request is, from its first moment on: before it is submitted, nothing else says so.

Not here: anything else about requests, which is in `live_requests`.
"""

import contextlib
from collections.abc import Iterator

from tokenizer_svc.tenancy import Caller


class RequestOwners:
    """The tenant of every request whose handler runs, by the client's id."""

    def __init__(self) -> None:
        self._tenants: dict[str, str] = {}

    @contextlib.contextmanager
    def owned(self, request_id: str, tenant: str) -> Iterator[None]:
        """Keeps the tenant for as long as the block runs; the first with an id has it."""
        if request_id in self._tenants:
            yield  # it will be refused as a duplicate
            return
        self._tenants[request_id] = tenant
        try:
            yield
        finally:
            del self._tenants[request_id]

    def tenant_of(self, request_id: str) -> str:
        """Whose a live request is; "" where there is none."""
        return self._tenants.get(request_id, "")

    def may_see(self, caller: Caller, request_id: str) -> bool:
        """Whether a live request of this id, if there is one, is the caller's to know of."""
        return caller.sees is None or self._tenants.get(request_id) == caller.sees
