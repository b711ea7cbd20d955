"""Collects the columns of one batch plan.  Decides nothing."""

from __future__ import annotations

from array import array

from protos.plan import TOKEN_FROM_STEP_BEFORE, BatchPlan, NewRow, Remap
from scheduler_svc.core.request import Request, State
from scheduler_svc.core.state import PlanInFlight, PlannedRow, SchedulerState


class PlanBuilder:
    """Turns "these tokens of this request" into columns, and books them as computed."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._planned: list[PlannedRow] = []
        self._rows: array[int] = array("i")
        self._prefix_lens: array[int] = array("i")
        self._extend_lens: array[int] = array("i")
        self._samples = bytearray()
        self._input_ids: array[int] = array("i")
        self._out_slots: array[int] = array("i")
        self._new_rows: list[NewRow] = []

    @property
    def is_empty(self) -> bool:
        """Nothing was added."""
        return not self._planned

    def add(self, request: Request, num_tokens: int) -> None:
        """Computes the next `num_tokens` tokens of a request, whose pages are in place."""
        kv, counters = self._state.kv, self._state.counters
        start, end = request.num_computed, request.num_computed + num_tokens
        assert 0 < num_tokens <= request.num_owed, (num_tokens, request.num_owed)
        samples = end == request.num_tokens and not request.submission.preheat
        if not request.is_bound:
            request.is_bound = True
            sampling = request.submission.sampling
            prefix_slots = kv.slots(request, 0, start)
            self._new_rows.append(
                NewRow(row=request.row, prefix_slots=prefix_slots, sampling=sampling)
            )
        self._rows.append(request.row)
        self._prefix_lens.append(start)
        self._extend_lens.append(num_tokens)
        self._samples.append(samples)
        self._input_ids.extend(request.tokens[start:end])
        if end > len(request.tokens):
            assert num_tokens == 1, "only the newest token can be unknown"
            self._input_ids.append(TOKEN_FROM_STEP_BEFORE)
        self._out_slots.extend(kv.slots(request, start, end))
        self._planned.append(PlannedRow(request, num_tokens, samples))
        request.num_computed = end
        request.num_pending += samples
        request.num_in_flight += 1
        counters.computed_tokens += num_tokens
        counters.recomputed_tokens += max(0, min(end, request.most_computed) - start)
        if request.submission.preheat:
            counters.preheated_tokens += num_tokens
        request.most_computed = max(request.most_computed, end)

    def build(self) -> BatchPlan:
        """The plan, booked as in flight."""
        state, size = self._state, self._state.config.page_size
        remaps = tuple(
            Remap(
                row=request.row,
                start=first_page * size,
                slots=state.kv.slots(request, first_page * size, (first_page + num_pages) * size),
            )
            for request, row, first_page, num_pages in state.remaps
            if request.state is State.RUNNING and request.row == row
        )
        plan = BatchPlan(
            step_id=state.next_step_id,
            rows=self._rows,
            prefix_lens=self._prefix_lens,
            extend_lens=self._extend_lens,
            samples=bytes(self._samples),
            input_ids=self._input_ids,
            out_slots=self._out_slots,
            new_rows=tuple(self._new_rows),
            remaps=remaps,
            freed_rows=state.freed_rows,
        )
        state.remaps = []
        state.freed_rows = array("i")
        state.in_flight.append(PlanInFlight(plan.step_id, self._planned))
        state.next_step_id += 1
        state.counters.steps += 1
        return plan
