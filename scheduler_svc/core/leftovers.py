"""What stays cached of a request that leaves: of a victim by `retraction_keep`, of a turn its tail.

Called by the state alone, when the request has nothing in flight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler_svc.core.request import Request

if TYPE_CHECKING:
    from scheduler_svc.core.state import SchedulerState


def release_retracted(state: SchedulerState, request: Request) -> None:
    """What it found cached, or others had computed meanwhile, stays; of the rest, by
    `retraction_keep`:
    partial: what streams lack now is freed, from its tail, and the rest is evicted after what
    nobody waits for; all: nothing is freed; none: all of it."""
    end = state.kv.release(request)
    if end is None:
        return
    num_matched = (request.cached_tokens or 0) // state.config.page_size
    num_own = max(0, end.num_pages - max(num_matched, request.num_found_pages))
    keep = state.config.retraction_keep
    if keep == "none":
        state.tree.drop_tail(end.node, num_own)
    elif keep == "partial":
        path = end.node.path()
        missing = state.num_wanted_pages() - state.pool.num_free
        state.tree.drop_tail(end.node, min(max(0, missing), num_own))
        request.kept = state.pins.mark(path, request.submission.tenant)


def release_ended(state: SchedulerState, request: Request) -> None:
    """All that it computed stays; the tail of a session is evicted last."""
    state.kv.release(request)
    keep_tail(state, request)


def keep_tail(state: SchedulerState, request: Request) -> None:
    """Marks what is cached of an ended request's tokens, if its session ends with it."""
    state.sessions.keep_tail(request, state.config.page_size, state.pins)
