"""Lets waiting requests in, one by one, while they fit.  Computes nothing for them.

Whoever does not fit is not passed over: nobody behind may take its room.  Twins of a running
request are the exception, as they wait in their own interest, and tenants at their cap, who have
had their share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from scheduler_svc.core.facts import Facts
from scheduler_svc.core.messages import Ending, Output, PinLevel
from scheduler_svc.core.page_need import missing_pages, resume_need_tokens
from scheduler_svc.core.reliever import Reliever, end_at_cap, end_pool_full
from scheduler_svc.core.request import Request, State
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.verdict import Verdict
from scheduler_svc.core.views import WaitingReason

MOST_HELD_A_STEP = 256
"""Twins found waiting in one step, so that a thousand that come at once hold up no stream."""


class Admitter:
    """One step's admissions."""

    def __init__(self, state: SchedulerState, facts: Facts, reliever: Reliever) -> None:
        self._state = state
        self._kv = state.kv
        self._facts = facts
        self._reliever = reliever
        self._num_held = 0
        self._may_cut_back = False
        """The candidate's tenant is guaranteed the room: others are cut back for it."""
        self.outputs: list[Output] = []
        """Endings of those that need not or cannot run."""

    def admitted(self, budget: Callable[[], int]) -> Iterator[Request]:
        """Yields each request that was admitted, for the caller to give it its first tokens."""
        state = self._state
        state.verdict, state.capped = None, {}
        if not state.free_rows:
            state.waiting.take_in(self._facts)
            state.verdict = Verdict("", WaitingReason.NO_ROW)
            return
        for request in self._candidates():
            if self._step_is_full(request, budget()):
                return
            if self._is_held_or_ended(request):
                if self._num_held == MOST_HELD_A_STEP:
                    return
                continue
            if not self._admit_one(request):
                return
            if request.state is State.RUNNING:
                yield request
                self._facts.promise.add(request)

    def _candidates(self) -> Iterator[Request]:
        waiting = self._state.waiting
        if self._state.config.tenants:
            self._may_cut_back = True
            yield from waiting.entitled(self._facts)
            self._may_cut_back = False
        yield from waiting.candidates(self._facts)

    def _step_is_full(self, request: Request, budget: int) -> bool:
        state = self._state
        if request.is_preheat and len(state.free_rows) == 1 and state.num_rows > 1:
            # One row stays free for a request that may come while preheats are computed.
            state.verdict = Verdict(request.request_id, WaitingReason.PREHEAT)
        elif not state.free_rows:
            state.verdict = Verdict(request.request_id, WaitingReason.NO_ROW)
        elif budget <= 0:
            state.verdict = Verdict(request.request_id, WaitingReason.NO_BUDGET)
        return state.verdict is not None

    def _is_held_or_ended(self, request: Request) -> bool:
        """Twins wait for their leader, capped tenants for themselves; the hopeless end."""
        state = self._state
        deadline_ns = request.submission.deadline_ns
        if deadline_ns is not None and not request.num_outputs:
            needed_ns = self._facts.time_to_first_token_ns(request)
            if needed_ns > deadline_ns - state.now_ns:
                self.outputs.append(infeasible(state, request, needed_ns))
                return True
        return self._is_twin(request) or self._is_above_cap(request)

    def _is_twin(self, request: Request) -> bool:
        state = self._state
        if request.num_unscored:
            return False  # it computes its prompt itself, whatever is cached
        found = state.twins.leader_of(request, self._facts.cached_tokens(request))
        if found is None:
            return False
        leader, num_shared = found
        # Preheats and those that ran before are not held: they come up again in each step.
        if not request.is_preheat and not request.admitted_tick:
            if request.events[-1].name != "twin_held":  # once, however many lead it
                request.note(state.now_ns, "twin_held", f"{num_shared} tokens shared")
            state.waiting.hold(request, leader.request_id, num_shared)
            self._num_held += 1
        return True

    def _is_above_cap(self, request: Request) -> bool:
        tenant = request.submission.tenant
        if tenant not in self._state.config.tenants:
            return False
        size = self._kv.page_size
        growth = resume_need_tokens(request) if request.is_resuming else 0
        # What it computed itself before it was cut back is charged to its tenant again.
        found = request.cached_tokens
        cached = (self._facts.cached_tokens(request) if found is None else found) // size
        needed = self._kv.num_pages(request.num_tokens + growth) - cached
        held, cap = self._facts.held_pages(tenant), self._facts.cap_pages(tenant)
        if held + needed <= cap or cap == self._state.pool.num_pages:
            return False
        if held:
            self._state.capped[tenant] = None
            return True
        if self._kv.num_pages(request.num_tokens) - cached <= cap:
            return False
        self.outputs.append(end_at_cap(self._state, request, cap))  # alone, and too large for ever
        return True

    def _admit_one(self, request: Request) -> bool:
        """Admits a request, or ends it; False when it must wait."""
        state = self._state
        # Asked first: others may be cut back for it now, and it comes next.
        may_wait = bool(
            state.num_running or state.leaving or state.in_flight or state.pool.num_in_flight
        )
        self._kv.attach(request)
        is_warm = request.is_preheat and not request.num_to_prefill(self._kv.page_size)
        # A hard pin takes what is cached, and so promised to those that run, out of their reach.
        if is_warm and (request.submission.pin is not PinLevel.HARD or self._fits(request)):
            self.outputs.append(state.end_warm_preheat(request))
            return True
        if not is_warm and self._fits(request):
            state.admit(request)
            return True
        self._kv.detach(request)
        if may_wait:
            return False
        # Nobody runs, so nothing can become free: it grew this far, or pins are in its way.
        self.outputs.append(end_pool_full(state, request))
        return True

    def _fits(self, request: Request) -> bool:
        state, promise = self._state, self._facts.promise
        if not state.num_running:
            return missing_pages(request, 0, self._kv) <= self._kv.num_available_pages
        ahead = promise.pages_ahead(request)
        available = self._kv.num_available_pages - state.headroom_pages
        if ahead <= available:
            return True
        reason = WaitingReason.RETURNING if request.is_resuming else WaitingReason.NO_SLOTS
        state.verdict = Verdict(request.request_id, reason)
        state.full_since = (state.num_changes, state.next_step_id)
        if self._may_cut_back:
            self._reliever.make_room_for(ahead - available)
        return False


def infeasible(state: SchedulerState, request: Request, needed_ns: int) -> Output:
    """Ends a request whose deadline comes before its first token can."""
    deadline_ns = request.submission.deadline_ns
    assert deadline_ns is not None
    left_ms = max(0, deadline_ns - state.now_ns) // 1_000_000
    message = (
        f"the deadline is in {left_ms} ms, and computing its prompt alone takes about "
        f"{needed_ns // 1_000_000} ms"
    )
    return state.end(request, Ending.DEADLINE, message=message)
