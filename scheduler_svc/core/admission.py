"""Whether a waiting request may start now.  Counts pages; takes none.

The estimate of what running requests may still need is `decode_reserve` of their remaining
tokens; when it proves too low, retraction makes room.  A request that was cut back once must
find room for its whole need, so that it is not cut back again at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scheduler_svc.core.request import Request
from scheduler_svc.core.state import SchedulerState


@dataclass(slots=True)
class AdmissionBooks:
    """Pages promised to those that run."""

    owed_pages: int = 0
    """For tokens that are known and not computed yet."""
    growth_tokens: int = 0
    """Tokens they may still generate."""

    def promise(self, state: SchedulerState, request: Request) -> None:
        """Counts one running request in."""
        self.owed_pages += max(0, state.kv.num_pages(request.num_tokens) - len(request.pages))
        self.growth_tokens += max(0, request.num_left)


def open_books(state: SchedulerState) -> AdmissionBooks:
    """The promises to everything that runs."""
    books = AdmissionBooks()
    for request in state.running.values():
        books.promise(state, request)
    return books


def fits(state: SchedulerState, books: AdmissionBooks, request: Request) -> bool:
    """Whether `request`, whose prefix is attached, may start beside those that run."""
    kv = state.kv
    available = kv.num_available_pages
    need = kv.num_pages(request.num_tokens) - len(request.pages)
    if not state.running:
        return need <= available
    growth_tokens = books.growth_tokens
    if request.is_resuming:
        # The token sampled last needs no slot.
        whole = request.num_tokens + max(0, request.num_left - 1)
        need = kv.num_pages(whole) - len(request.pages)
    else:
        growth_tokens += max(0, request.num_left)
    reserve = math.ceil(state.config.decode_reserve * growth_tokens / kv.page_size)
    return need + books.owed_pages + reserve <= available
