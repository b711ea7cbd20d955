"""The order of a run: checks in parallel, then times one by one, then the engine, in a budget.

This process touches no card; what does are lanes, one after the other as the clock demands.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.gpu.all_cases import every_case, files_without_case
from tests.gpu.case import Case, Speed
from tests.gpu.case_worker import (
    ROOFS,
    Card,
    Measured,
    check_case,
    check_worker,
    interpreted_place,
    speed_worker,
)
from tests.gpu.engine_tasks import ENGINE_TASKS, engine_worker, interpreted_engine
from tests.gpu.lanes import Limits, Lost, Worker, run_in_lanes
from tests.gpu.report import ENGINE, Report, Row, timed
from tests.gpu.roofs import read_clocks, versions
from tests.gpu.timing import Budget

_MOST_LANES = 12
_TASK_S = 90.0
"""For one case, with the start of its process and its compiling."""
_KEPT_FOR_SPEED_S, _KEPT_FOR_ENGINE_S = 100.0, 170.0
_KEPT_FOR_REPORT_S = 5.0
_LATE = "time"

Lanes = Callable[[Sequence[str], Callable[[], Worker], Limits], Iterator[tuple[str, Any]]]
"""See run_in_lanes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """What is asked for."""

    only: str = ""
    is_quick: bool = False
    is_interpreted: bool = False


class Session:
    """One run."""

    def __init__(
        self,
        options: SessionOptions,
        budget: Budget,
        say: Callable[[str], None],
        lanes: Lanes = run_in_lanes,
    ) -> None:
        self._options = options
        self._budget = budget
        self._say = say
        self._lanes = lanes
        self._cases: dict[str, Case] = every_case(only=options.only, is_quick=options.is_quick)
        self._engine_tasks = [
            task
            for task in ENGINE_TASKS
            if options.only.lower() in f"{ENGINE}: {task.name}"
            and (task.is_core or not options.is_quick)
        ]
        self._rows: dict[str, Row] = {}
        self._card: Card | None = None
        self._clocks: dict[str, dict[str, str]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether what is asked for is in no title."""
        return not self._cases and not self._engine_tasks

    def run(self) -> Report:
        """All of it; whatever fails becomes a row."""
        engine: list[Row] = []
        if self._options.is_interpreted:
            self._interpret()
            engine = interpreted_engine(self._engine_tasks)
        else:
            self._clocks["before"] = read_clocks()
            self._check()
            self._time()
            engine = self._run_engine()
            self._clocks["after"] = read_clocks()
        missing = [
            Row(kernel=name, case="", status="failed", note="no case in tests/gpu")
            for name in files_without_case()
        ]
        order = [self._rows[title] for title in self._cases]
        return Report(
            rows=[*missing, *engine, *order],
            card=self._card.facts if self._card else {"name": "no card", **versions()},
            roofs=self._card.roofs if self._card else None,
            clocks=self._clocks,
            seconds=self._budget.spent_s(),
        )

    def _interpret(self) -> None:
        place = interpreted_place()
        for title, case in self._cases.items():
            self._keep(title, check_case(case, place))

    def _check(self) -> None:
        """Every case against float64; also fills the caches of the compilers."""
        kept_s = self._kept_s(speed=True, engine=True)
        limits = Limits(
            num_lanes=max(1, min(_MOST_LANES, len(self._cases), os.cpu_count() or 1)),
            task_s=_TASK_S,
            left_s=lambda: self._budget.left_s(kept_s=kept_s),
        )
        for title, outcome in self._lanes(list(self._cases), check_worker, limits):
            case = self._cases[title]
            if isinstance(outcome, Lost):
                outcome = _lost_row(case.kernel, case.name, outcome)
            self._keep(title, outcome)

    def _time(self) -> None:
        """The roofs, then each case that has a size to be timed and is not wrong."""
        speeds = {
            title: case
            for title, case in self._cases.items()
            if isinstance(case, Speed) and not self._rows[title].is_wrong
        }
        kept_s = self._kept_s(engine=True)
        limits = Limits(
            num_lanes=1,
            task_s=_TASK_S,
            left_s=lambda: self._budget.left_s(kept_s=kept_s),
        )
        if not speeds and not self._engine_tasks:
            return
        for title, outcome in self._lanes([ROOFS, *speeds], speed_worker, limits):
            if title == ROOFS:
                self._keep_card(outcome)
            else:
                self._keep_time(title, speeds[title], outcome)

    def _run_engine(self) -> list[Row]:
        limits = Limits(
            num_lanes=1,
            task_s=_KEPT_FOR_ENGINE_S,
            left_s=lambda: self._budget.left_s(kept_s=_KEPT_FOR_REPORT_S),
        )
        names = {task.name: task for task in self._engine_tasks}
        rows: list[Row] = []
        for name, outcome in self._lanes(list(names), engine_worker, limits):
            if isinstance(outcome, Lost):
                found = [_lost_row(ENGINE, name, outcome)]
            else:
                found = names[name].rows(outcome, self._card.roofs if self._card else None)
            for row in found:
                self._tell(row)
            rows += found
        return rows

    def _keep_card(self, outcome: Any) -> None:
        if isinstance(outcome, Card):
            self._card = outcome
            self._clocks["under load"] = dict(outcome.clocks)
            self._say(f"{outcome.facts['name']}: {outcome.roofs}")
        else:
            self._say(f"roofs: {outcome.reason if isinstance(outcome, Lost) else outcome}")

    def _keep_time(self, title: str, case: Speed, outcome: Any) -> None:
        row = self._rows[title]
        if isinstance(outcome, Measured) and self._card is not None:
            added = timed(
                row, outcome.times, outcome.work, self._card.roofs, case.aim, outcome.rivals_us
            )
            row = replace(row, **added)
        elif isinstance(outcome, Lost) and not outcome.was_started:
            row = replace(row, note=_joined(row.note, f"not timed: {_LATE}"))
        else:
            why = outcome.reason if isinstance(outcome, Lost) else outcome
            if isinstance(outcome, Measured):
                why = "the roofs are unknown"
            row = replace(row, status="failed", note=_joined(row.note, f"not timed: {why}"))
        self._keep(title, row)

    def _keep(self, title: str, row: Row) -> None:
        self._rows[title] = row
        self._tell(row)

    def _tell(self, row: Row) -> None:
        time_us = "" if row.time_us is None else f", {row.time_us:.1f} us"
        note = f" ({row.note})" if row.note else ""
        self._say(
            f"{self._budget.spent_s():5.0f} s  {row.status:8}"
            f" {row.kernel}: {row.case}{time_us}{note}"
        )

    def _kept_s(self, *, speed: bool = False, engine: bool = False) -> float:
        """Seconds for what comes later."""
        has_speeds = any(isinstance(case, Speed) for case in self._cases.values())
        return (
            _KEPT_FOR_REPORT_S
            + _KEPT_FOR_SPEED_S * (speed and has_speeds)
            + _KEPT_FOR_ENGINE_S * (engine and bool(self._engine_tasks))
        )


def has_card() -> bool:
    """Whether torch finds a CUDA device; asked of another process, as this one uses none."""
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _lost_row(kernel: str, name: str, lost: Lost) -> Row:
    if not lost.was_started:
        return Row(kernel=kernel, case=name, status="not run", note=lost.reason)
    return Row(kernel=kernel, case=name, status="failed", note=lost.reason)


def _joined(*notes: str) -> str:
    return "; ".join(filter(None, notes))
