"""How long answers get, learned from those that ended.  Knows numbers, no requests.

Answers cut by max_tokens, or cancelled, are known only to be at least so long.  Taking them for
whole would teach that answers are short, leaving them out that hardly any is long; the estimator
that takes them for what they are is Kaplan and Meier's (1958): at each length where answers end,
the share still going on shrinks by the ended ones' part of those that got so far.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

MOST_LENGTHS = 512
"""Answers remembered; the oldest go first."""

LEAST_LENGTHS = 32
"""Answers before anything is said."""

LENGTHS_BETWEEN_FITS = 16
"""A table costs more than an answer, so it is made anew every few."""

_ROUNDING = 1e-9


class OutputLengths:
    """A quantile of the length of an answer, given how long it is already."""

    def __init__(self, quantile: float) -> None:
        self._quantile = quantile
        self._latest: deque[int] = deque()
        self._sorted: list[int] = []
        """Length times two, and one more if it was cut: who ends at a length leaves before who
        is cut at it."""
        self._num_since_fit = 0
        self.ends: list[int] = []
        """Ascending lengths, as of the last fit."""
        self.expected: list[int] = [0]
        """[len(ends) + 1]: length that `quantile` of those do not exceed that outlived so many
        of `ends`; 0 where too many were cut to tell, and past the longest."""

    @property
    def is_known(self) -> bool:
        """Whether enough answers ended to say anything."""
        return len(self.ends) > 0

    def tune(self, quantile: float) -> None:
        """Another quantile of the same answers."""
        if quantile != self._quantile:
            self._quantile = quantile
            self._fit()

    def note(self, length: int, *, is_cut: bool) -> None:
        """An answer ended at `length` tokens, by itself or cut."""
        mark = 2 * length + is_cut
        self._latest.append(mark)
        insort(self._sorted, mark)
        if len(self._latest) > MOST_LENGTHS:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]
        self._num_since_fit += 1
        if self._num_since_fit >= LENGTHS_BETWEEN_FITS:
            self._fit()

    def _fit(self) -> None:
        num_lengths = len(self._sorted)
        if num_lengths < LEAST_LENGTHS:
            return
        self._num_since_fit = 0
        self.ends = [mark >> 1 for mark in self._sorted]
        share, alive = 1.0, [1.0]
        """alive[i]: share that outlived the first i of `ends`."""
        for i, mark in enumerate(self._sorted):
            if not mark & 1:
                share *= 1.0 - 1.0 / (num_lengths - i)
            alive.append(share)
        expected, end = [], 0
        for i in range(num_lengths + 1):
            end = max(end, i)
            most_alive = alive[i] * (1.0 - self._quantile) + _ROUNDING
            while end < num_lengths and alive[end + 1] > most_alive:
                end += 1
            expected.append(self.ends[end] if end < num_lengths else 0)
        self.expected = expected
