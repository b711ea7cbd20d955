"""Decides one step: who decodes, who prefills how much, who is admitted.

The order is the policy: every running stream gets its token first, then the oldest prompt that
is part-way gets its chunk (so it always advances), then waiting requests are admitted, then the
other prompts share what is left, shortest first, and preheats take the rest.  A long prompt thus
never stops running streams, and never keeps a short one waiting for its end.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial
from itertools import islice
from math import ceil

from protos.plan import BatchPlan
from scheduler_svc.core.admitter import Admitter
from scheduler_svc.core.chunking import (
    MOST_SCORED_TOKENS,
    chunk_of,
    is_ahead_of_time,
    order_prefills,
    prefill_budget,
    share_of_first,
)
from scheduler_svc.core.facts import Facts
from scheduler_svc.core.messages import Output
from scheduler_svc.core.plan_builder import PlanBuilder
from scheduler_svc.core.reliever import Reliever
from scheduler_svc.core.request import Request, State
from scheduler_svc.core.speculation import deal, is_possible, must_wait, num_spare_pages
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.step_time import MIN_PREFILL_TOKENS

LOOK_AGAIN_STEPS = 8
"""While nobody comes or goes, a full pool is looked at again after so many steps: what streams are
expected to need shrinks as they near their ends."""

LOOK_AT_WAITING = 64
"""Of those that wait, so many of the oldest are looked at for prompts shorter than one part-way."""


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
        self._price_of_scored: Callable[[], float] = lambda: 1.0
        """Tokens of the budget that one takes which is scored, at least 1: it costs more time."""
        self._scored_budget = MOST_SCORED_TOKENS
        """Of those, tokens of prompts that are scored."""
        self._drafted: list[tuple[Request, array[int]]] = []
        """Streams with drafts; their next token has its page."""
        self.outputs: list[Output] = []
        """Endings that planning brought about."""

    def plan(self) -> BatchPlan | None:
        """The next plan, or None when there is nothing to compute now."""
        state = self._state
        if must_wait(state):
            return None
        if state.in_flight and is_ahead_of_time(state.in_flight[-1], state.step_time):
            return None
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
        prefills: list[Request] = []
        preheats: list[Request] = []
        for request in state.prefilling.values():
            (preheats if request.is_preheat else prefills).append(request)
        ordered = order_prefills(prefills)
        num_before = ordered[0].num_computed if ordered else 0
        budget = partial(
            prefill_budget,
            state.config,
            num_decodes,
            state.step_time,
            num_before=num_before,
            is_shared=len(prefills) + state.waiting.num_candidates > 1,
        )
        self._budget = most = budget()
        self._price_of_scored = lambda: most / max(1, budget(num_unscored=most))
        for request in ordered[:1]:
            wanted = self._wanted_by_shorter(request, ordered[1:])
            self._extend(request, share_of_first(self._budget, wanted))
        self._admit()
        for request in ordered[1:] + preheats:
            if request.state is State.RUNNING:  # a tenant below its guarantee may have cut it back
                self._extend(request)
        self._draft(num_decodes)

    def _decode(self) -> int:
        """Gives every stream that can grow its token; returns how many did."""
        requests = [
            request
            for request in self._state.decoding.values()
            if request.num_computed < request.end_tokens - 1
        ]
        if is_possible(self._state) and not self._state.in_flight:
            requests = self._set_drafted_apart(requests)
        if not requests:
            return len(self._drafted)
        if self._kv.page_size == 1:
            del requests[self._kv.num_available_pages :]
            self._builder.add_decodes(requests, self._kv.grow_each(requests))
            return len(requests) + len(self._drafted)
        return self._decode_by_pages(requests) + len(self._drafted)

    def _set_drafted_apart(self, requests: list[Request]) -> list[Request]:
        """Those without drafts; the others have room for their next token, and get the rest of the
        step when prompts have theirs."""
        self._drafted = []
        plain: list[Request] = []
        for request, num_drafts in zip(requests, deal(self._state, requests), strict=True):
            if num_drafts and self._kv.grow(request, request.num_computed + 1):
                assert request.drafter is not None
                self._drafted.append((request, request.drafter.drafts(num_drafts)))
            else:
                plain.append(request)
        return plain

    def _draft(self, num_decodes: int) -> None:
        """Adds the streams that were set apart, with the drafts that fit beside everything else."""
        room = self._state.config.max_batch_tokens - num_decodes - self._builder.num_prefill_tokens
        for request, drafts in self._drafted:
            if request.state is not State.RUNNING:
                continue
            pages = len(request.pages) + num_spare_pages(self._state)
            most = min(room, pages * self._kv.page_size - request.num_computed - 1)
            fitting = drafts[: max(0, most)]
            grown = self._kv.grow(request, request.num_computed + 1 + len(fitting))
            assert grown, request.request_id
            self._builder.add_drafts(request, fitting)
            room -= len(fitting)
        self._drafted = []

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
        self._kv.grow_each(growing)
        for request in fitting:
            position = request.num_computed
            slots.append(request.pages[position // size] * size + position % size)
        self._builder.add_decodes(fitting, array("i", slots))
        return len(fitting)

    def _wanted_by_shorter(self, first: Request, others: list[Request]) -> int:
        """Tokens of this step for prompts, part-way or waiting, that owe less than this one."""
        state, owed = self._state, first.num_owed
        shorter = [request for request in others if request.num_owed < owed]
        if self._may_admit():
            waiting = (
                request
                for request in state.waiting.shorter_prompts(owed, LOOK_AT_WAITING)
                if request.submission.tenant not in state.capped
            )
            shorter += islice(waiting, len(state.free_rows))
        return sum(min(request.num_owed, chunk_of(state.config, request)) for request in shorter)

    def _extend(self, request: Request, share: int | None = None) -> None:
        """Gives a prompt as much of the step as it may have."""
        if not (request.is_bound or self._builder.may_bind):
            return
        owed = request.num_to_prefill(self._kv.page_size)
        budget = self._budget if share is None else min(share, self._budget)
        num_tokens, price = min(owed, chunk_of(self._state.config, request), budget), 1.0
        if request.num_unscored and num_tokens > 0:
            price = self._price_of_scored()
            affordable = max(min(MIN_PREFILL_TOKENS, budget), int(budget / price))
            num_tokens = min(num_tokens, self._scored_budget, affordable)
        if num_tokens > 1 and not self._kv.grow(request, request.num_computed + num_tokens):
            room = (len(request.pages) + self._kv.num_available_pages) * self._kv.page_size
            num_tokens = min(num_tokens, room - request.num_computed)
        if num_tokens < 1 or not self._kv.grow(request, request.num_computed + num_tokens):
            return
        if request.num_unscored:
            self._scored_budget -= num_tokens
        self._builder.add(request, num_tokens)
        self._budget -= ceil(num_tokens * price)

    def _admit(self) -> None:
        state = self._state
        if not len(state.waiting):
            state.verdict = None
            return
        if not self._may_admit():
            return
        admitter = Admitter(state, self._facts, self._reliever)
        for request in admitter.admitted(self._budget_of_new):
            self._extend(request)
        self.outputs += admitter.outputs

    def _budget_of_new(self) -> int:
        """Tokens of this step for whoever is admitted next."""
        return self._budget if self._builder.may_bind else 0

    def _may_admit(self) -> bool:
        """Who did not fit a few steps ago does not now, unless somebody left: streams only grow."""
        num_changes, step_id = self._state.full_since
        since = self._state.next_step_id - step_id
        return num_changes != self._state.num_changes or since >= LOOK_AGAIN_STEPS

    def _unblock(self) -> bool:
        """Nothing could be planned: if nothing is in flight either, somebody must give way."""
        size, running = self._kv.page_size, self._state.running.values()
        if self._state.in_flight or not any(request.num_wanted(size) for request in running):
            return False
        self.outputs += self._reliever.unblock()
        return True
