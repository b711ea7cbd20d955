"""Every case, and whether every kernel has one."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import kernels
from tests.gpu import (
    cases_layers,
    cases_memory,
    cases_products,
    cases_sampling,
    cases_steps,
    check_attention,
    speed_attention,
)
from tests.gpu.case import Case, Check, Speed

_MODULES = (cases_sampling, cases_products, cases_layers, cases_steps, cases_memory)
_KERNELS = Path(kernels.__path__[0])


def checks() -> Iterator[Check]:
    """Of every kernel."""
    yield from check_attention.checks()
    for module in _MODULES:
        yield from module.checks()


def speeds() -> Iterator[Speed]:
    """Those with an aim first, as time may not suffice for the others."""
    found: list[Speed] = list(speed_attention.speeds())
    for module in _MODULES:
        found += module.speeds()
    yield from sorted(found, key=lambda speed: speed.aim is None)


def every_case(*, only: str = "", is_quick: bool = False) -> dict[str, Case]:
    """By title, in the order of the report.

    only: a part of the title, upper or lower case; empty: all.
    """
    found: dict[str, Case] = {}
    for case in chain(speeds(), checks()):
        assert case.title not in found, case.title
        if only.lower() in case.title.lower() and (case.is_core or not is_quick):
            found[case.title] = case
    return found


def files_without_case(folder: Path = _KERNELS) -> list[str]:
    """Files that say what they are compiled to, and so hold a kernel, but are not run here."""
    known = {case.kernel for case in chain(checks(), speeds())}
    return [
        path.stem
        for path in sorted(folder.glob("*.py"))
        if "\ndef compile_cases(" in path.read_text(encoding="utf-8") and path.stem not in known
    ]
