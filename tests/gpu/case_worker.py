"""Runs cases one by one and says of each what came of it, whatever it was.

What a kernel can do to its process, a lane deals with (lanes.py); what it can raise, this file.
"""

import gc
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from tests.gpu.all_cases import every_case
from tests.gpu.case import Case, Check, Prepared
from tests.gpu.lanes import Worker
from tests.gpu.place import Place
from tests.gpu.report import Row, checked
from tests.gpu.roofs import Roofs, clocks_under_load, describe_card, measure_roofs
from tests.gpu.timing import CardStopwatch, Stopwatch, Times
from tests.gpu.work import Work

ROOFS = "roofs"
"""The task that measures the card itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What the task ROOFS finds."""

    facts: Mapping[str, object]
    roofs: Roofs
    clocks: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the speed of a case is."""

    times: Times
    work: Work
    rivals_us: Mapping[str, float]
    """NaN: torch could not."""


def card_place() -> Place:
    """The current CUDA device."""
    return Place(device=torch.device("cuda", torch.cuda.current_device()), is_tiny=False)


def interpreted_place() -> Place:
    """The processor, at tiny sizes."""
    return Place(device=torch.device("cpu"), is_tiny=True)


def check_worker() -> Worker:
    """Says of the case of a title whether it is right."""
    place, cases = card_place(), every_case()

    def work(title: str) -> tuple[object, bool]:
        row = check_case(cases[title], place)
        return row, not is_usable()

    return work


def speed_worker() -> Worker:
    """Says of a title how fast its case is; of ROOFS how fast the card is."""
    place, cases = card_place(), every_case()
    stopwatch = CardStopwatch(place.device)

    def work(title: str) -> tuple[object, bool]:
        result: object
        try:
            if title == ROOFS:
                result = Card(
                    roofs=measure_roofs(place.device, stopwatch),
                    facts=describe_card(place.device),
                    clocks=clocks_under_load(place.device),
                )
            else:
                case = cases[title]
                assert not isinstance(case, Check), title
                result = measure(case.prepare(place), stopwatch)
        except Exception as error:  # whatever it is belongs in the report
            result = reason(error)
        forget()
        return result, not is_usable()

    return work


def check_case(case: Case, place: Place) -> Row:
    """The row of a case, without its time.

    A Speed is run as it will be timed, its rivals too, which compiles whatever they need.
    """
    try:
        if isinstance(case, Check):
            return checked(case.kernel, case.name, case.run(place))
        prepared = case.prepare(place)
        prepared.run()
        row = checked(case.kernel, case.name, prepared.check())
        for rival in prepared.rivals.values():
            attempt(rival)
        return row
    except Exception as error:  # whatever a kernel or its compiler throws is the finding
        return Row(kernel=case.kernel, case=case.name, status="failed", note=reason(error))
    finally:
        forget()


def measure(prepared: Prepared, stopwatch: Stopwatch) -> Measured:
    """Times a case and its rivals."""
    times = stopwatch.times(prepared.run)
    rivals_us = {}
    for name, rival in prepared.rivals.items():
        found: list[float] = []
        attempt(lambda rival=rival, found=found: found.append(stopwatch.times(rival).median_us))
        rivals_us[name] = found[0] if found else math.nan
    return Measured(times=times, work=prepared.work, rivals_us=rivals_us)


def attempt(run: Callable[[], object]) -> str:
    """Why it failed; empty: it did not.  For what may fail without anything being wrong with us."""
    try:
        run()
    except Exception as error:
        return reason(error)
    return ""


def reason(error: BaseException) -> str:
    """One line of an error: its kind, and the line of its text that says most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if "rror" in line]
    text = (named or lines or [""])[0]
    return f"{type(error).__name__}: {text[:160]}"


def forget() -> None:
    """Gives back the card's memory of the case before."""
    if torch.cuda.is_available() and is_usable():
        gc.collect()
        torch.cuda.empty_cache()


def is_usable() -> bool:
    """Whether this process can still use its card, once all that was launched has ended."""
    if not torch.cuda.is_available():
        return True
    return not attempt(torch.cuda.synchronize)
