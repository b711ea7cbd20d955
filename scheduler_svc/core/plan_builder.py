"""Collects the columns of one batch plan.  Decides nothing."""

from __future__ import annotations

from array import array

from protos.plan import NOT_SCORED, TOKEN_FROM_STEP_BEFORE, BatchPlan, NewRow, Remap
from scheduler_svc.core.in_flight import PlanInFlight, PlannedRow
from scheduler_svc.core.request import Request
from scheduler_svc.core.speculation import note_drafts
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.stems import Arrangement, taken
from scheduler_svc.core.step_time import pairs_of

MOST_NEW_ROW_BYTES = 16 << 20
"""What new rows may take of a plan, give or take one of them, as it must fit a message: cached
prefixes, contexts where the sampler needs them, and grammars, some of a megabyte and more."""

COMPILE_WEIGHT = 16
"""So many times its bytes weighs a grammar that no row before it in the plan has: the worker may
have to compile it while all others wait, which takes half a second for a megabyte and a half.  So
a plan has one of those at most, and as many small ones as come."""

_ID_BYTES = 4


class PlanBuilder:
    """Turns "these tokens of this request" into columns, and books them as computed."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._decodes: list[Request] = []
        self._planned: list[PlannedRow] = []
        self._rows: array[int] = array("i")
        self._prefix_lens: array[int] = array("i")
        self._extend_lens: array[int] = array("i")
        self._samples = bytearray()
        self._input_ids: array[int] = array("i")
        self._out_slots: array[int] = array("i")
        self._next_ids: array[int] = array("i")
        """Of the first inputs, as far as the last that is scored."""
        self._new_rows: list[NewRow] = []
        self._arrangement: Arrangement | None = None
        self._num_new_row_bytes = 0
        self._grammars: dict[str, None] = {}
        """Of new rows."""
        self.num_prefill_tokens = 0
        self._num_prefill_pairs = 0
        """Of prompts, so far."""
        self._num_verified_tokens = self._num_drafts = 0

    @property
    def is_empty(self) -> bool:
        """Nothing was added."""
        return not (self._decodes or self._planned)

    @property
    def may_bind(self) -> bool:
        """Whether the plan has room for one more row that the worker does not know yet."""
        return self._num_new_row_bytes < MOST_NEW_ROW_BYTES

    def add_decodes(self, requests: list[Request], slots: array[int]) -> None:
        """One token for each stream; `slots` [n] is where its KV goes, its pages are in place.

        Must come before `add`.  This loop runs for every token that is served: it does what must be
        done a row and nothing else.
        """
        assert not self._planned
        rows, prefix_lens, input_ids = [], [], []
        step_id = self._state.next_step_id
        for request in requests:
            computed = request.num_computed
            rows.append(request.row)
            prefix_lens.append(computed)
            input_ids.append(TOKEN_FROM_STEP_BEFORE if request.num_pending else request.tokens[-1])
            request.num_computed = computed + 1
            request.num_unacked += 1
            request.num_pending += 1
            request.last_step_id = step_id
        num_rows = len(requests)
        self._decodes = requests
        self._rows.extend(rows)
        self._prefix_lens.extend(prefix_lens)
        self._extend_lens.extend(_ONES[:num_rows] if num_rows <= len(_ONES) else [1] * num_rows)
        self._samples += b"\1" * num_rows
        self._input_ids.extend(input_ids)
        self._out_slots.extend(slots)
        if self._state.stems is not None:
            self._arrange(self._state.stems.arrange(requests, self._state.decoding.values()))
        self._state.counters.computed_tokens += num_rows
        self._state.ledger.note_decodes(requests)

    def add(self, request: Request, num_tokens: int) -> None:
        """Computes the next `num_tokens` of a prompt, whose pages are in place."""
        start, end = request.num_computed, request.num_computed + num_tokens
        assert 0 < num_tokens <= request.num_owed, (num_tokens, request.num_owed)
        samples = end == request.num_tokens and request.generates
        if not request.is_bound:
            self._bind(request, start)
        self._rows.append(request.row)
        self._prefix_lens.append(start)
        self._extend_lens.append(num_tokens)
        self._samples.append(samples)
        self._input_ids.extend(request.tokens[start:end])
        self._out_slots.extend(self._state.kv.slots(request, start, end))
        num_scored = self._score(request, start, end) if request.num_unscored else 0
        self._planned.append(PlannedRow(request, num_tokens, samples, None, num_scored))
        self.num_prefill_tokens += num_tokens
        self._num_prefill_pairs += pairs_of(num_tokens, start)
        request.num_computed = end
        request.num_unacked += num_tokens
        request.num_pending += samples
        request.last_step_id = self._state.next_step_id
        self._count(request, start, end)
        if samples:
            self._state.begin_decoding(request)

    def add_drafts(self, request: Request, drafts: array[int]) -> None:
        """The next token of a stream, all of whose tokens are known, and guesses at those behind
        it, booked as if they were right; pages are in place."""
        assert not request.num_pending
        assert request.num_owed == 1
        start, num_tokens = request.num_computed, 1 + len(drafts)
        self._rows.append(request.row)
        self._prefix_lens.append(start)
        self._extend_lens.append(num_tokens)
        self._samples.append(num_tokens)
        self._input_ids.append(request.tokens[-1])
        self._input_ids.extend(drafts)
        self._out_slots.extend(self._state.kv.slots(request, start, start + num_tokens))
        self._planned.append(PlannedRow(request, num_tokens, num_tokens, drafts))
        self._num_verified_tokens += num_tokens
        self._num_drafts += len(drafts)
        request.num_computed = start + num_tokens
        request.num_unacked += num_tokens
        request.num_pending += num_tokens
        request.last_step_id = self._state.next_step_id
        self._state.ledger.note_decodes([request])
        note_drafts(self._state, request, len(drafts))

    def _score(self, request: Request, start: int, end: int) -> int:
        """Asks for the log probabilities of what follows positions [start, end) of a prompt, added
        last; of how many tokens."""
        first, last = max(start, request.num_scored), min(end, request.num_prompt - 1)
        if first >= last:
            return 0
        at = len(self._input_ids) - (end - first)
        self._next_ids.extend(_not_scored(at - len(self._next_ids)))
        self._next_ids.extend(request.tokens[first + 1 : last + 1])
        return last - first

    def build(self) -> BatchPlan:
        """The plan, booked as in flight."""
        state, size = self._state, self._state.config.page_size
        if self._next_ids:
            self._next_ids.extend(_not_scored(len(self._input_ids) - len(self._next_ids)))
        # Of all that hold a row: one that admission cut back just now may still be in this plan.
        remaps = tuple(
            Remap(
                row=request.row,
                start=first_page * size,
                slots=state.kv.slots(request, first_page * size, (first_page + num_pages) * size),
            )
            for request, first_page, num_pages in state.remaps
        )
        arranged = self._arrangement
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
            next_ids=self._next_ids,
            stems=arranged.stems if arranged else array("i"),
        )
        state.remaps = []
        state.freed_rows = array("i")
        state.in_flight.append(
            PlanInFlight(
                plan.step_id,
                self._decodes,
                self._planned,
                self.num_prefill_tokens,
                self._num_prefill_pairs,
                self._num_verified_tokens,
                self._num_drafts,
                sum(row.num_scored for row in self._planned),
                None if state.in_flight else state.now_ns,
                arranged.entries if arranged else None,
            )
        )
        state.next_step_id += 1
        state.counters.steps += 1
        state.estimate.note_step()
        return plan

    def _arrange(self, arrangement: Arrangement | None) -> None:
        """Lists the streams, which are all there is so far, in another order."""
        self._arrangement = arrangement
        if arrangement is not None:
            entries = arrangement.entries
            self._rows = taken(self._rows, entries)
            self._prefix_lens = taken(self._prefix_lens, entries)
            self._input_ids = taken(self._input_ids, entries)
            self._out_slots = taken(self._out_slots, entries)

    def _bind(self, request: Request, start: int) -> None:
        """The worker sees the row for the first time."""
        sampling = request.submission.sampling
        request.is_bound = True
        new = NewRow(
            row=request.row,
            prefix_slots=self._state.kv.slots(request, 0, start),
            sampling=sampling,
            num_prompt=request.num_prompt,
            context_ids=request.tokens[:] if sampling.needs_context else array("i"),
            suppressed_ids=self._suppressed(request) if sampling.min_tokens else (),
        )
        self._new_rows.append(new)
        self._num_new_row_bytes += _ID_BYTES * (len(new.prefix_slots) + len(new.context_ids))
        if sampling.grammar:
            self._num_new_row_bytes += self._weight_of(sampling.grammar)

    def _weight_of(self, grammar: str) -> int:
        num_bytes = len(grammar) if grammar.isascii() else len(grammar.encode())
        if grammar in self._grammars:
            return num_bytes
        self._grammars[grammar] = None
        return COMPILE_WEIGHT * num_bytes

    def _suppressed(self, request: Request) -> tuple[int, ...]:
        return tuple(sorted(request.stop_ids))

    def _count(self, request: Request, start: int, end: int) -> None:
        again = max(0, min(end, request.most_computed) - start)
        counts = self._state.ledger.of(request.submission.tenant)
        for books in (self._state.counters, counts):
            books.computed_tokens += end - start
            books.recomputed_tokens += again
        if request.is_preheat:
            self._state.counters.preheated_tokens += end - start


def _not_scored(num_inputs: int) -> array[int]:
    return array("i", [NOT_SCORED]) * num_inputs


_ONES = array("i", [1]) * 4096
