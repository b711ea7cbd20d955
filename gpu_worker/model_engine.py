"""The real engine: a model behind the Engine protocol.

Puts table, backend and sampler together.  Not here: sockets, epochs, reading files.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from gpu_worker.backend import Backend
from gpu_worker.blocks import FloatArray
from gpu_worker.model_config import ModelConfig
from gpu_worker.prompt_scoring import score_prompts
from gpu_worker.row_grammar import RowGrammars, no_vocabulary
from gpu_worker.row_table import RowTable, Step
from gpu_worker.step_sampling import row_faults, sample_step
from protos.plan import MAX_CONTEXT_TOKENS, BatchPlan, BatchResult, Hello
from radixd.chassis.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Sizes fixed at start."""

    num_slots: int
    max_rows: int
    max_length: int = 0
    """In tokens; 0, or more than the model's own limit: the model's own limit.  No model serves
    more than MAX_CONTEXT_TOKENS."""
    poison: bool = False
    """NaN in unwritten slots, so that a read of one shows."""

    def longest(self, config: ModelConfig) -> int:
        """Longest context of a row, in tokens."""
        most = min(config.max_length, MAX_CONTEXT_TOKENS)
        return min(self.max_length or most, most)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelIdentity:
    """What the scheduler is told about which model this is."""

    model_id: str
    model_hash: str


class ModelEngine:
    """Engine on a model in memory."""

    def __init__(
        self,
        config: ModelConfig,
        backend: Backend,
        limits: EngineLimits,
        identity: ModelIdentity,
        read_vocabulary: Callable[[], Vocabulary | None] = no_vocabulary,
    ) -> None:
        self._backend = backend
        self._hello = Hello(
            instance_id=0,
            model_id=identity.model_id,
            model_hash=identity.model_hash,
            vocab_size=config.vocab_size,
            eos_token_ids=config.eos_token_ids,
            num_slots=limits.num_slots,
            max_rows=limits.max_rows,
            max_length=limits.longest(config),
            kv_dtype=backend.kv_dtype,
            device="cpu",
            kind="model",
            kv_bytes_per_slot=backend.kv_bytes_per_slot,
            weights=backend.weights,
        )
        grammars = RowGrammars(
            read_vocabulary, vocab_size=config.vocab_size, eos_token_ids=config.eos_token_ids
        )
        if read_vocabulary is not no_vocabulary:
            grammars.warm()
        self._table = RowTable(
            num_slots=limits.num_slots,
            max_rows=limits.max_rows,
            max_length=limits.longest(config),
            vocab_size=config.vocab_size,
            grammars=grammars,
        )

    def hello(self) -> Hello:
        """See Engine."""
        return self._hello

    def reset(self) -> None:
        """See Engine."""
        self._table.reset()
        self._backend.forget()

    def execute(self, plan: BatchPlan) -> BatchResult:
        """See Engine."""
        started_ns = time.perf_counter_ns()
        step = self._table.apply(plan)
        logits = self._backend.forward(step)
        sampling_ns = time.perf_counter_ns()
        prompt_logprobs = score_prompts(self._table, step, logits)
        token_ids, num_sampled, logprobs = sample_step(self._table, step, logits)
        done_ns = time.perf_counter_ns()
        phases = self._backend.phases_ns()
        inside_ns = phases["products"], phases["attention"], phases["rest"]
        # Calling the backend is Python of the worker, as far as the backend does not count it.
        python_ns = sampling_ns - started_ns - sum(inside_ns)
        return BatchResult(
            step_id=plan.step_id,
            token_ids=token_ids,
            forward_ns=done_ns - started_ns,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            num_sampled=num_sampled,
            phases_ns=(*inside_ns, done_ns - sampling_ns, max(0, python_ns)),
            row_faults=row_faults(self._table, step),
        )

    def forward(self, plan: BatchPlan) -> tuple[Step, FloatArray]:
        """The plan without its sampling: the step, and logits [sum(num_logits), vocab].

        Raises:
            PlanError: see Engine.execute.
        """
        step = self._table.apply(plan)
        return step, self._backend.forward(step)
