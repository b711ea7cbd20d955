"""Whether a waiting request may start now.  Counts pages; takes none.

What a request may still generate is estimated as `decode_reserve` of the tokens it has left;
when that proves too low, retraction makes room.  A request that was cut back must find room for
its whole need, so that it is not cut back again at once; where that is far off, for a stretch
that doubles with each time, so that its returns stay few and nobody waits for room it never uses.
"""

from __future__ import annotations

from scheduler_svc.core.request import Request
from scheduler_svc.core.state import SchedulerState

MOST_TOKENS_EXPECTED = 1024
"""Whoever names no max_tokens gets the model's limit, and will hardly use it."""

RESUME_STRETCH_TOKENS = 256
"""Half the room that a request cut back once must find, where it has more than that left."""


def promised_pages(state: SchedulerState) -> int:
    """Pages beyond those they hold that everything running is expected to need."""
    return sum(expected_pages(state, request) for request in state.running.values())


def expected_pages(state: SchedulerState, request: Request) -> int:
    """Pages beyond those it holds that a request is expected to need, whole pages each."""
    growth = int(state.config.decode_reserve * min(request.num_left, MOST_TOKENS_EXPECTED))
    return _missing_pages(state, request, max(0, growth))


def fits(state: SchedulerState, promised: int, request: Request) -> bool:
    """Whether `request`, whose prefix is attached, may start beside those that run."""
    available = state.kv.num_available_pages
    if not state.running:
        return _missing_pages(state, request, 0) <= available
    if request.is_resuming:
        stretch = RESUME_STRETCH_TOKENS << min(request.num_retractions, 16)
        # The token sampled last needs no slot.
        need = _missing_pages(state, request, max(0, min(request.num_left - 1, stretch)))
    else:
        need = expected_pages(state, request)
    return need + promised <= available


def _missing_pages(state: SchedulerState, request: Request, growth: int) -> int:
    return max(0, state.kv.num_pages(request.num_tokens + growth) - len(request.pages))
