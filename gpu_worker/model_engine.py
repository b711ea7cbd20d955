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
from gpu_worker.row_grammar import RowGrammars, no_vocabulary
from gpu_worker.row_table import RowTable
from gpu_worker.step import Step
from gpu_worker.step_runner import RunningStep
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


@dataclass(frozen=True, slots=True)
class EngineStep:
    """StepInFlight of a runner's step."""

    step_id: int
    running: RunningStep
    applied_ns: int
    """What it took to check the plan, which is Python of the worker."""

    def is_done(self) -> bool:
        """See StepInFlight."""
        return self.running.is_done()

    def result(self) -> BatchResult:
        """See StepInFlight."""
        sampled = self.running.sampled()
        *phases_ns, python_ns = sampled.phases_ns or (0,)
        return BatchResult(
            step_id=self.step_id,
            token_ids=sampled.token_ids,
            forward_ns=sampled.forward_ns + self.applied_ns,
            logprobs=sampled.logprobs,
            prompt_logprobs=sampled.prompt_logprobs,
            num_sampled=sampled.num_sampled,
            phases_ns=(*phases_ns, python_ns + self.applied_ns) if phases_ns else (),
            row_faults=sampled.row_faults,
        )


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
            num_slots=backend.num_slots,
            max_rows=limits.max_rows,
            max_length=limits.longest(config),
            kv_dtype=backend.kv_dtype,
            device=backend.device,
            kind="model",
            kv_bytes_per_slot=backend.kv_bytes_per_slot,
            least_stem_tokens=backend.least_stem_tokens,
            weights=backend.weights,
        )
        grammars = RowGrammars(
            read_vocabulary, vocab_size=config.vocab_size, eos_token_ids=config.eos_token_ids
        )
        if read_vocabulary is not no_vocabulary:
            grammars.warm()
        self._table = RowTable(
            num_slots=backend.num_slots,
            max_rows=limits.max_rows,
            max_length=limits.longest(config),
            vocab_size=config.vocab_size,
            grammars=grammars,
        )
        self._runner = backend.runner(self._table)

    def hello(self) -> Hello:
        """See Engine."""
        return self._hello

    def reset(self) -> None:
        """See Engine."""
        self._table.reset()
        self._runner.forget()

    def begin(self, plan: BatchPlan) -> EngineStep:
        """See Engine."""
        self._runner.settle()
        started_ns = time.perf_counter_ns()
        step = self._table.apply(plan)
        applied_ns = time.perf_counter_ns() - started_ns
        return EngineStep(plan.step_id, self._runner.begin(step), applied_ns)

    def execute(self, plan: BatchPlan) -> BatchResult:
        """One step from begin to end, for who has no other in flight.

        Raises:
            RadixdError: see Engine.begin.
        """
        return self.begin(plan).result()

    def forward(self, plan: BatchPlan) -> tuple[Step, FloatArray]:
        """The plan without its sampling: the step, and logits [sum(num_logits), vocab].

        Raises:
            PlanError: see Engine.begin.
        """
        step = self._table.apply(plan)
        return step, self._backend.forward(step)
