"""The most pages that requests need together, given in what order they end.  Learns nothing.

The idea is LightLLM's: requests end at different times and give back what they hold, so the need
is highest at one of these moments, just before somebody ends.  Counted here in whole pages beyond
those now held.  Every request is taken to start decoding now and to run `min(num_left,
MOST_TOKENS_EXPECTED)` steps.  One that ends gives back what it alone holds, as the tree knows;
prompts that several share come back with the last of them at the earliest, and count as never.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from scheduler_svc.core.page_need import (
    MOST_TOKENS_EXPECTED,
    Pages,
    missing_pages,
    resume_need_tokens,
)
from scheduler_svc.core.request import Request

Column = NDArray[np.int64]


class PeakPromise:
    """See admission.Promise."""

    def __init__(self, running: Iterable[Request], kv: Pages) -> None:
        self._kv = kv
        self._preheats = 0
        """Pages that preheats lack: they end soon, and what they computed stays."""
        self._order: _FinishOrder | None = None
        # [n] of each: steps until a request ends, its tokens, pages held, pages it gives back.
        steps_left = array("q")
        num_tokens_of = array("q")
        held = array("q")
        returning = array("q")
        most, held_alone = MOST_TOKENS_EXPECTED, kv.num_pages_held_alone
        for request in running:
            num_tokens = len(request.tokens) + request.num_pending
            left = request.end_tokens - num_tokens
            if left < 1 and request.submission.preheat:
                self._preheats += missing_pages(request, 0, kv)
                continue
            num_tokens_of.append(num_tokens)
            held.append(len(request.pages))
            if left < most:
                steps_left.append(left if left > 0 else 1)
                returning.append(held_alone(request))
            else:
                steps_left.append(most)
                returning.append(0)  # nobody outlives it, so nobody asks
        self._steps_left, self._num_tokens = steps_left, num_tokens_of
        self._held, self._returning = held, returning

    def pages_ahead(self, candidate: Request | None) -> int:
        """See admission.Promise."""
        if self._order is None:
            self._order = _FinishOrder(
                self._steps_left,
                self._num_tokens,
                self._held,
                self._returning,
                page_size=self._kv.page_size,
            )
        if candidate is None:
            return self._preheats + self._order.peak()
        if candidate.submission.preheat:
            missing = missing_pages(candidate, 0, self._kv)
            return self._preheats + missing + self._order.peak()
        steps_left = min(max(1, candidate.num_left), MOST_TOKENS_EXPECTED)
        if candidate.is_resuming:
            steps_left = max(steps_left, resume_need_tokens(candidate) + 1)
        return self._preheats + self._order.peak_with(
            steps_left,
            candidate.num_tokens,
            len(candidate.pages),
            self._kv.num_pages_held_alone(candidate),
        )

    def add(self, request: Request) -> None:
        """See admission.Promise."""
        if request.submission.preheat:
            self._preheats += missing_pages(request, 0, self._kv)
            return
        self._steps_left.append(min(max(1, request.num_left), MOST_TOKENS_EXPECTED))
        self._num_tokens.append(request.num_tokens)
        self._held.append(len(request.pages))
        self._returning.append(self._kv.num_pages_held_alone(request))
        self._order = None


class _FinishOrder:
    """Requests sorted by when they end, the last one first."""

    def __init__(
        self,
        steps_left: array[int],
        num_tokens: array[int],
        held: array[int],
        returning: array[int],
        *,
        page_size: int,
    ) -> None:
        ends = np.array(steps_left)
        order = np.argsort(-ends, kind="stable")
        self._page_size = page_size
        self._ends: Column = ends[order]
        # After `end` steps a request fills (offset + end) // page_size pages: its tokens and all
        # that it sampled but the last, which needs no slot.
        self._offsets: Column = np.array(num_tokens)[order] + (page_size - 2)
        self._held: Column = np.array(held)[order]
        self._returning: Column = np.array(returning)[order]
        self._ahead = self._pages_at_ends()

    def peak(self) -> int:
        """Pages beyond those held at the worst of the ends, at least none."""
        return int(self._ahead.max(initial=0))

    def peak_with(self, end: int, num_tokens: int, held: int, returning: int) -> int:
        """The same with one request more, which ends after `end` steps."""
        size = self._page_size
        offset = num_tokens + size - 2
        # At the ends of others it has grown so far, or has ended and gives back what it held.
        growth = (offset + self._ends) // size - held
        others = self._ahead + np.where(self._ends <= end, growth, -returning)
        alive = self._ends >= end
        own = np.where(alive, (self._offsets + end) // size - self._held, -self._returning)
        at_own_end = int(own.sum()) + (offset + end) // size - held
        return max(0, at_own_end, int(others.max(initial=0)))

    def _pages_at_ends(self) -> Column:
        """[n] pages beyond those now held just before each request ends.

        At the end of request k, in this order, those before it are alive, those behind it gone.
        Of equals, the sum at the last is the right one, and the highest.
        """
        size = self._page_size
        num_alive = np.arange(1, len(self._ends) + 1)
        if size == 1:
            grown = np.cumsum(self._offsets - self._held) + num_alive * self._ends
        else:
            pages, filled = np.divmod(self._offsets, size)
            steps, rest = np.divmod(self._ends, size)
            grown = np.cumsum(pages - self._held) + num_alive * steps
            grown += self._num_carries(filled, rest)
        returned = np.cumsum(self._returning)
        total = int(returned[-1]) if len(returned) else 0
        ahead: Column = grown - (total - returned)
        return ahead

    def _num_carries(self, filled: Column, rest: Column) -> Column:
        """[n] how many of the first k + 1 have `filled` + rest[k] slots, a page or more."""
        size = self._page_size
        reached = filled >= np.arange(size + 1)[:, None]
        num_reached = reached.cumsum(axis=1)
        carries: Column = num_reached[size - rest, np.arange(len(filled))]
        return carries
