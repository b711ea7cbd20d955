"""Decides one step: who decodes, who prefills how much, who is admitted.

The order is the policy: every running stream gets its token first, then the oldest prompt that
is part-way gets its chunk (so it always advances), then waiting requests are admitted, then the
other prompts share what is left, shortest first, and preheats take the rest.  A long prompt thus
never stops running streams, and never keeps a short one waiting for its end.
"""

from __future__ import annotations

from array import array

from protos.plan import BatchPlan
from scheduler_svc.core.admitter import Admitter
from scheduler_svc.core.chunking import chunk_of, order_prefills, prefill_budget
from scheduler_svc.core.facts import Facts
from scheduler_svc.core.messages import Output
from scheduler_svc.core.plan_builder import PlanBuilder
from scheduler_svc.core.reliever import Reliever
from scheduler_svc.core.request import Request, State
from scheduler_svc.core.state import SchedulerState

LOOK_AGAIN_STEPS = 8
"""While nobody comes or goes, a full pool is looked at again after so many steps: what streams are
expected to need shrinks as they near their ends."""


class Planner:
    """Plans one step; a new one is made for each."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._kv = state.kv
        self._builder = PlanBuilder(state)
        self._facts = Facts(state)
        self._reliever = Reliever(state, self._facts)
        self._budget = 0
        """Tokens that prompts may still take of this step."""
        self.outputs: list[Output] = []
        """Endings that planning brought about."""

    def plan(self) -> BatchPlan | None:
        """The next plan, or None when there is nothing to compute now."""
        while True:
            before = self._num_gone()
            self._facts.forget_held()
            self._fill()
            if not self._builder.is_empty:
                return self._builder.build()
            if not self._unblock() and self._num_gone() == before:
                return None

    def _num_gone(self) -> int:
        """Endings and retractions so far: as long as there are more, there may be room now."""
        return len(self.outputs) + self._state.counters.retractions

    def _fill(self) -> None:
        state = self._state
        self.outputs += self._reliever.make_room()
        num_decodes = self._decode()
        self._budget = prefill_budget(state.config, num_decodes, state.step_time)
        prefills: list[Request] = []
        preheats: list[Request] = []
        for request in state.prefilling.values():
            (preheats if request.is_preheat else prefills).append(request)
        ordered = order_prefills(prefills)
        for request in ordered[:1]:
            self._extend(request)
        self._admit()
        for request in ordered[1:] + preheats:
            if request.state is State.RUNNING:  # a tenant below its guarantee may have cut it back
                self._extend(request)

    def _decode(self) -> int:
        """Gives every stream that can grow its token; returns how many did."""
        requests = [
            request
            for request in self._state.decoding.values()
            if request.num_computed < request.end_tokens - 1
        ]
        if not requests:
            return 0
        if self._kv.page_size == 1:
            pages = self._kv.take(min(len(requests), self._kv.num_available_pages))
            del requests[len(pages) :]
            for request, page in zip(requests, pages, strict=True):
                request.pages.append(page)
            self._builder.add_decodes(requests, pages)
            return len(requests)
        return self._decode_by_pages(requests)

    def _decode_by_pages(self, requests: list[Request]) -> int:
        """The same where a page holds several tokens, so that few streams need one now."""
        size, room = self._kv.page_size, self._kv.num_available_pages
        fitting: list[Request] = []
        growing: list[Request] = []
        slots: list[int] = []
        for request in requests:
            if request.num_computed == len(request.pages) * size:
                if len(growing) == room:
                    continue
                growing.append(request)
            fitting.append(request)
        for request, page in zip(growing, self._kv.take(len(growing)), strict=True):
            request.pages.append(page)
        for request in fitting:
            position = request.num_computed
            slots.append(request.pages[position // size] * size + position % size)
        self._builder.add_decodes(fitting, array("i", slots))
        return len(fitting)

    def _extend(self, request: Request) -> None:
        """Gives a prompt as much of the step as it may have."""
        owed = request.num_to_prefill(self._kv.page_size)
        num_tokens = min(owed, chunk_of(self._state.config, request), self._budget)
        if num_tokens > 1 and not self._kv.grow(request, request.num_computed + num_tokens):
            room = (len(request.pages) + self._kv.num_available_pages) * self._kv.page_size
            num_tokens = min(num_tokens, room - request.num_computed)
        if num_tokens < 1 or not self._kv.grow(request, request.num_computed + num_tokens):
            return
        self._builder.add(request, num_tokens)
        self._budget -= num_tokens

    def _admit(self) -> None:
        state = self._state
        if not len(state.waiting):
            state.verdict = None
            return
        num_changes, step_id = state.full_since
        if num_changes == state.num_changes and state.next_step_id < step_id + LOOK_AGAIN_STEPS:
            return  # who did not fit then does not now: streams have only grown
        admitter = Admitter(state, self._facts, self._reliever)
        for request in admitter.admitted(lambda: self._budget):
            self._extend(request)
        self.outputs += admitter.outputs

    def _unblock(self) -> bool:
        """Nothing could be planned: if nothing is in flight either, somebody must give way."""
        size, running = self._kv.page_size, self._state.running.values()
        if self._state.in_flight or not any(request.num_wanted(size) for request in running):
            return False
        self.outputs += self._reliever.unblock()
        return True
