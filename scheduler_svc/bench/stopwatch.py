"""Times short stretches of code as they would take on an idle machine, and says how idle it was.

A stretch during which the kernel gave the processor to somebody else measures somebody else.  Such
laps are left out and counted; a figure with many of them says little, and one that has nothing
else is made of them and says so.  What a hypervisor takes away, and what neighbors do to caches
and memory, cannot be seen from here.
"""

from __future__ import annotations

import gc
import resource
import statistics
from collections.abc import Sequence
from time import perf_counter_ns


class Stopwatch:
    """Laps, each of one or several stretches.

    Each stretch lies between `start` and `stop`; `lap` ends the lap.
    """

    def __init__(self) -> None:
        self.laps_ns: list[int] = []
        self.disturbed_ns: list[int] = []
        self._sum_ns = 0
        self._started_ns = 0
        self._num_switches = _num_switches()

    def start(self) -> None:
        """A stretch begins."""
        self._started_ns = perf_counter_ns()

    def stop(self) -> None:
        """A stretch ends."""
        self._sum_ns += perf_counter_ns() - self._started_ns

    def lap(self) -> None:
        """The stretches since the last lap are one."""
        num_switches = _num_switches()
        if num_switches == self._num_switches:
            self.laps_ns.append(self._sum_ns)
        else:
            self.disturbed_ns.append(self._sum_ns)
        self._sum_ns, self._num_switches = 0, _num_switches()


def settle() -> None:
    """As the service does when it is ready to serve: what lives now is not collected again.  What
    comes later is, and the collector stays on while it is measured."""
    gc.enable()
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def quantile_us(laps_ns: Sequence[int], fraction: float) -> float:
    """The lap that a share of all stays below, in µs."""
    ordered = sorted(laps_ns)
    return ordered[min(int(fraction * len(ordered)), len(ordered) - 1)] / 1000


def figures_us(watches: Sequence[Stopwatch]) -> dict[str, float]:
    """Mean, median, 99th percentile, as medians over repetitions, and the share of laps disturbed.

    Disturbed laps are left out, and so are repetitions of which nothing is left.  Where that is
    all of them the disturbed laps are the figures, and their share is 1.

    Raises:
        ValueError: there is no lap at all.
    """
    disturbed = [watch.disturbed_ns for watch in watches if watch.disturbed_ns]
    laps = [watch.laps_ns for watch in watches if watch.laps_ns]
    num_disturbed, num_left = sum(map(len, disturbed)), sum(map(len, laps))
    if not num_disturbed + num_left:
        raise ValueError("no lap was timed")
    laps = laps or disturbed
    return {
        "mean": _middle([statistics.fmean(lap) / 1000 for lap in laps]),
        "p50": _middle([quantile_us(lap, 0.50) for lap in laps]),
        "p99": _middle([quantile_us(lap, 0.99) for lap in laps]),
        "disturbed": round(num_disturbed / (num_disturbed + num_left), 4),
    }


def worse(figures: dict[str, dict[str, float]]) -> dict[str, float | dict[str, float]]:
    """The higher of each figure on top, and each setting below it by its name."""
    names = next(iter(figures.values()))
    return {name: max(f[name] for f in figures.values()) for name in names} | figures


def _middle(values: list[float]) -> float:
    return round(statistics.median(values), 2)


def _num_switches() -> int:
    """Times the kernel took the processor away from this thread."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
