"""Which slots each row's tokens lie in, kept by the deltas of plans; the gate for every plan.

A plan is checked whole before its first effect: what comes out of `apply` may index tensors without
another look.  Not here: tensors, sampling arithmetic.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from gpu_worker.engine import PlanError
from gpu_worker.row_grammar import RowGrammars, no_vocabulary
from gpu_worker.row_sampling import RowSampling, check_sampling
from gpu_worker.step import IntArray, Step, StepRow
from gpu_worker.step_stems import check_stems
from protos.plan import (
    DUMP_SLOT,
    MAX_PAGE_SIZE,
    NOT_SCORED,
    TOKEN_FROM_STEP_BEFORE,
    BatchPlan,
    NewRow,
    Remap,
)


class RowTable:
    """Slots, length, last token and sampling of every row."""

    def __init__(
        self,
        *,
        num_slots: int,
        max_rows: int,
        max_length: int,
        vocab_size: int,
        grammars: RowGrammars | None = None,
    ) -> None:
        self._slot_limit = num_slots + MAX_PAGE_SIZE
        self._max_rows = max_rows
        self._max_length = max_length
        self._vocab_size = vocab_size
        self._grammars = grammars or RowGrammars(
            no_vocabulary, vocab_size=vocab_size, eos_token_ids=()
        )
        # [max_rows, max_length]; entries past a row's length mean nothing.
        self._slots: IntArray = np.zeros((max_rows, max_length), np.int32)
        self._lengths: dict[int, int] = {}  # of live rows
        # Of rows that sampled in their latest step; TOKEN_FROM_STEP_BEFORE: the runner knows it.
        self._last_tokens: dict[int, int] = {}
        self._sampling: dict[int, RowSampling] = {}

    def reset(self) -> None:
        """Makes all rows free."""
        self._lengths.clear()
        self._last_tokens.clear()
        self._sampling.clear()

    def sampling(self, row: int) -> RowSampling:
        """How a live row samples."""
        return self._sampling[row]

    def record(self, row: StepRow, token_ids: Sequence[int]) -> None:
        """Remembers what a row just sampled, for the next plan's TOKEN_FROM_STEP_BEFORE, and
        forgets the drafts that were wrong."""
        self._remember(row, token_ids[-1], len(token_ids))

    def record_unseen(self, row: StepRow, num_tokens: int) -> None:
        """The same of tokens that the runner keeps: the next plan's TOKEN_FROM_STEP_BEFORE stays
        what it is."""
        self._remember(row, TOKEN_FROM_STEP_BEFORE, num_tokens)
        self._sampling[row.row].record_unseen(num_tokens)

    def _remember(self, row: StepRow, last_token: int, num_tokens: int) -> None:
        self._last_tokens[row.row] = last_token
        self._lengths[row.row] = row.length - row.num_samples + num_tokens

    def apply(self, plan: BatchPlan) -> Step:
        """Carries out a plan's deltas and gives the step in terms of tokens.

        Raises:
            PlanError: something in it cannot be; the table is then as before.
        """
        self._check_rows(plan)
        self._check_next_ids(plan)
        token_ids = self._checked_tokens(plan)
        self._check_out_slots(plan)
        stems = check_stems(plan, self._slots)
        self._free(plan.freed_rows)
        for new in plan.new_rows:
            self._open(new)
        for remap in plan.remaps:
            self._slots[remap.row, remap.start : remap.start + len(remap.slots)] = remap.slots
        return self._extend(plan, token_ids, stems)

    def _check_rows(self, plan: BatchPlan) -> None:
        self._check_columns(plan)
        lengths = dict(self._lengths)  # of the live rows as they will be just before the step
        for row in plan.freed_rows:
            if lengths.pop(row, None) is None:
                raise PlanError(f"freed row {row} is free already")
        in_step = set(plan.rows)
        for new in plan.new_rows:
            self._check_row("new row", new.row)
            if new.row in lengths:
                raise PlanError(f"new row {new.row} is live already")
            if new.row not in in_step:
                raise PlanError(f"new row {new.row} has no part in the step")
            self._check_readable(f"prefix of row {new.row}", new.prefix_slots)
            check_sampling(new, self._vocab_size)
            lengths[new.row] = len(new.prefix_slots)
        for remap in plan.remaps:
            self._check_remap(remap, lengths)
        for row, prefix_len, extend_len in zip(
            plan.rows, plan.prefix_lens, plan.extend_lens, strict=True
        ):
            self._check_extent(row, prefix_len, extend_len, lengths)
        if any(map(int.__gt__, plan.samples, plan.extend_lens)):
            raise PlanError("a row samples after more tokens than it computes")
        self._check_histories(plan)

    def _check_columns(self, plan: BatchPlan) -> None:
        num_rows = len(plan.rows)
        if any(len(c) != num_rows for c in (plan.prefix_lens, plan.extend_lens, plan.samples)):
            raise PlanError("columns per row differ in length")
        if len(set(plan.rows)) != num_rows:
            raise PlanError("a row appears twice")
        num_tokens = sum(plan.extend_lens)
        if len(plan.input_ids) != num_tokens or len(plan.out_slots) != num_tokens:
            raise PlanError("columns per token do not match extend_lens")

    def _check_extent(
        self, row: int, prefix_len: int, extend_len: int, lengths: dict[int, int]
    ) -> None:
        self._check_row("row", row)
        length = lengths.get(row)
        if length is None:
            raise PlanError(f"row {row} is free")
        if prefix_len != length:
            raise PlanError(f"row {row} has {length} tokens, the plan says {prefix_len}")
        if extend_len < 1 or length + extend_len > self._max_length:
            raise PlanError(
                f"row {row}: {length} and {extend_len} tokens more, at most {self._max_length}"
            )

    def _check_histories(self, plan: BatchPlan) -> None:
        """A row that must know its tokens samples first exactly where those it knows end."""
        known = {row: sampling.num_known for row, sampling in self._sampling.items()}
        for new in plan.new_rows:
            known[new.row] = len(new.context_ids) if new.sampling.needs_context else None
        columns = zip(plan.rows, plan.prefix_lens, plan.extend_lens, plan.samples, strict=True)
        for row, prefix_len, extend_len, num_samples in columns:
            num_known, length = known[row], prefix_len + extend_len + 1 - num_samples
            if num_samples and num_known not in (None, length):
                raise PlanError(
                    f"row {row} samples after {length} tokens, its sampling knows {num_known}"
                )

    def _check_next_ids(self, plan: BatchPlan) -> None:
        """Only rows that asked are scored, and only on tokens that there are."""
        if not plan.next_ids:
            return
        if len(plan.next_ids) != len(plan.input_ids):
            raise PlanError("next ids are not of the inputs")
        next_ids = np.asarray(plan.next_ids, np.int32)
        bad = (next_ids < NOT_SCORED) | (next_ids >= self._vocab_size)
        if bad.any():
            raise PlanError(f"next id {next_ids[bad][0]} is not in 0..{self._vocab_size - 1}")
        fresh = {new.row: new.sampling for new in plan.new_rows}
        first = 0
        for row, extend_len in zip(plan.rows, plan.extend_lens, strict=True):
            end = first + extend_len
            params = fresh[row] if row in fresh else self._sampling[row].params
            if params.prompt_logprobs < 0 and (next_ids[first:end] != NOT_SCORED).any():
                raise PlanError(f"row {row} is scored and did not ask")
            first = end

    def _check_remap(self, remap: Remap, lengths: dict[int, int]) -> None:
        self._check_row("remapped row", remap.row)
        length = lengths.get(remap.row)
        if length is None:
            raise PlanError(f"remapped row {remap.row} is free")
        if remap.start < 0 or remap.start + len(remap.slots) > length:
            raise PlanError(
                f"remap of row {remap.row} at {remap.start} + {len(remap.slots)} "
                f"leaves its {length} tokens"
            )
        self._check_readable(f"remap of row {remap.row}", remap.slots)

    def _checked_tokens(self, plan: BatchPlan) -> IntArray:
        """Input ids, each TOKEN_FROM_STEP_BEFORE replaced by what its row sampled, if known."""
        token_ids = np.array(plan.input_ids, np.int32)
        fresh = {new.row: new for new in plan.new_rows}
        first, unseen = 0, []
        for row, extend_len, num_samples in zip(
            plan.rows, plan.extend_lens, plan.samples, strict=True
        ):
            if token_ids[first] == TOKEN_FROM_STEP_BEFORE:
                last = None if row in fresh else self._last_tokens.get(row)
                if last is None:
                    raise PlanError(f"row {row} did not sample in the step before")
                token_ids[first] = last
                if last == TOKEN_FROM_STEP_BEFORE:
                    unseen.append(first)
            if row in fresh:
                known = extend_len - max(0, num_samples - 1)
                _check_context(fresh[row], token_ids[first : first + known])
            first += extend_len
        bad = (token_ids < 0) | (token_ids >= self._vocab_size)
        bad[unseen] = False
        if bad.any():
            raise PlanError(f"token id {token_ids[bad][0]} is not in 0..{self._vocab_size - 1}")
        return token_ids

    def _check_out_slots(self, plan: BatchPlan) -> None:
        slots = np.array(plan.out_slots, np.int32)
        if (slots < 0).any() or (slots >= self._slot_limit).any():
            raise PlanError(f"an out slot is not in 0..{self._slot_limit - 1}")
        written = slots[slots != DUMP_SLOT]
        if len(np.unique(written)) != len(written):
            raise PlanError("an out slot appears twice")

    def _check_row(self, what: str, row: int) -> None:
        if not 0 <= row < self._max_rows:
            raise PlanError(f"{what} {row} is not in 0..{self._max_rows - 1}")

    def _check_readable(self, what: str, slots: Iterable[int]) -> None:
        array = np.asarray(slots, np.int32)
        if len(array) and (array.min() <= DUMP_SLOT or array.max() >= self._slot_limit):
            raise PlanError(f"{what}: a slot is not in 1..{self._slot_limit - 1}")

    def _free(self, rows: Iterable[int]) -> None:
        for row in rows:
            del self._lengths[row], self._sampling[row]
            self._last_tokens.pop(row, None)

    def _open(self, new: NewRow) -> None:
        self._lengths[new.row] = len(new.prefix_slots)
        self._slots[new.row, : len(new.prefix_slots)] = new.prefix_slots
        grammar = self._grammars.open(new) if new.sampling.grammar else None
        self._sampling[new.row] = RowSampling(new, self._vocab_size, grammar)

    def _extend(self, plan: BatchPlan, token_ids: IntArray, stems: IntArray) -> Step:
        out_slots = np.array(plan.out_slots, np.int32)
        positions = np.empty(len(out_slots), np.int32)
        next_ids = np.array(plan.next_ids, np.int32)
        rows, first, first_logit = [], 0, 0
        for row, prefix_len, extend_len, num_samples in zip(
            plan.rows, plan.prefix_lens, plan.extend_lens, plan.samples, strict=True
        ):
            end, length = first + extend_len, prefix_len + extend_len
            self._slots[row, prefix_len:length] = out_slots[first:end]
            positions[first:end] = np.arange(prefix_len, length, dtype=np.int32)
            self._lengths[row] = length
            self._last_tokens.pop(row, None)  # consumed, or stale from here on
            num_logits = num_samples
            if len(next_ids):
                num_logits = max(num_samples, _num_from_first_scored(next_ids[first:end]))
            rows.append(
                StepRow(
                    row=row,
                    prefix_len=prefix_len,
                    extend_len=extend_len,
                    first_token=first,
                    num_samples=num_samples,
                    num_logits=num_logits,
                    first_logit=first_logit,
                    slots=self._slots[row, :length],
                )
            )
            first, first_logit = end, first_logit + num_logits
        return Step(
            rows=tuple(rows),
            token_ids=token_ids,
            positions=positions,
            out_slots=out_slots,
            next_ids=next_ids,
            opened=plan.new_rows,
            moved=(*map(_prefix, plan.new_rows), *plan.remaps),
            stems=stems,
        )


def _prefix(new: NewRow) -> Remap:
    return Remap(row=new.row, start=0, slots=new.prefix_slots)


def _num_from_first_scored(next_ids: IntArray) -> int:
    """How many of a row's last tokens begin with the first that is scored; 0: none is."""
    scored = np.flatnonzero(next_ids != NOT_SCORED)
    return len(next_ids) - int(scored[0]) if len(scored) else 0


def _check_context(new: NewRow, token_ids: IntArray) -> None:
    """Sampling and model must see the same tokens."""
    if new.sampling.needs_context:
        start = len(new.prefix_slots)
        known = np.asarray(new.context_ids[start : start + len(token_ids)], np.int32)
        if not np.array_equal(known, token_ids):
            raise PlanError(f"row {new.row}: its inputs differ from its context")
