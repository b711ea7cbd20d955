"""The YAML file of prefixes that a server warms before it is ready: read and checked as a whole.

Needs neither model nor server, so that a mistake is found before anything starts.  Not here: what
warming is, and limits that need a vocabulary.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protos.errors import InvalidRequest
from radixd.chassis.yaml_file import read_yaml

MAX_PREFIXES = 1024
MAX_TTL_S = 30 * 24 * 3600
MAX_CACHE_DOMAIN_LENGTH = 256
_OPTION = "preheat"
_MAX_TOKEN_ID = (1 << 31) - 1

PINS = ("none", "soft", "hard")
ROLES = ("system", "user", "assistant")
_PROMPTS = ("text", "chat", "file", "ids")
_FIELDS = (*_PROMPTS, "pin", "ttl_s", "cache_domain", "tenant")


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePrefix:
    """One entry; exactly one of text, turns and ids is not None."""

    number: int
    """Its place in the file; the first is 1."""
    text: str | None = None
    turns: tuple[tuple[str, str], ...] | None = None
    """(role, content) of each message; roles as in ROLES."""
    ids: tuple[int, ...] | None = None
    pin: str = "none"
    """One of PINS."""
    ttl_ms: int = 0
    """0: the pin stays until it is removed."""
    cache_domain: str = ""
    tenant: str = ""


def load_preheat_file(
    path: Path | None, *, max_prompt_bytes: int, tenants: Collection[str]
) -> tuple[FilePrefix, ...]:
    """The entries of the file, in its order; None: there are none.

    `tenants` are the names that an entry may give.

    Raises:
        InvalidRequest: of `preheat`; names the file, the entry and the field.
    """

    def refuse(where: str, problem: str) -> InvalidRequest:
        whose = f"{path}, {where}" if where else str(path)
        return InvalidRequest(_OPTION, f"{whose}: {problem}")

    if path is None:
        return ()
    loaded = read_yaml(path, option=_OPTION)
    if not isinstance(loaded, dict) or set(loaded) != {"prefixes"}:
        raise refuse("", "a mapping with the one key `prefixes` was expected")
    entries = loaded["prefixes"]
    if not isinstance(entries, list) or not 1 <= len(entries) <= MAX_PREFIXES:
        raise refuse("prefixes", f"a list of 1 to {MAX_PREFIXES} entries was expected")
    reader = _EntryReader(path.parent, max_prompt_bytes, tenants)
    found = []
    for number, entry in enumerate(entries, start=1):
        try:
            found.append(reader.read(number, entry))
        except InvalidRequest as error:
            where = f"entry {number}" + (f", {error.field}" if error.field else "")
            raise refuse(where, error.message) from None
    return tuple(found)


class _EntryReader:
    """Reads entries; its refusals name the field within the entry."""

    def __init__(self, folder: Path, max_prompt_bytes: int, tenants: Collection[str]) -> None:
        self._folder = folder
        self._tenants = tenants
        self._max_prompt_bytes = max_prompt_bytes

    def read(self, number: int, entry: Any) -> FilePrefix:
        if not isinstance(entry, dict):
            raise InvalidRequest("", f"a mapping was expected; one of {', '.join(_PROMPTS)} in it")
        for key in entry:
            if key not in _FIELDS:
                raise InvalidRequest(str(key), f"unknown; the fields are {', '.join(_FIELDS)}")
        kinds = [name for name in _PROMPTS if name in entry]
        if len(kinds) != 1:
            given = " and ".join(kinds) or "none"
            raise InvalidRequest("", f"exactly one of {', '.join(_PROMPTS)} is needed, not {given}")
        pin = _pin(entry)
        return FilePrefix(
            number=number,
            **self._prompt(kinds[0], entry[kinds[0]]),
            pin=pin,
            ttl_ms=_ttl_ms(entry, pin),
            cache_domain=_cache_domain(entry),
            tenant=self._tenant(entry),
        )

    def _prompt(self, kind: str, value: Any) -> dict[str, Any]:
        if kind == "ids":
            return {"ids": _ids(value)}
        if kind == "chat":
            return {"turns": self._turns(value)}
        text = self._text_of_file(value) if kind == "file" else value
        if not isinstance(text, str) or not text:
            raise InvalidRequest(kind, "text of at least one character was expected")
        self._check_size(text, kind)
        return {"text": text}

    def _turns(self, messages: Any) -> tuple[tuple[str, str], ...]:
        if not isinstance(messages, list) or not messages:
            raise InvalidRequest("chat", "a list of at least one message was expected")
        turns = []
        for i, message in enumerate(messages):
            where = f"chat[{i}]"
            if not isinstance(message, dict) or set(message) != {"role", "content"}:
                raise InvalidRequest(where, "a mapping with the keys role and content was expected")
            if message["role"] not in ROLES:
                raise InvalidRequest(f"{where}.role", f"one of {', '.join(ROLES)} was expected")
            if not isinstance(message["content"], str):
                raise InvalidRequest(f"{where}.content", "text was expected; quote it")
            turns.append((message["role"], message["content"]))
        self._check_size("".join(content for _, content in turns), "chat")
        return tuple(turns)

    def _text_of_file(self, name: Any) -> str:
        if not isinstance(name, str) or not name:
            raise InvalidRequest("file", "the name of a text file was expected")
        path = self._folder / name
        try:
            # One byte more than may be, so that no file is read that could not be used.
            with path.open("rb") as file:
                data = file.read(self._max_prompt_bytes + 1)
        except (OSError, ValueError) as error:
            raise InvalidRequest("file", f"{path}: {getattr(error, 'strerror', error)}") from None
        if len(data) > self._max_prompt_bytes:
            raise InvalidRequest("file", f"{path}: {self._too_long}")
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidRequest("file", f"{path}: no UTF-8 at byte {error.start}") from None

    def _tenant(self, entry: dict[str, Any]) -> str:
        tenant = entry.get("tenant", "")
        if tenant != "" and tenant not in self._tenants:
            # Warmed for nobody, it would only take room.
            raise InvalidRequest("tenant", f"{tenant!r} is no tenant of the option tenants")
        return str(tenant)

    def _check_size(self, text: str, field: str) -> None:
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise InvalidRequest(field, "half of a surrogate pair is no character") from None
        if size > self._max_prompt_bytes:
            raise InvalidRequest(field, self._too_long)

    @property
    def _too_long(self) -> str:
        return f"longer than the {self._max_prompt_bytes} bytes a prompt may have here"


def _pin(entry: dict[str, Any]) -> str:
    pin = entry.get("pin", "none")
    if pin not in PINS:
        raise InvalidRequest("pin", f"one of {', '.join(PINS)} was expected")
    return str(pin)


def _ttl_ms(entry: dict[str, Any], pin: str) -> int:
    if "ttl_s" not in entry:
        return 0
    ttl_s = entry["ttl_s"]
    if pin == "none":
        raise InvalidRequest("ttl_s", "only a pin has a time to live; pin is soft or hard then")
    is_number = isinstance(ttl_s, int | float) and not isinstance(ttl_s, bool)
    if not is_number or not 0.001 <= ttl_s <= MAX_TTL_S:
        raise InvalidRequest("ttl_s", f"a number of seconds from 0.001 to {MAX_TTL_S} was expected")
    return int(ttl_s * 1000 + 0.5)


def _cache_domain(entry: dict[str, Any]) -> str:
    domain = entry.get("cache_domain", "")
    if not isinstance(domain, str) or len(domain) > MAX_CACHE_DOMAIN_LENGTH:
        raise InvalidRequest(
            "cache_domain", f"a name of at most {MAX_CACHE_DOMAIN_LENGTH} characters was expected"
        )
    return domain


def _ids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not value:
        raise InvalidRequest("ids", "a list of at least one token id was expected")
    for i, token_id in enumerate(value):
        is_id = isinstance(token_id, int) and not isinstance(token_id, bool)
        if not is_id or not 0 <= token_id <= _MAX_TOKEN_ID:
            raise InvalidRequest(f"ids[{i}]", f"{token_id!r} is no token id")
    return tuple(value)
