"""A worker without a model that cannot be fooled about slots.

Its KV pool stores token ids and positions; its "model" hashes what it reads back through the
slots of a row, so any fault in the books (a slot freed too early, shared wrongly, never written)
changes the output.  Needs neither torch nor numpy.  Not a mock: it executes every plan.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from gpu_worker.engine import PlanError
from protos.plan import (
    MAX_PAGE_SIZE,
    TOKEN_FROM_STEP_BEFORE,
    BatchPlan,
    BatchResult,
    Hello,
    SamplingParams,
)

SCRIPT_TOKEN = 258
"""Opens a script: the tokens up to GO_TOKEN are what the model says, then end of sequence."""
GO_TOKEN = 259


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeModel:
    """Next token as a pure function of the context, and of (seed, position) when it samples."""

    vocab_size: int = 264
    eos_token_ids: tuple[int, ...] = (257,)
    eos_every: int = 0
    """On average one token in so many is the first end-of-sequence token; 0: none."""

    def next_token(
        self, tokens: Sequence[int], positions: Sequence[int], sampling: SamplingParams
    ) -> int:
        """The token after a context, given as read back from the pool."""
        scripted = self._scripted(tokens)
        if scripted is not None:
            return scripted
        state = blake2b(array("i", tokens).tobytes(), digest_size=8)
        state.update(array("i", positions).tobytes())
        if sampling.temperature > 0:
            state.update(f"{sampling.seed} {len(tokens)} {sampling}".encode())
        value = int.from_bytes(state.digest(), "little")
        if self.eos_every and value % self.eos_every == 0:
            return self.eos_token_ids[0]
        value //= max(1, self.eos_every)
        if self.vocab_size > 256:
            return 32 + value % 95  # printable, so that people can read along
        return value % self.vocab_size

    def generate(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: SamplingParams = SamplingParams(),  # noqa: B008 (frozen)
        *,
        ignore_eos: bool = False,
    ) -> list[int]:
        """The reference: what any scheduler must make this model say."""
        context = list(prompt)
        while len(context) - len(prompt) < max_tokens:
            context.append(self.next_token(context, range(len(context)), sampling))
            if context[-1] in self.eos_token_ids and not ignore_eos:
                break
        return context[len(prompt) :]

    def _scripted(self, tokens: Sequence[int]) -> int | None:
        if self.vocab_size <= GO_TOKEN or SCRIPT_TOKEN not in tokens or GO_TOKEN not in tokens:
            return None
        start, go = tokens.index(SCRIPT_TOKEN) + 1, tokens.index(GO_TOKEN)
        said = start + len(tokens) - go - 1
        return tokens[said] if said < go else self.eos_token_ids[0]


@dataclass(slots=True)
class _Row:
    sampling: SamplingParams
    slots: array[int]
    last_sampled: int = field(default=TOKEN_FROM_STEP_BEFORE)


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
        )

    def reset(self) -> None:
        """Makes all rows free and poisons every slot."""
        size = self._num_slots + MAX_PAGE_SIZE
        self._tokens = array("i", [-7]) * size
        self._positions = array("i", [-7]) * size
        self._rows: dict[int, _Row] = {}

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
            if new.row in self._rows or not 0 <= new.row < self._max_rows:
                raise PlanError(f"step {plan.step_id}: row {new.row} is taken or out of range")
            self._rows[new.row] = _Row(new.sampling, array("i", new.prefix_slots))
        for remap in plan.remaps:
            slots = self._row(plan, remap.row).slots
            end = remap.start + len(remap.slots)
            if end > len(slots):
                raise PlanError(f"step {plan.step_id}: remap beyond row {remap.row}")
            slots[remap.start : end] = remap.slots
        tokens = array("i", self._step(plan))
        elapsed_ns = time.monotonic_ns() - started
        return BatchResult(step_id=plan.step_id, token_ids=tokens, forward_ns=elapsed_ns)

    def _step(self, plan: BatchPlan) -> list[int]:
        sampled = []
        inputs, slots = iter(plan.input_ids), iter(plan.out_slots)
        columns = zip(plan.rows, plan.prefix_lens, plan.extend_lens, plan.samples, strict=True)
        for index, prefix_len, extend_len, samples in columns:
            row = self._row(plan, index)
            if len(row.slots) != prefix_len or prefix_len + extend_len > self._max_length:
                raise PlanError(
                    f"step {plan.step_id}: row {index} has {len(row.slots)} tokens in place, "
                    f"the plan says {prefix_len} and adds {extend_len}"
                )
            for position in range(prefix_len, prefix_len + extend_len):
                self._write(plan, row, next(inputs), next(slots), position)
            if samples:
                row.last_sampled = self._sample(row)
                sampled.append(row.last_sampled)
        return sampled

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

    def _sample(self, row: _Row) -> int:
        tokens = array("i", map(self._tokens.__getitem__, row.slots))
        positions = array("i", map(self._positions.__getitem__, row.slots))
        return self.model.next_token(tokens, positions, row.sampling)

    def _row(self, plan: BatchPlan, index: int) -> _Row:
        row = self._rows.get(index)
        if row is None:
            raise PlanError(f"step {plan.step_id}: row {index} is free")
        return row
