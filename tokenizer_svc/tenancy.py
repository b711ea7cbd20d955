"""Who calls, and what may they do: the one place that decides, asked by the door for every call.

A tenant comes from the key a call carries and never from a field, so that nobody reads or warms
another tenant's prefixes.  Not here: shares and caps of slots, which the scheduler keeps.
"""

from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from protos.errors import PermissionDenied, Unauthenticated
from radixd.chassis.tenants import Tenants, key_digest

ADMIN_METHODS = frozenset(
    f"/radixd.v1.AdminService/{name}" for name in ("FlushCache", "DumpTree", "SetPolicy")
)
"""They touch or show what belongs to all tenants."""

_SCHEME = "bearer"
_NO_KEY = "a known key is needed: the metadata `authorization: Bearer KEY`"
"""One sentence for a missing, a malformed and an unknown key: none is to be told from another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """On whose behalf a call is served."""

    tenant: str
    """Empty: nobody in particular."""
    is_admin: bool
    """May see and change what belongs to any tenant."""

    @property
    def sees(self) -> str | None:
        """The tenant whose pins, requests and books it may see; None: everybody's."""
        return None if self.is_admin else self.tenant


class Keys(Protocol):
    """Keys and whose they are."""

    def holder(self, key: str) -> Caller | None:
        """Who shows this key; None: it is not known."""


class OpenDoor:
    """A server without keys: everybody is the tenant "" and may do everything."""

    def caller(self, method: str, metadata: Iterable[tuple[str, str | bytes]]) -> Caller:
        """Whoever it is."""
        return Caller(tenant="", is_admin=True)


class KeyedDoor:
    """A server with keys: every call must carry one."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def caller(self, method: str, metadata: Iterable[tuple[str, str | bytes]]) -> Caller:
        """Who calls this method ("/package.Service/Method") with this metadata.

        Raises:
            Unauthenticated: no key, more than one, or none that is known.
            PermissionDenied: the method is one for admin keys.
        """
        found = [value for name, value in metadata if name == "authorization"]
        key = _bearer(found[0]) if len(found) == 1 else None
        caller = None if key is None else self._keys.holder(key)
        if caller is None:
            raise Unauthenticated(_NO_KEY)
        if method in ADMIN_METHODS and not caller.is_admin:
            name = method.rpartition("/")[2]
            raise PermissionDenied(f"{name} concerns all tenants; it takes one of the admin_keys")
        return caller


Access = OpenDoor | KeyedDoor


class TenantKeys:
    """The keys of the file of tenants."""

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants

    def holder(self, key: str) -> Caller | None:
        """Whose key it is, looked up by its digest."""
        tenant = self._tenants.named_by(key)
        is_admin = key_digest(key) in self._tenants.admin_key_digests
        if tenant is None and not is_admin:
            return None
        return Caller(tenant=tenant or "", is_admin=is_admin)


def access_for(tenants: Tenants) -> Access:
    """The door for these tenants: open where nobody has a key."""
    return KeyedDoor(TenantKeys(tenants)) if tenants.have_keys else OpenDoor()


_caller: ContextVar[Caller] = ContextVar("caller")


def set_caller(caller: Caller) -> None:
    """Says who is served by the call that this task handles; for the door alone."""
    _caller.set(caller)


def current_caller() -> Caller:
    """Who is served; a call that did not come through the door is a defect and fails."""
    return _caller.get()


def check_sees(caller: Caller, tenant: str, field: str) -> None:
    """Refuses a question about somebody else's things.

    Raises:
        PermissionDenied: names the field.
    """
    if caller.sees is not None and caller.sees != tenant:
        raise PermissionDenied(f"{field}: this key may ask about its own tenant only")


def _bearer(value: str | bytes) -> str | None:
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    scheme, _, key = text.strip().partition(" ")
    return key.strip() or None if scheme.lower() == _SCHEME else None
