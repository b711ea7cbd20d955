"""What is checked of a JSON Schema before the library compiles it.

The library refuses keywords it does not know and most schemas that nothing meets.  Here: schemas
whose every value holds another one without end, options of the library itself, and the old way to
write tuples.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from tokenizer_svc.constraints.form_error import FormError
from tokenizer_svc.constraints.schema_endings import endless_reference

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

JSON_OPTIONS: JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ", ?",
    "key_separator": ": ?",
    "coerce_one_of": False,
    "lenient": False,
}
"""How the library is to compile a schema that was read here."""

_OLD_TUPLES = ("draft-04", "draft-06", "draft-07", "2019-09")
"""Drafts in which `items` may be a list."""
_NO_SCHEMAS = frozenset({"enum", "const", "default", "examples", "$defs", "definitions"})
"""Keywords whose values say nothing by themselves; definitions count where they are referred to."""
_NOT_FOLLOWED = ("contentEncoding", "contentMediaType")
"""Keywords without effect in the library, which some drafts give one."""
_MAX_DEPTH = 100


def read_schema(text: str) -> dict[str, Any]:
    """The schema in this text.

    Raises:
        FormError: it is no JSON, no schema, or one that no value that ends can meet.
    """
    try:
        schema = json.loads(text, parse_constant=_refuse_number)
    except (ValueError, RecursionError) as error:
        problem = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise FormError(f"not JSON: {problem}") from None
    if schema is True:
        return {}
    if schema is False:
        raise FormError("no value can meet it")
    if not isinstance(schema, dict):
        raise FormError("a schema is a JSON object")
    if "x-guidance" in schema:
        raise FormError("`x-guidance` is no keyword here")
    try:
        endless = endless_reference(_targets(schema))
    except RecursionError:
        raise FormError("its references lead too deep") from None
    if endless is not None:
        raise FormError(f"`{endless}` never ends: each of its values holds another of them")
    return schema


def _refuse_number(spelled: str) -> None:
    raise ValueError(f"{spelled} is no number")


def _targets(root: dict[str, Any]) -> dict[str, Any]:
    """What the root comes to by references, itself among them, by reference."""
    is_new = not any(draft in str(root.get("$schema", "")) for draft in _OLD_TUPLES)
    found: dict[str, Any] = {"#": root}
    waiting, seen = [root], set[int]()
    while waiting:
        for part in _parts(waiting.pop(), seen):
            _refuse_keywords(part, refuses_lists=is_new)
            ref = part.get("$ref")
            # Others, anchors among them, are for the library to follow or to refuse.
            if isinstance(ref, str) and ref not in found and (ref == "#" or ref[:2] == "#/"):
                found[ref] = _at(root, ref)
                waiting.append(found[ref])
    return found


def _refuse_keywords(part: Mapping[str, Any], *, refuses_lists: bool) -> None:
    if refuses_lists and isinstance(part.get("items"), list):
        raise FormError("`items` is a list; write `prefixItems`")
    if "$ref" in part and "$id" in part:
        raise FormError("`$id` beside `$ref`: drafts differ in what it means")
    for keyword in _NOT_FOLLOWED:
        if isinstance(part.get(keyword), str):
            raise FormError(f"`{keyword}` is not followed: what a text holds cannot be prescribed")


def _parts(schema: Any, seen: set[int]) -> Iterator[dict[str, Any]]:
    """A schema and the schemas inside it, definitions aside; each once, by what was seen."""
    waiting = [(schema, 0)]
    while waiting:
        at, depth = waiting.pop()
        if depth > _MAX_DEPTH:
            raise FormError(f"nested deeper than {_MAX_DEPTH}")
        if isinstance(at, dict):
            if id(at) in seen:
                continue
            seen.add(id(at))
            yield at
            waiting += [(value, depth + 1) for key, value in at.items() if key not in _NO_SCHEMAS]
        elif isinstance(at, list):
            waiting += [(value, depth + 1) for value in at]


def _at(root: dict[str, Any], ref: str) -> Any:
    """What a reference points to; anything, where only the library can tell."""
    at: Any = root
    for step in unquote(ref).removeprefix("#").split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(at, dict) and key in at:
            at = at[key]
        elif isinstance(at, list) and key.isdecimal() and int(key) < len(at):
            at = at[int(key)]
        else:
            return True
    return at
