"""What is counted when a request is admitted: hits of pins, and once of the tree and its session.

Called by the state alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler_svc.core.radix_node import PrefixKey
from scheduler_svc.core.request import Request

if TYPE_CHECKING:
    from scheduler_svc.core.state import SchedulerState


def note_admission(state: SchedulerState, request: Request) -> None:
    """Fixes `cached_tokens`, the first time; its prefix is attached."""
    assert request.lease is not None
    submission = request.submission
    if len(state.pins):
        # A match leaves the last token out; a pin of just this prompt is hit all the same.
        whole = PrefixKey.of(
            request.namespace, request.tokens, request.num_prompt, state.config.page_size
        )
        state.pins.hit(state.tree.find(whole) or request.lease.node, state.now_ns)
    if request.cached_tokens is not None:
        return
    request.cached_tokens = min(request.num_computed, request.num_prompt)
    state.counters.session_hits += state.sessions.begin_turn(request, state.now_ns)
    state.tree.count_hit(request.lease, submission.priority)
    state.ledger.admit(submission.tenant, request.num_owed)
    if not submission.preheat:
        counts = state.ledger.of(submission.tenant)
        for books in (state.counters, counts):
            books.prompt_tokens += request.num_prompt
            books.cached_tokens += request.cached_tokens
