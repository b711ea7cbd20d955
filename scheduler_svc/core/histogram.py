"""Counts by power of two.  Cheap enough for every page that is evicted."""

from __future__ import annotations

NUM_BUCKETS = 24


class Histogram:
    """Values from 0 up in buckets [0, 1), [1, 2), [2, 4) … and one without an end."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * NUM_BUCKETS
        self.total = 0.0
        """Sum of the values, each by its weight."""

    def note(self, value: int, weight: int = 1) -> None:
        """Counts a value `weight` times."""
        self.counts[min(value.bit_length(), NUM_BUCKETS - 1)] += weight
        self.total += value * weight

    @staticmethod
    def bounds() -> tuple[float, ...]:
        """Upper bounds of all buckets but the last."""
        return tuple(float(1 << exponent) for exponent in range(NUM_BUCKETS - 1))
