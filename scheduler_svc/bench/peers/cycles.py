"""Drives a peer's prefix structure as `tree_figures` drives ours.  Knows no peer."""

from __future__ import annotations

from typing import Protocol

from scheduler_svc.bench.scale import Scale
from scheduler_svc.bench.stopwatch import Stopwatch, figures_us

MOST_CYCLES = 2000
"""Timed cycles of a peer that evicts: some take milliseconds each."""

_REST_CYCLES = 100
"""Cycles beyond the first eviction before the timing begins."""


class Prefixes(Protocol):
    """A peer's structure with its pool, new and empty."""

    num_evictions: int
    """Calls so far that had to evict; only its change from 0 matters."""

    def cycle(self, number: int, watch: Stopwatch, *, evicts: bool) -> None:
        """Matches, fills and releases sequence `number`, as one lap.  Where nothing is evicted,
        taking free memory may stay untimed."""
        ...


def match_insert(structures: list[Prefixes], scale: Scale) -> dict[str, float]:
    """µs to match and insert, one repetition for each structure given."""
    watches = []
    for structure in structures:
        watches.append(watch := Stopwatch())
        for number in range(scale.num_sequences):
            structure.cycle(number, watch, evicts=False)
    return figures_us(watches)


def steady_cycle(structure: Prefixes, scale: Scale) -> dict[str, float]:
    """µs to match, evict and insert, once the pool is full; one repetition."""
    number, rest = 0, _REST_CYCLES
    while rest:
        structure.cycle(number % scale.num_sequences, Stopwatch(), evicts=True)
        number += 1
        rest -= structure.num_evictions > 0
    watch = Stopwatch()
    for _ in range(min(MOST_CYCLES, scale.num_sequences)):
        structure.cycle(number % scale.num_sequences, watch, evicts=True)
        number += 1
    return figures_us([watch])
