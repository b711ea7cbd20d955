"""The members of a JSON object as the text they were written in.

Clients get the arguments of a call exactly as the model wrote them: numbers, order and spaces.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

_SPACE = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One member of an object."""

    value: Any
    text: str
    """The value as it was written."""


def members(text: str) -> dict[str, Member] | None:
    """The members by their names, the last of each; None: this is no JSON object."""
    try:
        return dict(_members(text.strip()))
    except (ValueError, IndexError, RecursionError):
        return None


def is_object(text: str) -> bool:
    """True for the text of a JSON object."""
    return members(text) is not None


def _members(text: str) -> Iterator[tuple[str, Member]]:
    decoder = json.JSONDecoder(parse_constant=_refuse)
    at = _after(text, 0, "{")
    if text[at] == "}":
        _expect_end(text, at)
        return
    while True:
        if text[at] != '"':
            raise ValueError("a name was expected")
        name, at = decoder.raw_decode(text, at)
        start = _after(text, at, ":")
        value, end = decoder.raw_decode(text, start)
        yield name, Member(value=value, text=text[start:end])
        at = _space(text, end)
        if text[at] == "}":
            _expect_end(text, at)
            return
        at = _after(text, at, ",")


def _expect_end(text: str, at: int) -> None:
    if at + 1 != len(text):
        raise ValueError("more than one object")


def _after(text: str, at: int, mark: str) -> int:
    at = _space(text, at)
    if text[at] != mark:
        raise ValueError(f"{mark} was expected")
    return _space(text, at + 1)


def _space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None  # it matches nothing at all, too
    return found.end()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
