"""Tasks on processes of their own, so that one that hangs, dies or breaks its card harms no other.

A lane is a process that does one task after the other.  After an illegal access a process can use
its card no more: the worker says so, and the lane gets a fresh process.  Knows names of tasks and
what comes back; no kernels.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

Worker = Callable[[str], tuple[Any, bool]]
"""A task's result, which can be pickled, and whether the process is of no more use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Instead of a result."""

    reason: str
    was_started: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How many at once, and how long."""

    num_lanes: int
    task_s: float
    """A task that takes longer is given up, and its process ended."""
    left_s: Callable[[], float]
    """What remains for all; at 0 what runs is ended and the rest not started."""
    now_s: Callable[[], float] = time.monotonic


class _Lane:
    """A process, and what it does now."""

    def __init__(self, make_worker: Callable[[], Worker]) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self.connection: Connection = ours
        self._process = context.Process(target=_serve, args=(make_worker, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self.task: str | None = None
        self.started_s = 0.0

    def begin(self, task: str, now_s: float) -> None:
        """Hands the process a task; it notices when it is free."""
        self.task, self.started_s = task, now_s
        self.connection.send(task)

    def end(self) -> int | None:
        """Ends the process; its exit status."""
        self.connection.close()
        self._process.kill()
        self._process.join(10)
        return self._process.exitcode

    def exit_status(self) -> int | None:
        """Of a process that ended by itself."""
        self._process.join(10)
        return self._process.exitcode


def run_in_lanes(
    tasks: Sequence[str], make_worker: Callable[[], Worker], limits: Limits
) -> Iterator[tuple[str, Any]]:
    """Each task with its result, or with Lost, as they come.

    make_worker: called once in each process, which may take long; a function of a module.
    """
    waiting = list(reversed(tasks))
    lanes: list[_Lane] = []
    try:
        while waiting and len(lanes) < limits.num_lanes and limits.left_s() > 0:
            lanes.append(_started(make_worker, waiting.pop(), limits.now_s()))
        while lanes:
            for lane, outcome, is_usable in _finished(lanes, limits):
                assert lane.task is not None
                yield lane.task, outcome
                lane.task = None
                more = bool(waiting) and limits.left_s() > 0
                if more and is_usable:
                    lane.begin(waiting.pop(), limits.now_s())
                    continue
                lane.end()
                lanes.remove(lane)
                if more:
                    lanes.append(_started(make_worker, waiting.pop(), limits.now_s()))
    finally:
        for lane in lanes:
            lane.end()
    for task in reversed(waiting):
        yield task, Lost(reason="time", was_started=False)


def _started(make_worker: Callable[[], Worker], task: str, now_s: float) -> _Lane:
    lane = _Lane(make_worker)
    lane.begin(task, now_s)
    return lane


def _finished(lanes: Sequence[_Lane], limits: Limits) -> list[tuple[_Lane, Any, bool]]:
    """Lanes whose task ended in one way or another, with what came of it and their usefulness."""
    ready = wait([lane.connection for lane in lanes], timeout=0.2)
    found: list[tuple[_Lane, Any, bool]] = []
    is_late = limits.left_s() <= 0
    for lane in lanes:
        if lane.connection in ready:
            found.append((lane, *_received(lane)))
        elif limits.now_s() - lane.started_s > limits.task_s:
            found.append((lane, Lost(reason=f"took more than {limits.task_s:.0f} s"), False))
        elif is_late:
            found.append((lane, Lost(reason="time", was_started=False), False))
    return found


def _received(lane: _Lane) -> tuple[Any, bool]:
    try:
        result, is_broken = lane.connection.recv()
    except (EOFError, OSError):
        return Lost(reason=f"the process ended with status {lane.exit_status()}"), False
    return result, not is_broken


def _serve(make_worker: Callable[[], Worker], connection: Connection) -> None:
    """What a lane's process does until it is ended."""
    try:
        worker = make_worker()
        while True:
            connection.send(worker(connection.recv()))
    except (EOFError, OSError):  # the other side is gone
        return
