"""The file of tenants: who may ask with which key, and what share of the pool is theirs.

    acme:
      guaranteed_share: 0.25   # of the pool; below it, its requests go first; default: 0
      most_share: 0.5          # of the pool; its requests wait rather than hold more; default: 1
      weight: 2                # under the order vtc it is served twice the tokens; default: 1
      pin_share: 0.1           # of the budget of pins; default: 1
      keys:                    # SHA-256 of its API keys, in hex: printf %s KEY | sha256sum
        - 2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b
    admin_keys:                # of operators, who see and change what belongs to all tenants
      - 35224d0d3465d74e855f8d69a136e79c744ea35a675d3393360a327cbf6359a2

A key of both kinds is an operator's that generates as its tenant.
Keys are kept as digests, here and in memory: neither the file nor a dump of the process tells one.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from protos.errors import InvalidRequest
from radixd.chassis.yaml_file import read_yaml

MAX_TENANT_CHARACTERS = 64
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_TENANT_CHARACTERS - 1}}}")
_OPTION = "tenants"
_ADMIN_KEYS = "admin_keys"
"""Beside the tenants' names in the file, so no tenant's name."""
_ROUNDING = 1e-9
"""Ten tenths may sum up to a little more than one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantShares:
    """What one tenant may hold; the scheduler's core says how each is used."""

    guaranteed_share: float = 0.0
    most_share: float = 1.0
    weight: float = 1.0
    pin_share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenants:
    """Every tenant of the file."""

    shares: Mapping[str, TenantShares]
    """By name, in the order of the file."""
    by_key_digest: Mapping[str, str]
    """SHA-256 of an API key, in lower-case hex, to the tenant's name."""
    admin_key_digests: frozenset[str] = frozenset()
    """The same of operators' keys, each of which may be a tenant's, too."""

    @property
    def have_keys(self) -> bool:
        """Whether callers can show a key at all."""
        return bool(self.by_key_digest or self.admin_key_digests)

    def named_by(self, api_key: str) -> str | None:
        """The tenant whose key this is; None: nobody's.

        Looked up by digest: how long that takes tells nothing of how much of a key was right.
        """
        return self.by_key_digest.get(key_digest(api_key))


NO_TENANTS = Tenants(shares=MappingProxyType({}), by_key_digest=MappingProxyType({}))


def key_digest(api_key: str) -> str:
    """How a key is written in the file."""
    # A caller may send anything; what is no UTF-8 is nobody's key, and no error.
    return hashlib.sha256(api_key.encode("utf-8", "surrogatepass")).hexdigest()


_PROBLEMS = {
    "string_pattern_mismatch": "is no SHA-256 in hex; printf %s KEY | sha256sum writes it",
    "model_type": "must be a mapping of what the tenant has",
    "dict_type": "must be a mapping of tenants",
    "list_type": "must be a list of SHA-256 in hex",
}
_Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
_Digests = list[Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")]]


class _Entry(BaseModel):
    """One tenant as the file has it."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    guaranteed_share: _Share = 0.0
    most_share: _Share = 1.0
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    pin_share: _Share = 1.0
    keys: _Digests = []


class _File(BaseModel):
    """The file as a whole, its one reserved key set apart."""

    model_config = ConfigDict(strict=True, frozen=True)

    admin_keys: _Digests = []
    tenants: dict[str, _Entry] = {}


def load_tenants(path: Path | None) -> Tenants:
    """The tenants of a file; None: there are none.

    Raises:
        InvalidRequest: of the option `tenants`; names the file, the tenant and the field.
    """
    if path is None:
        return NO_TENANTS
    file = _read(path)
    entries = file.tenants
    admin_key_digests = frozenset(key.lower() for key in file.admin_keys)
    if len(admin_key_digests) < len(file.admin_keys):
        raise _wrong(path, f"{_ADMIN_KEYS}: one of them comes twice")
    by_key_digest: dict[str, str] = {}
    for name, entry in entries.items():
        if not _NAME.fullmatch(name):
            text = f"takes 1 to {MAX_TENANT_CHARACTERS} letters, digits, '.', '_' and '-'"
            raise _wrong(path, f"{name!r}: the name {text}, and begins with a letter or digit")
        if entry.guaranteed_share > entry.most_share:
            problem = f"{entry.guaranteed_share} is above most_share, {entry.most_share}"
            raise _wrong(path, f"{name}.guaranteed_share: {problem}")
        for number, key in enumerate(entry.keys):
            digest = key.lower()
            if digest in by_key_digest:
                owner = by_key_digest[digest]
                raise _wrong(path, f"{name}.keys.{number}: is a key of {owner} already")
            by_key_digest[digest] = name
    promised = sum(entry.guaranteed_share for entry in entries.values())
    if promised > 1 + _ROUNDING:
        raise _wrong(path, f"guaranteed_share: all together are {promised:g}, more than the pool")
    shares = {
        name: TenantShares(**entry.model_dump(exclude={"keys"})) for name, entry in entries.items()
    }
    return Tenants(
        shares=MappingProxyType(shares),
        by_key_digest=MappingProxyType(by_key_digest),
        admin_key_digests=admin_key_digests,
    )


def _read(path: Path) -> _File:
    loaded = read_yaml(path, option=_OPTION)
    if loaded is None:
        return _File()
    parts: dict[str, Any] = {"tenants": loaded}
    if isinstance(loaded, dict) and _ADMIN_KEYS in loaded:
        named = {name: entry for name, entry in loaded.items() if name != _ADMIN_KEYS}
        parts = {"tenants": named, _ADMIN_KEYS: loaded[_ADMIN_KEYS]}
    try:
        return _File.model_validate(parts)
    except ValidationError as error:
        first = error.errors()[0]
        path_to_it = first["loc"][1:] if first["loc"][0] == "tenants" else first["loc"]
        where = ".".join(str(part) for part in path_to_it if part != "[key]")
        problem = _PROBLEMS.get(first["type"], first["msg"])
        raise _wrong(path, f"{where}: {problem}" if where else problem) from None


def _wrong(path: Path, problem: str) -> InvalidRequest:
    return InvalidRequest(_OPTION, f"{path}: {problem}")
