"""How long a text the calls of a chat template make, known before it is made.

Of the calls that can make a long text of short ones; the others make no more than they are given.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

_WIDE = re.compile(r"\d{6}")
_WIDE_PERCENT = re.compile(r"%(\([^)]*\))?[^a-zA-Z%]*?(\d{6}|\*)")


def size_made(name: str, text: str, args: Sequence[Any], named: Mapping[str, Any]) -> int:
    """An upper bound for the characters that a method or filter of this name makes of a text."""
    if name == "replace":
        old, new = _given(args, named, 0, "old", ""), _given(args, named, 1, "new", "")
        return _replaced(text, str(old), str(new))
    if name == "indent":
        width = _given(args, named, 0, "width", 4)
        each = len(width) if isinstance(width, str) else int(width)
        return len(text) + (text.count("\n") + 1) * max(0, each)
    if name == "expandtabs":
        width = int(_given(args, named, 0, "tabsize", 8))
        return len(text) + text.count("\t") * max(0, width)
    if name == "join":
        items = _given(args, named, 0, "iterable", ())
        return len(text) * len(items) if isinstance(items, Sequence) else len(text) ** 2
    if name == "translate":
        return len(text) ** 2
    return 0


def has_wide_field(text: str) -> bool:
    """Whether what stands before `%` asks for more characters than it is given."""
    return _WIDE_PERCENT.search(text) is not None


def is_wide(spec: str) -> bool:
    """The same for what stands behind the colon of a field in braces."""
    return _WIDE.search(spec) is not None


def _replaced(text: str, old: str, new: str) -> int:
    num_places = text.count(old) if old else len(text) + 1
    return len(text) + num_places * (len(new) - len(old))


def _given(
    args: Sequence[Any], named: Mapping[str, Any], at: int, name: str, default: object
) -> Any:
    return args[at] if at < len(args) else named.get(name, default)
