"""What the checks at the door share: numbers, sizes, ids, JSON texts; each names its field."""

import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from protos.errors import InvalidRequest

_MAYBE_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def whole_number(message: Any, name: str, *, least: int, most: int, within: str = "") -> int | None:
    """An optional integer field; None: absent.  `within` comes before its name in errors.

    Raises:
        InvalidRequest: outside [least, most].
    """
    if not message.HasField(name):
        return None
    value: int = getattr(message, name)
    if value < least:
        raise InvalidRequest(f"{within}{name}", f"{value} is below {least}")
    if value > most:
        raise InvalidRequest(f"{within}{name}", f"{value} is above {most}")
    return value


def number(
    message: Any,
    name: str,
    default: float,
    *,
    within: str = "",
    least: float = 0.0,
    most: float,
    above_least: bool = False,
) -> float:
    """An optional float field, absent the default; with `above_least`, `least` is too little.

    Raises:
        InvalidRequest: not finite, or outside the interval.
    """
    if not message.HasField(name):
        return default
    value: float = getattr(message, name)
    low_enough = value <= most
    high_enough = value > least if above_least else value >= least
    if math.isfinite(value) and low_enough and high_enough:
        return value
    interval = f"{'(' if above_least else '['}{least:g}, {most:g}]"
    raise InvalidRequest(f"{within}{name}", f"{value:g} is not in {interval}")


def check_ids(ids: Sequence[int], field: str, *, vocab_size: int | None = None) -> None:
    """Refuses ids outside [0, vocab_size); None: only negative ones."""
    if min(ids, default=0) >= 0 and (vocab_size is None or max(ids, default=0) < vocab_size):
        return
    for i, token_id in enumerate(ids):
        if token_id < 0:
            raise InvalidRequest(f"{field}[{i}]", f"token id {token_id} is negative")
        if vocab_size is not None and token_id >= vocab_size:
            raise InvalidRequest(
                f"{field}[{i}]", f"token id {token_id} is not below the vocabulary of {vocab_size}"
            )


def check_keys(keys: Iterable[int], field: str, *, vocab_size: int | None = None) -> None:
    """The same for the keys of a map, which have no place in it."""
    for token_id in keys:
        if token_id < 0:
            raise InvalidRequest(field, f"token id {token_id} is negative")
        if vocab_size is not None and token_id >= vocab_size:
            raise InvalidRequest(
                field, f"token id {token_id} is not below the vocabulary of {vocab_size}"
            )


def check_count(items: Sequence[Any], field: str, what: str, *, most: int) -> None:
    """Refuses more than `most` of something repeated."""
    if len(items) > most:
        raise InvalidRequest(field, f"{len(items)} {what}; at most {most}")


def check_size(text: str, field: str, max_bytes: int, *, setting: str = "") -> int:
    """The bytes of a text that takes room from `max_bytes`; `setting` is where that comes from.

    Raises:
        InvalidRequest: it is longer.
    """
    # A character is at most four bytes: the exact size matters only between these bounds.
    if len(text) <= max_bytes:
        size = len(text.encode())
        if size <= max_bytes:
            return size
    raised_by = f" (the server's {setting} sets the limit)" if setting else ""
    raise InvalidRequest(field, f"longer than the {max_bytes} bytes it may have here{raised_by}")


def check_name(name: str, field: str, *, most: int) -> None:
    """Refuses names that are empty, long, or have characters that do not print."""
    if not 1 <= len(name) <= most:
        raise InvalidRequest(field, f"{len(name)} characters; 1 to {most} are allowed")
    if not name.isprintable():
        raise InvalidRequest(field, "it has a character that does not print")


def json_object(text: str, field: str) -> dict[str, Any]:
    """The JSON object that a text is.

    Raises:
        InvalidRequest: it is none, or holds what JSON does not (NaN, half a surrogate pair).
    """
    try:
        value = json.loads(text, parse_constant=_no_number)
        if _MAYBE_SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidRequest(field, "it has half of a surrogate pair") from None
    except RecursionError:
        raise InvalidRequest(field, "it is nested too deep") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InvalidRequest(field, f"no JSON at {where}: {error.msg}") from None
    except ValueError:
        raise InvalidRequest(
            field, "it has a number that JSON or this server cannot hold"
        ) from None
    if not isinstance(value, dict):
        raise InvalidRequest(field, "not a JSON object")
    return value


def _no_number(name: str) -> Any:
    raise ValueError(name)
