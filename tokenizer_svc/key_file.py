"""Keys that may change while the server runs: the file of tenants, read again when it has changed.

Only the keys are: shares of the pool are the scheduler's, which reads them at its start.
"""

from collections.abc import Iterable
from pathlib import Path

from protos.errors import InvalidRequest
from radixd.chassis.tenants import Tenants, load_tenants
from tokenizer_svc.tenancy import Access, Caller, access_for


class KeyFile:
    """Decides by the newest keys that could be read."""

    def __init__(self, path: Path | None, tenants: Tenants) -> None:
        """`tenants` are those of the file, None: of no file."""
        self.path = path
        self._tenants = tenants
        self._access: Access = access_for(tenants)

    @property
    def is_open(self) -> bool:
        """As every `Access`."""
        return self._access.is_open

    def caller(self, method: str, metadata: Iterable[tuple[str, str | bytes]]) -> Caller:
        """As every `Access`; a call that has been let in goes on when its key goes."""
        return self._access.caller(method, metadata)

    def reload(self) -> None:
        """Takes the keys that are in the file now.

        Raises:
            InvalidRequest: it cannot be used; the keys of before stay.
        """
        tenants = load_tenants(self.path)
        if self._tenants.have_keys and not tenants.have_keys:
            # Half-written, perhaps; nobody opens a server by emptying a file.
            raise InvalidRequest("tenants", f"{self.path}: has no keys any more")
        self._tenants, self._access = tenants, access_for(tenants)
