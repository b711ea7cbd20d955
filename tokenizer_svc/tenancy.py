"""Who calls, and what may they do: the one place that decides, asked by the door for every call.

A tenant comes from the key a call carries and never from a field, so that nobody reads or warms
another tenant's prefixes.  Not here: shares and caps of slots, which the scheduler keeps.
"""

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

from protos.errors import PermissionDenied, Unauthenticated
from radixd.chassis.tenants import Tenants, key_digest


class Role(StrEnum):
    """What a key is for; an operator's key has both."""

    INFERENCE = "inference"
    ADMIN = "admin"
    """May see and change what belongs to all tenants."""


ROLE_OF: Mapping[str, Role] = MappingProxyType(
    {
        f"/radixd.v1.{service}/{name}": role
        for service, role, names in (
            ("InferenceService", Role.INFERENCE, ("Generate", "GenerateUnary", "Cancel")),
            ("TokenizerService", Role.INFERENCE, ("Tokenize", "Detokenize")),
            ("AdminService", Role.INFERENCE, ("GetStats", "WatchStats", "GetPolicy")),
            ("AdminService", Role.INFERENCE, ("Preheat", "ListPins", "Unpin")),
            ("AdminService", Role.INFERENCE, ("ListRequests", "Explain")),
            ("AdminService", Role.INFERENCE, ("ListSessions", "CloseSession")),
            ("AdminService", Role.ADMIN, ("FlushCache", "DumpTree", "SetPolicy")),
        )
        for name in names
    }
)
"""The role a call takes, by its gRPC method; HTTP's endpoints say which method's they take.
A method that is not here takes an admin's."""

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


class Access(Protocol):
    """Who may come in."""

    @property
    def is_open(self) -> bool:
        """Whether everybody may, without a key."""
        ...

    def caller(self, method: str, metadata: Iterable[tuple[str, str | bytes]]) -> Caller:
        """Who calls this method ("/package.Service/Method") with this metadata.

        Raises:
            RadixdError: nobody who may.
        """
        ...


class OpenDoor:
    """A server without keys: everybody is the tenant "" and may do everything."""

    is_open = True

    def caller(self, method: str, metadata: Iterable[tuple[str, str | bytes]]) -> Caller:
        """Whoever it is."""
        return Caller(tenant="", is_admin=True)


class KeyedDoor:
    """A server with keys: every call must carry one."""

    is_open = False

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def caller(self, method: str, metadata: Iterable[tuple[str, str | bytes]]) -> Caller:
        """Who calls this method ("/package.Service/Method") with this metadata.

        Raises:
            Unauthenticated: no key, more than one, or none that is known.
            PermissionDenied: the method takes the role admin, and the key has it not.
        """
        found = [value for name, value in metadata if name == "authorization"]
        key = _bearer(found[0]) if len(found) == 1 else None
        caller = None if key is None else self._keys.holder(key)
        if caller is None:
            raise Unauthenticated(_NO_KEY)
        if ROLE_OF.get(method) is not Role.INFERENCE and not caller.is_admin:
            name = method.rpartition("/")[2]
            raise PermissionDenied(f"{name} concerns all tenants; it takes one of the admin_keys")
        return caller


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
