"""Decides one step: who decodes, who prefills how much, who is admitted, who is cut back.

The order is the policy: every running stream gets its token first, then the oldest prompt that
is part-way gets its chunk (so it always advances), then waiting requests are admitted, then the
other prompts share what is left, shortest first, and preheats take the rest.  A long prompt thus
never stops running streams, and never keeps a short one waiting for its end.
"""

from __future__ import annotations

from collections.abc import Callable

from protos.plan import BatchPlan
from scheduler_svc.core.admission import expected_pages, fits, promised_pages
from scheduler_svc.core.messages import Ending, Output
from scheduler_svc.core.plan_builder import PlanBuilder
from scheduler_svc.core.request import Request
from scheduler_svc.core.retraction import RETRACTION_POLICIES
from scheduler_svc.core.state import SchedulerState

PEEK_INTERVAL_STEPS = 16
"""A long queue is looked up in the tree a little in every step, not all of it in each."""

MOST_PREFIX_SLOTS = 4 << 20
"""Slots of cached prefixes that one plan names for new rows, give or take one request: a plan
must fit a message."""


class Planner:
    """Plans one step; a new one is made for each."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._kv = state.kv
        self._builder = PlanBuilder(state)
        self._budget = state.config.max_batch_tokens
        self._chunk = min(state.config.chunk_size, state.config.max_batch_tokens)
        self._choose_victim = RETRACTION_POLICIES[state.config.retraction_policy]
        self.outputs: list[Output] = []
        """Endings that planning brought about."""

    def plan(self) -> BatchPlan | None:
        """The next plan, or None when there is nothing to compute now."""
        while True:
            num_endings = len(self.outputs)
            self._fill()
            if not self._builder.is_empty:
                return self._builder.build()
            if not self._unblock() and len(self.outputs) == num_endings:
                return None

    def _fill(self) -> None:
        self._make_room()
        running = list(self._state.running.values())
        preheats = [request for request in running if request.submission.preheat]
        requests = [request for request in running if not request.submission.preheat]
        for request in requests:
            if self._debt(request) == 1:
                self._extend(request)
        prefills = [request for request in requests if self._debt(request) > 1]
        for request in prefills[:1]:
            self._extend(request)
        self._admit()
        for request in sorted(prefills[1:], key=self._debt) + preheats:
            self._extend(request)

    def _debt(self, request: Request) -> int:
        """Tokens a running request wants computed now; 0 when it only waits for results."""
        if request.submission.preheat:
            size = self._state.config.page_size
            return request.num_prompt - request.num_prompt % size - request.num_computed
        return request.num_owed if request.num_left > 0 else 0

    def _extend(self, request: Request) -> None:
        """Gives a running request as much of the step as it may have."""
        num_tokens = min(self._debt(request), self._chunk, self._budget)
        if num_tokens > 1 and not self._kv.grow(request, request.num_computed + num_tokens):
            room = (len(request.pages) + self._kv.num_available_pages) * self._kv.page_size
            num_tokens = min(num_tokens, room - request.num_computed)
        if num_tokens < 1 or not self._kv.grow(request, request.num_computed + num_tokens):
            return
        self._builder.add(request, num_tokens)
        self._budget -= num_tokens

    # --- admission ----------------------------------------------------------------------------

    def _admit(self) -> None:
        state = self._state
        limit = len(state.free_rows)
        if not limit or not self._budget or not len(state.waiting):
            return
        promised = promised_pages(state)
        prefix_slots = 0
        for request in state.waiting.candidates(self, limit):
            # Whoever does not fit is not passed over: nobody behind may take its room.
            if not self._budget or not self._admit_one(request, promised):
                return
            if request.request_id in state.running:
                promised += expected_pages(state, request)
                prefix_slots += request.num_computed
            if prefix_slots > MOST_PREFIX_SLOTS:
                return

    def _admit_one(self, request: Request, promised: int) -> bool:
        """Admits a request, or ends it; False when it must wait."""
        state = self._state
        if self._kv.num_pages(request.num_tokens) > state.pool.num_pages:
            self._end_pool_full(request)  # it grew this far, lost its slots, and cannot come back
            return True
        self._kv.attach(request)
        if not self._debt(request) and request.submission.preheat:
            state.note_first_admission(request)
            self._kv.detach(request)
            self.outputs.append(state.end(request, Ending.PREHEATED))
            return True
        if not fits(state, promised, request):
            self._kv.detach(request)
            return False
        state.admit(request)
        self._extend(request)
        return True

    def cached_tokens(self, request: Request) -> int:
        """How much of a waiting request the tree holds, looked up anew every few steps."""
        step_id = self._state.next_step_id
        if step_id >= request.peek_again_at:
            pages = self._state.tree.peek(self._kv.match_key(request))
            request.peeked_tokens = pages * self._kv.page_size
            spread = request.arrival % PEEK_INTERVAL_STEPS
            request.peek_again_at = step_id + PEEK_INTERVAL_STEPS + spread
        return request.peeked_tokens

    def num_passes(self, request: Request) -> int:
        """Requests admitted since a waiting one arrived."""
        return self._state.num_admitted - request.num_admitted_before

    # --- making room --------------------------------------------------------------------------

    def _make_room(self) -> None:
        """Cuts requests back until every decoding row can grow, or can once plans are answered."""
        growing = dict.fromkeys(filter(self._grows, self._state.running.values()))
        while True:
            missing = len(growing) - self._kv.num_available_pages
            if missing <= 0 or missing <= self._promised_pages():
                return
            cut = self._cut_back(self._grows)
            if cut is None:
                return
            growing.pop(cut, None)

    def _grows(self, request: Request) -> bool:
        """Whether a running row needs a page for its next token."""
        end = request.num_computed + 1
        return self._debt(request) == 1 and self._kv.num_pages(end) > len(request.pages)

    def _promised_pages(self) -> int:
        """Pages that come back without further ado when the plans in flight are answered."""
        returning = sum(map(self._kv.num_returning_pages, self._state.leaving))
        return returning + self._state.pool.num_in_flight

    def _cut_back(self, needs_room: Callable[[Request], bool]) -> Request | None:
        """Retracts one request, or ends the last one; None when only answers can help."""
        state = self._state
        running = list(state.running.values())
        if len(running) > 1:
            victim = self._choose_victim(running)
            state.retract(victim)
            return victim
        if state.in_flight or not running or not needs_room(running[0]):
            return None
        self._end_pool_full(running[0])
        return running[0]

    def _end_pool_full(self, request: Request) -> None:
        """It is alone and has no room: it ends with what it has, instead of looping."""
        message = (
            f"the pool of {self._state.num_slots} token slots is full: the next of "
            f"{len(request.tokens)} tokens cannot be added"
        )
        self.outputs.append(self._state.end(request, Ending.POOL_FULL, message=message))

    def _unblock(self) -> bool:
        """Nothing could be planned: if nothing is in flight either, somebody must give way."""
        state = self._state
        if state.in_flight or not any(map(self._debt, state.running.values())):
            return False
        return self._cut_back(lambda request: True) is not None
