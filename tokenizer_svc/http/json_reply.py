"""JSON of replies, in one go or a slice at a time."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tokenizer_svc.long_replies import SLICE_ROWS, in_slices

PART_BYTES = 1 << 18
"""Of a body, written at once: more would be copied while nobody else is served."""


class LazyList:
    """A list that is made when it is written, each time, and may be written in slices.

    Its entries are small.  They are never all there at once: to have a million objects costs
    everybody a pause, whenever Python looks for those that are garbage.
    """

    __slots__ = ("_entries",)

    def __init__(self, entries: Callable[[], Iterable[Any]]) -> None:
        self._entries = entries

    def __iter__(self) -> Iterator[Any]:
        return iter(self._entries())


def _as_list(value: object) -> list[Any]:
    if isinstance(value, LazyList):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not for JSON")


_ENCODER = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_as_list
)
"""One for all: `json.dumps` makes itself a new one for every call with options."""


def json_text(value: object) -> str:
    """Compact JSON, with characters as they are."""
    return _ENCODER.encode(value)


def long_json(value: object) -> bytes:
    """The same in UTF-8, with pauses where there are long lists."""
    return b"".join(part.encode() for part in _slices(value))


def _slices(value: object) -> Iterator[str]:
    if isinstance(value, LazyList):
        opening = "["
        for part in in_slices(value, SLICE_ROWS):
            yield opening + json_text(part)[1:-1]
            opening = ","
        yield "[]" if opening == "[" else "]"
    elif isinstance(value, list):
        yield "["
        for number, each in enumerate(value):
            yield "," if number else ""
            yield from _slices(each)
        yield "]"
    elif isinstance(value, Mapping):
        yield "{"
        for number, (key, each) in enumerate(value.items()):
            yield f"{',' if number else ''}{json_text(key)}:"
            yield from _slices(each)
        yield "}"
    else:
        yield json_text(value)


class JsonReply(Response):
    """A body that is JSON already, written in parts."""

    media_type = "application/json"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers the request."""
        head = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **head})
        for part in parts_of(bytes(self.body)):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def parts_of(data: bytes) -> Iterator[bytes]:
    """These bytes, so many at a time."""
    for start in range(0, len(data), PART_BYTES):
        yield data[start : start + PART_BYTES]
