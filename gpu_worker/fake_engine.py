"""A worker without a model that cannot be fooled about slots.

Its KV pool stores token ids and positions; its model hashes what it reads back through the slots
of a row, so any fault in the books (a slot freed too early, shared wrongly, never written)
changes the output.  Needs neither torch nor numpy.  Not a mock: it executes every plan.
"""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass

from gpu_worker.engine import DoneStep, PlanError
from gpu_worker.fake_model import Constraints, FakeModel, extend, no_logprobs
from gpu_worker.row_grammar import RowGrammar, RowGrammars
from protos.plan import (
    MAX_PAGE_SIZE,
    NOT_SCORED,
    TOKEN_FROM_STEP_BEFORE,
    BatchPlan,
    BatchResult,
    Hello,
    LogprobColumns,
    NewRow,
    RowFault,
)
from radixd.chassis.grammars import allowed_ids
from radixd.chassis.vocabulary import fake_vocabulary

__all__ = ["FakeEngine", "FakeModel"]

_BYTES_PER_SLOT = 8
"""A token id and a position."""
_POISON = -7


@dataclass(slots=True)
class _Row:
    new: NewRow
    slots: array[int]
    history: array[int]
    """Every token known of it where penalties or a grammar need them; else empty."""
    grammar: RowGrammar | None = None
    last_sampled: int = TOKEN_FROM_STEP_BEFORE


class FakeEngine:
    """Executes plans on a pool of token ids."""

    def __init__(
        self,
        model: FakeModel,
        *,
        num_slots: int,
        max_rows: int,
        max_length: int,
        step_delay_s: float = 0.0,
    ) -> None:
        self.model = model
        self._num_slots = num_slots
        self._max_rows = max_rows
        self._max_length = max_length
        self._step_delay_s = step_delay_s
        self._grammars = RowGrammars(
            fake_vocabulary, vocab_size=model.vocab_size, eos_token_ids=model.eos_token_ids
        )
        self.reset()

    def hello(self) -> Hello:
        """What this engine offers."""
        return Hello(
            instance_id=0,
            model_id="fake",
            model_hash=f"fake-{self.model.vocab_size}-{self.model.eos_every}",
            vocab_size=self.model.vocab_size,
            eos_token_ids=self.model.eos_token_ids,
            num_slots=self._num_slots,
            max_rows=self._max_rows,
            max_length=self._max_length,
            kv_dtype="int32",
            device="none",
            kind="fake",
            kv_bytes_per_slot=_BYTES_PER_SLOT,
        )

    def reset(self) -> None:
        """Makes all rows free and poisons every slot."""
        size = self._num_slots + MAX_PAGE_SIZE
        self._tokens = array("i", [_POISON]) * size
        self._positions = array("i", [_POISON]) * size
        self._rows: dict[int, _Row] = {}

    def row_slots(self, row: int) -> array[int]:
        """[num_tokens] where the tokens of a live row lie."""
        return self._rows[row].slots

    def read(self, slots: array[int]) -> tuple[array[int], array[int]]:
        """[num_slots] token ids and [num_slots] positions that lie there now."""
        tokens = array("i", map(self._tokens.__getitem__, slots))
        return tokens, array("i", map(self._positions.__getitem__, slots))

    def begin(self, plan: BatchPlan) -> DoneStep:
        """See Engine; all of it happens here."""
        return DoneStep(self.execute(plan))

    def execute(self, plan: BatchPlan) -> BatchResult:
        """Writes the inputs into their slots and hashes the rows that sample.

        Raises:
            PlanError: the plan contradicts the rows, the slots or the vocabulary.  Unlike the real
                engine it notices on the way, so rows and pool are unknown until `reset`.
        """
        started = time.monotonic_ns()
        if self._step_delay_s:
            time.sleep(self._step_delay_s)
        for row in plan.freed_rows:
            if self._rows.pop(row, None) is None:
                raise PlanError(f"step {plan.step_id}: frees row {row}, which is free")
        for new in plan.new_rows:
            self._check_new(plan, new)
            grammar = self._grammars.open(new) if new.sampling.grammar else None
            self._rows[new.row] = _Row(new, new.prefix_slots[:], new.context_ids[:], grammar)
        for remap in plan.remaps:
            slots = self._row(plan, remap.row).slots
            end = remap.start + len(remap.slots)
            if end > len(slots):
                raise PlanError(f"step {plan.step_id}: remap beyond row {remap.row}")
            slots[remap.start : end] = remap.slots
        scores = no_logprobs()
        tokens, num_sampled, logprobs = self._step(plan, scores)
        return BatchResult(
            step_id=plan.step_id,
            token_ids=tokens,
            forward_ns=time.monotonic_ns() - started,
            logprobs=logprobs if logprobs.chosen else None,
            prompt_logprobs=scores if scores.chosen else None,
            num_sampled=b"" if len(num_sampled) == len(tokens) else bytes(num_sampled),
            row_faults=tuple(
                RowFault(row=row, message=grammar.problem)
                for row in plan.rows
                if (grammar := self._rows[row].grammar) is not None and grammar.problem
            ),
        )

    def _step(
        self, plan: BatchPlan, scores: LogprobColumns
    ) -> tuple[array[int], bytearray, LogprobColumns]:
        sampled, num_sampled, logprobs = array("i"), bytearray(), no_logprobs()
        inputs, slots = iter(plan.input_ids), iter(plan.out_slots)
        next_ids = iter(plan.next_ids)
        columns = zip(plan.rows, plan.prefix_lens, plan.extend_lens, plan.samples, strict=True)
        for index, prefix_len, extend_len, num_samples in columns:
            row = self._row(plan, index)
            if len(row.slots) != prefix_len or prefix_len + extend_len > self._max_length:
                raise PlanError(
                    f"step {plan.step_id}: row {index} has {len(row.slots)} tokens in place, "
                    f"the plan says {prefix_len} and adds {extend_len}"
                )
            for position in range(prefix_len, prefix_len + extend_len):
                self._write(plan, row, next(inputs), next(slots), position)
                self._score(plan, row, next(next_ids, NOT_SCORED), scores)
            if num_samples > extend_len:
                raise PlanError(f"step {plan.step_id}: row {index} samples before it computes")
            if num_samples:
                tokens = self._sample_with_drafts(plan, row, num_samples - 1, logprobs)
                sampled.extend(tokens)
                num_sampled.append(len(tokens))
        return sampled, num_sampled, logprobs

    def _write(self, plan: BatchPlan, row: _Row, token: int, slot: int, position: int) -> None:
        if token == TOKEN_FROM_STEP_BEFORE:
            token = row.last_sampled
        if not 0 <= token < self.model.vocab_size:
            raise PlanError(f"step {plan.step_id}: input id {token} is outside the vocabulary")
        if not 0 < slot < len(self._tokens):
            raise PlanError(f"step {plan.step_id}: slot {slot} is out of range")
        row.slots.append(slot)
        self._tokens[slot] = token
        self._positions[slot] = position

    def _score(self, plan: BatchPlan, row: _Row, next_id: int, scores: LogprobColumns) -> None:
        """Adds the log probability of the token behind the last one written, if it is wanted."""
        if next_id == NOT_SCORED:
            return
        num_top = row.new.sampling.prompt_logprobs
        if num_top < 0 or not 0 <= next_id < self.model.vocab_size:
            raise PlanError(f"step {plan.step_id}: row {row.new.row} cannot be scored on {next_id}")
        extend(scores, self.model.logprobs(*self.read(row.slots), next_id, num_top))

    def _sample_with_drafts(
        self, plan: BatchPlan, row: _Row, num_drafts: int, logprobs: LogprobColumns
    ) -> list[int]:
        """One token, and another for each draft that was right.  The slots of the others are
        poisoned, so that nobody can take what is in them for computed."""
        first = len(row.slots) - num_drafts
        drafts = row.slots[first:]
        del row.slots[first:]
        sampled = [self._sample(plan, row, logprobs)]
        while len(sampled) <= num_drafts and self._tokens[drafts[len(sampled) - 1]] == sampled[-1]:
            row.slots.append(drafts[len(sampled) - 1])
            sampled.append(self._sample(plan, row, logprobs))
        for slot in drafts[len(sampled) - 1 :]:
            self._tokens[slot] = self._positions[slot] = _POISON
        return sampled

    def _sample(self, plan: BatchPlan, row: _Row, logprobs: LogprobColumns) -> int:
        tokens, positions = self.read(row.slots)
        sampling = row.new.sampling
        if sampling.needs_context and len(row.history) != len(tokens):
            raise PlanError(
                f"step {plan.step_id}: row {row.new.row} samples after {len(tokens)} tokens, "
                f"its sampling knows {len(row.history)}"
            )
        is_early = len(tokens) - row.new.num_prompt < sampling.min_tokens
        constraints = Constraints(
            history=row.history,
            num_prompt=row.new.num_prompt,
            suppressed_ids=row.new.suppressed_ids if is_early else (),
            allowed_ids=_allowed(row.grammar),
        )
        row.last_sampled = self.model.next_token(tokens, positions, sampling, constraints)
        if row.grammar is not None:
            row.grammar.record(row.last_sampled)
        if sampling.needs_context:
            row.history.append(row.last_sampled)
        if sampling.logprobs >= 0:
            extend(
                logprobs,
                self.model.logprobs(tokens, positions, row.last_sampled, sampling.logprobs),
            )
        return row.last_sampled

    def _check_new(self, plan: BatchPlan, new: NewRow) -> None:
        if new.row in self._rows or not 0 <= new.row < self._max_rows:
            raise PlanError(f"step {plan.step_id}: row {new.row} is taken or out of range")
        sampling = new.sampling
        if bool(new.context_ids) != sampling.needs_context:
            raise PlanError(f"step {plan.step_id}: row {new.row}: context without need, or none")
        if (sampling.needs_context or sampling.min_tokens) and new.num_prompt < 1:
            raise PlanError(f"step {plan.step_id}: row {new.row} has no prompt")
        if any(not 0 <= biased < self.model.vocab_size for biased, _ in sampling.logit_bias):
            raise PlanError(f"step {plan.step_id}: row {new.row}: bias outside the vocabulary")
        if max(sampling.logprobs, sampling.prompt_logprobs) > self.model.vocab_size:
            raise PlanError(f"step {plan.step_id}: row {new.row}: more alternatives than tokens")

    def _row(self, plan: BatchPlan, index: int) -> _Row:
        row = self._rows.get(index)
        if row is None:
            raise PlanError(f"step {plan.step_id}: row {index} is free")
        return row


def _allowed(grammar: RowGrammar | None) -> list[int] | None:
    mask = None if grammar is None else grammar.mask()
    return None if mask is None else allowed_ids(mask)
