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
_PLAIN_TYPES = frozenset({"string", "number", "integer", "boolean", "null"})
_ALL_TYPES = (*sorted(_PLAIN_TYPES), "array", "object")
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
    _check_endings(schema)
    return schema


def _refuse_number(spelled: str) -> None:
    raise ValueError(f"{spelled} is no number")


def _check_endings(root: dict[str, Any]) -> None:
    """Each part that the root comes to must be met by some value that ends.

    What is combined is looked at part by part; a combination that never ends although its parts
    would goes unnoticed, and its outputs end with max_tokens.
    """
    targets = _targets(root)
    ending: set[str] = set()
    while True:
        more = {ref for ref, at in targets.items() if ref not in ending and _ends(at, ending)}
        if not more:
            break
        ending |= more
    endless = next((ref for ref in targets if ref not in ending), None)
    if endless is not None:
        raise FormError(f"`{endless}` never ends: each of its values holds another of them")


def _targets(root: dict[str, Any]) -> dict[str, Any]:
    """What the root comes to by references, itself among them, by reference."""
    is_new = not any(draft in str(root.get("$schema", "")) for draft in _OLD_TUPLES)
    found: dict[str, Any] = {"#": root}
    waiting = [root]
    while waiting:
        for part in _parts(waiting.pop()):
            _refuse_keywords(part, refuses_lists=is_new)
            ref = part.get("$ref")
            if isinstance(ref, str) and ref not in found and ref.startswith("#"):
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


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """A schema and the schemas inside it, definitions aside."""
    waiting = [(schema, 0)]
    while waiting:
        at, depth = waiting.pop()
        if depth > _MAX_DEPTH:
            raise FormError(f"nested deeper than {_MAX_DEPTH}")
        if isinstance(at, dict):
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


def _ends(schema: Any, ending: set[str]) -> bool:
    """Whether some value that ends meets it, given the references of which that is known."""
    if not isinstance(schema, Mapping):
        return schema is not False
    if "const" in schema or "enum" in schema:
        return True
    ref = schema.get("$ref")
    if isinstance(ref, str) and ref.startswith("#") and ref not in ending:
        return False
    if not all(_ends(part, ending) for part in _schemas(schema, "allOf")):
        return False
    for keyword in ("anyOf", "oneOf"):
        parts = _schemas(schema, keyword)
        if parts and not any(_ends(part, ending) for part in parts):
            return False
    types = schema.get("type", _ALL_TYPES)
    return any(
        _array_ends(schema, ending)
        if kind == "array"
        else _object_ends(schema, ending)
        if kind == "object"
        else True
        for kind in ([types] if isinstance(types, str) else types)
    )


def _array_ends(schema: Mapping[str, Any], ending: set[str]) -> bool:
    fewest = schema.get("minItems", 0)
    first = _schemas(schema, "prefixItems")
    needed = first[:fewest] if isinstance(fewest, int) else []
    if isinstance(fewest, int) and fewest > len(first):
        needed = [*first, schema.get("items", True)]
    return all(_ends(item, ending) for item in needed)


def _object_ends(schema: Mapping[str, Any], ending: set[str]) -> bool:
    properties = schema.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    others = schema.get("additionalProperties", True)
    needed = [known.get(name, others) for name in _schemas(schema, "required")]
    return all(_ends(part, ending) for part in needed)


def _schemas(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    value = schema.get(keyword)
    return value if isinstance(value, list) else []
