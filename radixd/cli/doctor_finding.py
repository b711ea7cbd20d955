"""What a check of `radixd doctor` found."""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    """Works, with a limit that the detail names."""
    FAIL = "fail"
    """`radixd up` will not work like this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report."""

    check: str
    """What was looked at, in a word or two."""
    state: State
    detail: str
    advice: str = ""
    """What to do; empty when all is well."""


def ok(check: str, detail: str) -> Finding:
    """All is well."""
    return Finding(check=check, state=State.OK, detail=detail)


def warn(check: str, detail: str, advice: str) -> Finding:
    """Works with a limit."""
    return Finding(check=check, state=State.WARN, detail=detail, advice=advice)


def fail(check: str, detail: str, advice: str) -> Finding:
    """Will not work."""
    return Finding(check=check, state=State.FAIL, detail=detail, advice=advice)
