"""Times on a card by its own events, with nothing of the inputs in the second-level cache.

Before each timed run a room much larger than the cache is read, once or more often: reading leaves
no lines that must be written back while the clock runs, and while the card reads, the host puts the
whole run into the queue, so that launching costs nothing between the two events.  How it is done is
that of Triton's `do_bench`; reading instead of writing, and the lead of the host, are ours.

The arithmetic needs no card and is tested without one.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

_LEAST_RUNS, _MOST_RUNS = 7, 200
_LEAD = 1.5
"""How much longer than the host's launching the card is kept busy before it."""
_MOST_LEADS = 64
_LEAST_ROOM = 256 << 20
"""Bytes that are read before each run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Of many runs, in microseconds."""

    median_us: float
    low_us: float
    """A tenth of the runs are faster."""
    high_us: float
    """A tenth are slower."""
    num_runs: int


class Stopwatch(Protocol):
    """Times something that runs on a device."""

    def times(self, run: Callable[[], object]) -> Times:
        """Of many runs, each on a cold cache."""
        ...


def summary(samples_us: Sequence[float]) -> Times:
    """Median and the deciles at both ends, by nearest rank.

    Raises:
        ValueError: there is no sample.
    """
    if not samples_us:
        raise ValueError("no run was timed")
    ordered = sorted(samples_us)

    def rank(share: float) -> float:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return Times(
        median_us=statistics.median(ordered),
        low_us=rank(0.1),
        high_us=rank(0.9),
        num_runs=len(ordered),
    )


def num_runs(one_us: float, seconds: float) -> int:
    """How many runs of this length fit, within bounds that make a median worth something."""
    fitting = int(seconds * 1e6 / max(one_us, 1.0))
    return max(_LEAST_RUNS, min(_MOST_RUNS, fitting))


def num_leads(launch_us: float, read_us: float) -> int:
    """How often the room is read, so that the host is done launching before the card is reading."""
    return max(1, min(_MOST_LEADS, math.ceil(_LEAD * launch_us / max(read_us, 1.0))))


class CardStopwatch:
    """See Stopwatch.  On the current CUDA device and stream."""

    def __init__(self, device: torch.device, *, seconds: float = 0.3) -> None:
        """seconds: spent on the timed runs of one thing, about."""
        self._seconds = seconds
        cache = int(torch.cuda.get_device_properties(device).L2_cache_size)
        num_bytes = max(8 * cache, _LEAST_ROOM)
        self._room = torch.zeros(num_bytes // 4, dtype=torch.float32, device=device)
        self._sum = torch.empty((), dtype=torch.float32, device=device)
        self._read()
        self._read_us = summary([self._between(lambda: None, self._read) for _ in range(5)])

    def times(self, run: Callable[[], object]) -> Times:
        """See Stopwatch."""
        run()  # compiles, and allocates what it allocates each time
        launch_us = min(_host_us(run) for _ in range(3))
        leads = num_leads(launch_us, self._read_us.median_us)
        lead_us = leads * self._read_us.median_us

        def lead() -> None:
            for _ in range(leads):
                self._read()

        one_us = self._between(lead, run)
        pairs = [_events() for _ in range(num_runs(one_us + lead_us, self._seconds))]
        for begin, end in pairs:
            lead()
            begin.record()
            run()
            end.record()
        torch.cuda.synchronize()
        return summary([begin.elapsed_time(end) * 1e3 for begin, end in pairs])

    def _between(self, lead: Callable[[], object], run: Callable[[], object]) -> float:
        """Microseconds of one run behind a lead."""
        begin, end = _events()
        lead()
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) * 1e3

    def _read(self) -> None:
        torch.sum(self._room, dim=0, out=self._sum)


def _events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


def _host_us(run: Callable[[], object]) -> float:
    """How long the host takes to put a run into an empty queue."""
    torch.cuda.synchronize()
    started_ns = time.perf_counter_ns()
    run()
    launched_ns = time.perf_counter_ns()
    torch.cuda.synchronize()
    return (launched_ns - started_ns) / 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Seconds that everything together may take, counted from `started_s`."""

    seconds: float
    started_s: float
    now_s: Callable[[], float] = time.monotonic

    def left_s(self, *, kept_s: float = 0.0) -> float:
        """What is left when `kept_s` is kept for what comes later; not below 0."""
        return max(0.0, self.seconds - kept_s - self.spent_s())

    def spent_s(self) -> float:
        """Since the start."""
        return self.now_s() - self.started_s
