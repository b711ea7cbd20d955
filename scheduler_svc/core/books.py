"""What the pool is worth over time: samples of its use, once a second, for the last minute.

Rates since the start are counters (core.counters); these two need a window.
"""

from __future__ import annotations

from collections import deque
from math import sqrt
from typing import NamedTuple

SAMPLE_EVERY_NS = 1_000_000_000
WINDOW = 60


class Sample(NamedTuple):
    """The pool at one moment."""

    at_ns: int
    used_share: float
    freed_slots: int


class Books:
    """The window; `is_due` says when a sample is wanted."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=WINDOW)
        self._next_ns: int | None = None

    def is_due(self, now_ns: int) -> bool:
        """Whether a second has passed since the last sample."""
        return self._next_ns is None or now_ns >= self._next_ns

    def sample(self, now_ns: int, used_share: float, freed_slots: int) -> None:
        """Notes the pool as it is."""
        self._next_ns = now_ns + SAMPLE_EVERY_NS
        self._samples.append(Sample(now_ns, used_share, freed_slots))

    def turnover(self, now_ns: int, freed_slots: int, num_slots: int) -> float:
        """Slots freed per second / slots, since the oldest sample of the window."""
        if not self._samples or now_ns <= self._samples[0].at_ns:
            return 0.0
        oldest = self._samples[0]
        seconds = (now_ns - oldest.at_ns) / 1e9
        return (freed_slots - oldest.freed_slots) / seconds / num_slots

    def volatility(self) -> float:
        """Standard deviation of the used share over the window."""
        if len(self._samples) < 2:
            return 0.0
        shares = [sample.used_share for sample in self._samples]
        mean = sum(shares) / len(shares)
        variance = sum((share - mean) ** 2 for share in shares) / len(shares)
        return sqrt(variance)
