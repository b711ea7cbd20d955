"""Finds JSON Schemas whose every value holds another one without end.

The library takes them, and an output would go on to max_tokens.  What is said here is on the side
of a schema: where only a part is looked at (of several choices at once, one), it may be met.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tokenizer_svc.constraints.form_error import FormError

MAX_STEPS = 300_000
"""Looks at a part of a schema; about a second."""
_PLAIN_TYPES = frozenset({"string", "number", "integer", "boolean", "null"})
_ALL_TYPES = _PLAIN_TYPES | {"array", "object"}
_CHOICES = ("anyOf", "oneOf")
_SAYS_SOMETHING = frozenset(
    {"type", "const", "enum", "required", "properties", "patternProperties"}
    | {"additionalProperties", "minItems", "items", "prefixItems"}
)

_Part = tuple[Mapping[str, Any], bool]
"""A schema, and whether its choices count."""


def endless_reference(targets: Mapping[str, Any]) -> str | None:
    """The first of these references, by what they point to, that no value that ends can meet.

    Raises:
        FormError: it takes too long to find out.
    """
    search = _Search(targets)
    # Backwards, as what is found later is mostly needed by what was found before.
    waiting = list(targets)[::-1]
    while waiting:
        left = [ref for ref in waiting if not search.found_to_end(ref)]
        if len(left) == len(waiting):
            return next(ref for ref in targets if ref in set(left))
        waiting = left
    return None


class _Search:
    def __init__(self, targets: Mapping[str, Any]) -> None:
        self._targets = targets
        self._ending: set[str] = set()
        """References that are known to end."""
        self._ends: set[frozenset[tuple[int, bool]]] = set()
        """Parts that are known to end together."""
        self._path: set[frozenset[tuple[int, bool]]] = set()
        """Parts that are being looked at, from the outermost on."""
        self._num_left = MAX_STEPS

    def found_to_end(self, ref: str) -> bool:
        ends = self._all_end([(self._targets[ref], True)])
        if ends:
            self._ending.add(ref)
        return ends

    def _all_end(self, schemas: Iterable[tuple[Any, bool]]) -> bool:
        """Whether some value that ends meets all of these, given the references that end."""
        self._num_left -= 1
        if self._num_left < 0:
            raise FormError("too complex: its references lead to too many parts")
        parts = self._parts(schemas)
        if parts is None:
            return False
        key = frozenset((id(schema), counts) for schema, counts in parts)
        if key in self._ends:
            return True
        if key in self._path:  # it holds another one like itself
            return False
        self._path.add(key)
        ends = self._choices_end(parts) and self._some_type_ends([part for part, _ in parts])
        self._path.remove(key)
        if ends:
            self._ends.add(key)
        return ends

    def _parts(self, schemas: Iterable[tuple[Any, bool]]) -> list[_Part] | None:
        """What a value has to meet at once; None: no value can.

        What a reference points to is known to end by itself, and looked into only beside others.
        """
        found: dict[int, _Part] = {}
        refs: dict[str, None] = {}
        followed: set[str] = set()
        while self._collected(schemas, found, refs) and refs.keys() <= self._ending:
            more = [ref for ref in refs if ref not in followed]
            if not more or len(found) + len(refs) == 1:
                return list(found.values())
            followed.update(more)
            schemas = [(self._targets[ref], True) for ref in more]
        return None

    def _collected(
        self, schemas: Iterable[tuple[Any, bool]], found: dict[int, _Part], refs: dict[str, None]
    ) -> bool:
        """Adds these and what they are combined of; False: one of them takes no value."""
        waiting = list(schemas)
        while waiting:
            schema, counts = waiting.pop()
            if schema is False:
                return False
            if not isinstance(schema, Mapping) or (id(schema) in found and not counts):
                continue
            has_choices = counts and any(_listed(schema, keyword) for keyword in _CHOICES)
            if has_choices or not _SAYS_SOMETHING.isdisjoint(schema):
                found[id(schema)] = (schema, has_choices)
            ref = schema.get("$ref")
            if isinstance(ref, str) and ref in self._targets:
                refs[ref] = None
            waiting += [(part, True) for part in _listed(schema, "allOf")]
        return True

    def _choices_end(self, parts: Sequence[_Part]) -> bool:
        """Of each list of choices some one ends beside all that is no choice."""
        rest = [(schema, False) for schema, _ in parts]
        return all(
            any(self._all_end([*rest, (choice, True)]) for choice in choices)
            for schema, counts in parts
            if counts
            for choices in (_listed(schema, keyword) for keyword in _CHOICES)
            if choices
        )

    def _some_type_ends(self, parts: Sequence[Mapping[str, Any]]) -> bool:
        if any("const" in part or "enum" in part for part in parts):
            return True
        types = _ALL_TYPES.intersection(*map(_types, parts))
        # Without any nothing meets it, which the library says better.
        return (
            not types
            or not types.isdisjoint(_PLAIN_TYPES)
            or ("array" in types and self._array_ends(parts))
            or ("object" in types and self._object_ends(parts))
        )

    def _array_ends(self, parts: Sequence[Mapping[str, Any]]) -> bool:
        counts = [part.get("minItems") for part in parts]
        fewest = max((count for count in counts if isinstance(count, int)), default=0)
        longest = max((len(_first_items(part)) for part in parts), default=0)
        # Behind the longest row of first items one is as any other.
        return all(
            self._all_end([(_item(part, at), True) for part in parts])
            for at in range(min(fewest, longest + 1))
        )

    def _object_ends(self, parts: Sequence[Mapping[str, Any]]) -> bool:
        names = {
            name: None
            for part in parts
            for name in _listed(part, "required")
            if isinstance(name, str)
        }
        return all(
            self._all_end([(_property(part, name), True) for part in parts]) for name in names
        )


def _types(schema: Mapping[str, Any]) -> Iterator[str]:
    kind = schema.get("type")
    kinds = [kind] if isinstance(kind, str) else kind
    if not isinstance(kinds, list):
        yield from _ALL_TYPES
        return
    for each in kinds:
        if isinstance(each, str):
            yield each
        if each == "number":
            yield "integer"


def _first_items(schema: Mapping[str, Any]) -> list[Any]:
    return _listed(schema, "prefixItems") or _listed(schema, "items")  # as old drafts have them


def _item(schema: Mapping[str, Any], at: int) -> Any:
    first, others = _first_items(schema), schema.get("items", True)
    if at < len(first):
        return first[at]
    return True if isinstance(others, list) else others


def _property(schema: Mapping[str, Any], name: str) -> Any:
    known = schema.get("properties")
    if isinstance(known, Mapping) and name in known:
        return known[name]
    # Whether a pattern meets the name is for the library to say.
    return True if "patternProperties" in schema else schema.get("additionalProperties", True)


def _listed(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    value = schema.get(keyword)
    return value if isinstance(value, list) else []
