"""Makes room when the pool runs full: who is cut back, and who must end.  Plans nothing."""

from __future__ import annotations

from math import ceil

from scheduler_svc.core.facts import Facts
from scheduler_svc.core.messages import Ending, Output
from scheduler_svc.core.request import Request
from scheduler_svc.core.retraction import RETRACTION_POLICIES, choose_victim
from scheduler_svc.core.state import SchedulerState


class Reliever:
    """Cuts back until those that stay can go on."""

    def __init__(self, state: SchedulerState, facts: Facts) -> None:
        self._state = state
        self._facts = facts
        self._policy = RETRACTION_POLICIES[state.config.retraction_policy]

    def make_room(self) -> list[Output]:
        """Cuts requests back until every stream can grow, or can once plans are answered.

        Above the high watermark it goes on down to the low one, so that it need not come back at
        the next token.
        """
        state = self._state
        while state.num_running > state.num_rows:  # the limit was lowered while they ran
            self._cut_back("fewer rows than requests that run")
        at_most = len(state.decoding)  # every stream a page
        if state.num_used_pages + at_most <= state.high_pages and not state.config.tenants:
            return []
        outputs = self._hold_caps() if state.config.tenants else []
        if self._excess(state.high_pages) <= 0:
            return outputs
        while state.num_running > 1 and self._excess(state.low_pages) > 0:
            self._cut_back("the pool is full")
            state.estimate.note_retraction()
        # The last one may use all there is.
        if self._excess(state.pool.num_pages) > 0 and not state.in_flight:
            outputs += self._end_last()
        return outputs

    def unblock(self) -> list[Output]:
        """Nothing moves and nothing is in flight: one gives way to the others, or the last ends."""
        if self._state.num_running > 1:
            self._cut_back("nothing else could move")
            return []
        return self._end_last()

    def make_room_for(self, missing_pages: int) -> None:
        """For a tenant below its guarantee: cuts back those that are above theirs."""
        missing_pages -= self.returning_pages()
        while missing_pages > 0:
            above = [
                request
                for request in self._state.running.values()
                if self._facts.tenant_excess(request.submission.tenant) > 0
            ]
            if not above:
                return
            policy = RETRACTION_POLICIES["tenant"]
            victim = choose_victim(policy, above, self._facts)
            missing_pages -= max(1, self._state.kv.num_pages_held_alone(victim))
            self._retract(victim, "its tenant is above its share and another below")

    def returning_pages(self) -> int:
        """Pages that come back without further ado when the plans in flight are answered."""
        state = self._state
        return state.pool.num_in_flight + sum(map(state.kv.num_pages_held_alone, state.leaving))

    # --- inside -------------------------------------------------------------------------------

    def _excess(self, limit_pages: int) -> int:
        """Pages in use above a limit, after the next token of every stream."""
        used = self._state.num_used_pages + self._state.num_wanted_pages()
        return used - limit_pages - self.returning_pages()

    def _cut_back(self, why: str) -> None:
        running = list(self._state.running.values())
        if self._state.config.tenants:
            # What is guaranteed is not taken back while others hold more than their share.
            above = [r for r in running if self._facts.tenant_excess(r.submission.tenant) > 0]
            running = above or running
        self._retract(choose_victim(self._policy, running, self._facts), why)

    def _retract(self, victim: Request, why: str) -> None:
        score = ", ".join(format(part, "g") for part in self._policy(victim, self._facts))
        by = self._state.config.retraction_policy
        self._state.retract(victim, f"{why}; by {by}, its score ({score})")
        self._facts.forget_held()

    def _hold_caps(self) -> list[Output]:
        """Cuts a tenant back that has grown beyond its cap; its last request ends."""
        outputs: list[Output] = []
        for tenant in self._state.config.tenants:
            cap_pages = self._facts.cap_pages(tenant)
            if self._facts.held_pages(tenant) <= cap_pages:
                continue
            low_pages = ceil(self._state.config.low_watermark * cap_pages)
            while self._facts.held_pages(tenant) > low_pages:
                own = [r for r in self._state.running.values() if r.submission.tenant == tenant]
                if len(own) == 1:
                    break
                self._retract(choose_victim(self._policy, own, self._facts), "tenant's cap")
            if self._facts.held_pages(tenant) > cap_pages:
                outputs.append(end_at_cap(self._state, own[0], cap_pages))
                self._facts.forget_held()
        return outputs

    def _end_last(self) -> list[Output]:
        """It is alone and has no room: it ends with what it has, instead of looping."""
        return [
            end_pool_full(self._state, request)
            for request in list(self._state.running.values())[:1]
        ]


def end_at_cap(state: SchedulerState, request: Request, cap_pages: int) -> Output:
    """Ends the only request of a tenant, which is larger than the tenant may be."""
    message = (
        f"tenant {request.submission.tenant!r} may hold {cap_pages * state.kv.page_size} token "
        f"slots, and this request of {len(request.tokens)} tokens needs more"
    )
    return state.end(request, Ending.POOL_FULL, message=message)


def end_pool_full(state: SchedulerState, request: Request) -> Output:
    """Ends a request that the pool cannot hold, saying the numbers."""
    pinned = state.pins.num_hard_pages() * state.kv.page_size
    beside = f", {pinned} of them pinned" if pinned else ""
    message = (
        f"the pool of {state.num_slots} token slots{beside} is full: the next of "
        f"{len(request.tokens)} tokens cannot be added"
    )
    return state.end(request, Ending.POOL_FULL, message=message)
