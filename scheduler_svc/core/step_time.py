"""Predicts how long the worker takes for a step.  Learns from what steps took; reads no clock.

The model is linear: base + per_row * decoding rows + per_token * prompt tokens, none of them
negative.  It is fitted by least squares with exponential forgetting: the normal equations
are kept as running sums, each step weighing `FORGETTING` times what the next one does (recursive
least squares: Ljung, System Identification, 1999, chapter 11).  Where the data say nothing about
a coefficient, because nobody sent a prompt for a while, say, it keeps its last value: the fit is
drawn a little towards the fit before.
"""

from __future__ import annotations

from itertools import combinations
from math import ceil

MIN_PREFILL_TOKENS = 16
"""Prompts may always have so many tokens of a step, whatever is predicted: they must advance."""

FORGETTING = 0.99
"""The last hundred steps make up most of the fit."""

LEAST_STEPS = 8
"""Steps seen before anything is predicted."""

LEAST_STEPS_OF_KIND = 4
"""Of those with decoding rows, and of those with prompts, before either is predicted."""

STEPS_BETWEEN_FITS = 64
"""It is fitted when asked, and so often unasked, lest what it knew be forgotten before."""

MOST_SURPRISE = 8
"""A step that took more than so many times what was predicted counts as that many times: the
worker compiled something, or was stopped.  If it stays slow, the fit gets there all the same."""

_PULL = 1e-3
"""Weight of the fit before, in steps."""

# One unit of each is a usual amount, so that the sums have similar sizes.
_NS_PER_UNIT = 1e6
_ROWS_PER_UNIT = 64.0
_TOKENS_PER_UNIT = 512.0

_SUBSETS = tuple(subset for size in (3, 2, 1) for subset in combinations((0, 1, 2), size))

Vector = tuple[float, float, float]


class StepTimeModel:
    """Time of a step from its number of decoding rows and of prompt tokens."""

    __slots__ = ("_fit", "_is_stale", "_num_steps", "_num_with_rows", "_num_with_tokens", "_sums")

    def __init__(self) -> None:
        self._sums = (0.0,) * 9
        """[1, rows, tokens] times itself, upper triangle by rows, then times the duration."""
        self._fit: Vector = (0.0, 0.0, 0.0)
        """Units a step, a unit of rows, a unit of tokens."""
        self._is_stale = False
        self._num_steps = self._num_with_rows = self._num_with_tokens = 0

    def note(self, rows: int, prefill_tokens: int, forward_ns: int) -> None:
        """Learns from a step that was run; `forward_ns` of 0 says that nobody measured it."""
        if forward_ns <= 0:
            return
        x, y = rows / _ROWS_PER_UNIT, prefill_tokens / _TOKENS_PER_UNIT
        t = forward_ns / _NS_PER_UNIT
        if self._num_steps >= STEPS_BETWEEN_FITS:
            base, per_row, per_token = self._fit
            expected = base + per_row * x + per_token * y
            if t > MOST_SURPRISE * expected > 0.0:
                t = MOST_SURPRISE * expected
        n, sx, sy, sxx, sxy, syy, st, sxt, syt = self._sums
        keep = FORGETTING
        self._sums = (
            keep * n + 1.0,
            keep * sx + x,
            keep * sy + y,
            keep * sxx + x * x,
            keep * sxy + x * y,
            keep * syy + y * y,
            keep * st + t,
            keep * sxt + x * t,
            keep * syt + y * t,
        )
        self._num_steps += 1
        self._num_with_rows += rows > 0
        self._num_with_tokens += prefill_tokens > 0
        self._is_stale = True
        if self._num_steps % STEPS_BETWEEN_FITS == 0:
            self._solve()

    def predict_ns(self, rows: int, prefill_tokens: int) -> int | None:
        """How long such a step takes; None while too few like it were seen."""
        if self._num_steps < LEAST_STEPS:
            return None
        if rows > 0 and self._num_with_rows < LEAST_STEPS_OF_KIND:
            return None
        if prefill_tokens > 0 and self._num_with_tokens < LEAST_STEPS_OF_KIND:
            return None
        base, per_row, per_token = self._solve()
        units = base + per_row * rows / _ROWS_PER_UNIT
        units += per_token * prefill_tokens / _TOKENS_PER_UNIT
        return int(units * _NS_PER_UNIT)

    def most_prefill_tokens(self, rows: int, target_ns: int, most: int) -> int:
        """Most prompt tokens, up to `most`, with which a step stays below `target_ns`.

        At least MIN_PREFILL_TOKENS, or `most` where that is less; `most` while nothing is known.
        """
        least = min(MIN_PREFILL_TOKENS, most)
        without, with_most = self.predict_ns(rows, 0), self.predict_ns(rows, most)
        if without is None or with_most is None or with_most < target_ns:
            return most
        if without >= target_ns:
            return least
        # Here most > 0 and without < target <= with_most, so a token takes some time.
        base, per_row, per_token = self._solve()
        spare = target_ns / _NS_PER_UNIT - base - per_row * rows / _ROWS_PER_UNIT
        num_tokens = ceil(spare / per_token * _TOKENS_PER_UNIT) - 1
        return max(least, min(num_tokens, most))

    def prefill_ns(self, num_tokens: int, num_steps: int = 0) -> int | None:
        """What computing so many prompt tokens in so many steps takes at least; None while that
        is not known.

        Others in those steps make them longer, never shorter, so a deadline that is nearer than
        this cannot be met.
        """
        if self.predict_ns(0, num_tokens) is None:
            return None
        base, _, per_token = self._solve()
        return int((base * num_steps + per_token * num_tokens / _TOKENS_PER_UNIT) * _NS_PER_UNIT)

    def _solve(self) -> Vector:
        """The coefficients that fit what was seen best, none of them negative.

        Of three unknowns each may be zero or not: the best fit is the best of the fits of the
        subsets, and if all three come out positive no subset can be better.
        """
        if not self._is_stale:
            return self._fit
        n, sx, sy, sxx, sxy, syy, *right = self._sums
        left = ((n + _PULL, sx, sy), (sx, sxx + _PULL, sxy), (sy, sxy, syy + _PULL))
        pulled = [right[i] + _PULL * self._fit[i] for i in range(3)]
        best, least_error = (0.0, 0.0, 0.0), 0.0
        for subset in _SUBSETS:
            found = _solve_subset(left, pulled, subset)
            if min(found) < 0.0:
                continue
            # At its own optimum the error of a subset is a constant less this.
            error = -sum(found[i] * pulled[i] for i in subset)
            if error < least_error:
                best, least_error = found, error
            if len(subset) == 3:
                break
        self._fit, self._is_stale = best, False
        return best


def _solve_subset(left: tuple[Vector, ...], right: list[float], subset: tuple[int, ...]) -> Vector:
    """Solves the equations of some unknowns, the others being zero (Gauss, symmetric positive)."""
    rows = [[*(left[i][j] for j in subset), right[i]] for i in subset]
    size = len(subset)
    for i in range(size):
        for below in range(i + 1, size):
            factor = rows[below][i] / rows[i][i]
            for j in range(i, size + 1):
                rows[below][j] -= factor * rows[i][j]
    found = [0.0, 0.0, 0.0]
    for i in reversed(range(size)):
        known = sum(rows[i][j] * found[subset[j]] for j in range(i + 1, size))
        found[subset[i]] = (rows[i][size] - known) / rows[i][i]
    return found[0], found[1], found[2]
