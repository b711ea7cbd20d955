"""Predicts how long the worker takes for a step.  Learns from what steps took; reads no clock.

The model is linear: base + per_row * decoding rows + per_token * prompt tokens + per_pair * pairs
+ per_scored * scored tokens, none of them negative, where a pair is a prompt token and a token it
attends to: late in a long prompt attention takes most of the time.  A draft counts as a row: it
goes through the head and attends to its context as one.  A token of a prompt that is scored goes
through the head, too, which no other but the prompt's last one does.
The model is fitted by least squares with exponential forgetting: the normal equations are kept as
running sums, each step weighing `FORGETTING` times what the next one does (recursive least squares:
Ljung, System Identification, 1999, chapter 11).  Where the data say nothing about a coefficient,
because nobody sent a prompt for a while, say, it keeps its last value: the fit is drawn a little
towards the fit before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import combinations, combinations_with_replacement

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

NEWEST_TURNAROUND = 1 / 16
"""Weight of the newest one in their average."""

_PULL = 1e-3
"""Weight of the fit before, in steps."""

# One unit of each is a usual amount, so that the sums have similar sizes.
_NS_PER_UNIT = 1e6
_ROWS_PER_UNIT = 64.0
_TOKENS_PER_UNIT = 512.0
_PAIRS_PER_UNIT = 512.0 * 1024.0
_SCORED_PER_UNIT = 256.0

_BASE, _PER_ROW, _PER_TOKEN, _PER_PAIR, _PER_SCORED = _COEFFICIENTS = range(5)
_PRODUCTS = tuple(combinations_with_replacement(_COEFFICIENTS, 2))
_SUBSETS = tuple(subset for size in (5, 4, 3, 2, 1) for subset in combinations(_COEFFICIENTS, size))
_UNSCORED_SUBSETS = tuple(subset for subset in _SUBSETS if _PER_SCORED not in subset)
"""Half as many to try where nobody asks for scores."""

Vector = tuple[float, ...]
"""One number a coefficient."""


def pairs_of(num_tokens: int, num_before: int) -> int:
    """Pairs of prompt tokens, each with itself and all before it, the first of them included."""
    return num_tokens * num_before + num_tokens * (num_tokens + 1) // 2


class StepTimeModel:
    """Time of a step from its number of decoding rows, of prompt tokens, of their pairs and of
    those that are scored."""

    __slots__ = (
        "_fit",
        "_has_scored",
        "_is_stale",
        "_num_steps",
        "_num_with_rows",
        "_num_with_tokens",
        "_sums",
        "turnaround_ns",
    )

    def __init__(self) -> None:
        self._sums = [0.0] * (len(_PRODUCTS) + len(_COEFFICIENTS))
        """[1, rows, tokens, pairs, scored] times itself, as in _PRODUCTS, then times the
        duration."""
        self._fit: Vector = (0.0,) * len(_COEFFICIENTS)
        """Units a step, a unit of rows, of tokens, of pairs, of scored ones."""
        self._is_stale = self._has_scored = False
        self._num_steps = self._num_with_rows = self._num_with_tokens = 0
        self.turnaround_ns = 0.0
        """Between a plan and its answer, beyond the step itself: what a step costs that is not
        sent while the one before is computed.  An average."""

    def note_turnaround(self, waited_ns: int, forward_ns: int) -> None:
        """Learns from a plan that was sent with nothing else in flight."""
        if forward_ns <= 0:
            return
        lost_ns = float(max(0, waited_ns - forward_ns))
        if self.turnaround_ns:
            lost_ns = self.turnaround_ns + (lost_ns - self.turnaround_ns) * NEWEST_TURNAROUND
        self.turnaround_ns = lost_ns

    def note(
        self, rows: int, prefill_tokens: int, forward_ns: int, pairs: int = 0, scored: int = 0
    ) -> None:
        """Learns from a step that was run; `forward_ns` of 0 says that nobody measured it."""
        if forward_ns <= 0:
            return
        x, t = _units(rows, prefill_tokens, pairs, scored), forward_ns / _NS_PER_UNIT
        if self._num_steps >= STEPS_BETWEEN_FITS:
            expected = _dot(self._fit, x)
            if t > MOST_SURPRISE * expected > 0.0:
                t = MOST_SURPRISE * expected
        new = [x[i] * x[j] for i, j in _PRODUCTS] + [each * t for each in x]
        self._sums = [FORGETTING * old + more for old, more in zip(self._sums, new, strict=True)]
        self._num_steps += 1
        self._num_with_rows += rows > 0
        self._num_with_tokens += prefill_tokens > 0
        self._has_scored |= scored > 0
        self._is_stale = True
        if self._num_steps % STEPS_BETWEEN_FITS == 0:
            self._solve()

    def predict_ns(
        self, rows: int, prefill_tokens: int, pairs: int = 0, scored: int = 0
    ) -> int | None:
        """How long such a step takes; None while too few like it were seen.  Before any prompt was
        scored that costs nothing more: better than knowing nothing of the step."""
        if self._num_steps < LEAST_STEPS:
            return None
        if rows > 0 and self._num_with_rows < LEAST_STEPS_OF_KIND:
            return None
        if prefill_tokens > 0 and self._num_with_tokens < LEAST_STEPS_OF_KIND:
            return None
        units = _units(rows, prefill_tokens, pairs, scored)
        return int(_dot(self._solve(), units) * _NS_PER_UNIT)

    def most_prefill_tokens(
        self, rows: int, target_ns: int, most: int, num_before: int = 0, num_unscored: int = 0
    ) -> int:
        """Most prompt tokens, up to `most`, with which a step stays below `target_ns`, if they
        stand behind so many others of their prompt, and up to `num_unscored` of them are scored.

        At least MIN_PREFILL_TOKENS, or `most` where that is less; `most` while nothing is known.
        """
        if self.predict_ns(rows, 0) is None or self.predict_ns(rows, most) is None:
            return most

        def with_prompt_ns(num_tokens: int) -> int:
            pairs, scored = pairs_of(num_tokens, num_before), min(num_tokens, num_unscored)
            return self.predict_ns(rows, num_tokens, pairs, scored) or 0

        # The time grows with the tokens: the first count that reaches the target is one too many.
        too_many = bisect_left(range(most + 1), target_ns, key=with_prompt_ns)
        return max(min(MIN_PREFILL_TOKENS, most), min(too_many - 1, most))

    def prefill_ns(self, num_tokens: int, num_steps: int = 0, num_scored: int = 0) -> int | None:
        """What computing so many prompt tokens in so many steps, and scoring some of them, takes at
        least; None while that is not known.

        Others in those steps make them longer, never shorter, so a deadline that is nearer than
        this cannot be met.
        """
        if self.predict_ns(0, num_tokens) is None:
            return None
        fit = self._solve()
        units = fit[_BASE] * num_steps + fit[_PER_TOKEN] * num_tokens / _TOKENS_PER_UNIT
        units += fit[_PER_SCORED] * num_scored / _SCORED_PER_UNIT
        return int(units * _NS_PER_UNIT)

    def _solve(self) -> Vector:
        """The coefficients that fit what was seen best, none of them negative.

        Each of the unknowns may be zero or not: the best fit is the best of the fits of the
        subsets, and if all come out positive no subset can be better.
        """
        if not self._is_stale:
            return self._fit
        size = len(_COEFFICIENTS)
        left = [[0.0] * size for _ in range(size)]
        for (i, j), total in zip(_PRODUCTS, self._sums, strict=False):
            left[i][j] = left[j][i] = total + (_PULL if i == j else 0.0)
        totals = self._sums[len(_PRODUCTS) :]
        pulled = [t + _PULL * before for t, before in zip(totals, self._fit, strict=True)]
        best, least_error = (0.0,) * size, 0.0
        subsets = _SUBSETS if self._has_scored else _UNSCORED_SUBSETS
        for subset in subsets:
            found = _solve_subset(left, pulled, subset)
            if min(found) < 0.0:
                continue
            # At its own optimum the error of a subset is a constant less this.
            error = -_dot(found, pulled)
            if error < least_error:
                best, least_error = found, error
            if subset is subsets[0]:
                break
        self._fit, self._is_stale = best, False
        return best


def _units(rows: int, prefill_tokens: int, pairs: int, scored: int) -> Vector:
    return (
        1.0,
        rows / _ROWS_PER_UNIT,
        prefill_tokens / _TOKENS_PER_UNIT,
        pairs / _PAIRS_PER_UNIT,
        scored / _SCORED_PER_UNIT,
    )


def _dot(a: Vector, b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def _solve_subset(left: list[list[float]], right: list[float], subset: tuple[int, ...]) -> Vector:
    """Solves the equations of some unknowns, the others being zero (Gauss, symmetric positive)."""
    rows = [[*(left[i][j] for j in subset), right[i]] for i in subset]
    size = len(subset)
    for i in range(size):
        for below in range(i + 1, size):
            factor = rows[below][i] / rows[i][i]
            for j in range(i, size + 1):
                rows[below][j] -= factor * rows[i][j]
    found = [0.0] * len(_COEFFICIENTS)
    for i in reversed(range(size)):
        known = sum(rows[i][j] * found[subset[j]] for j in range(i + 1, size))
        found[subset[i]] = (rows[i][size] - known) / rows[i][i]
    return tuple(found)
