"""The real engine: a Llama-family model in fp32 on the CPU, behind the Engine protocol.

Puts table, pool, model and sampler together.  Not here: sockets, epochs, reading files.
"""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass

import torch

from gpu_worker.attention import TorchAttention
from gpu_worker.kv_pool import KvPool
from gpu_worker.llama import LlamaModel, LlamaWeights
from gpu_worker.logprobs import LogprobRecorder
from gpu_worker.model_config import ModelConfig
from gpu_worker.row_table import RowTable, Step
from gpu_worker.sampler import sample_token
from protos.plan import BatchPlan, BatchResult, Hello, LogprobColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Sizes fixed at start."""

    num_slots: int
    max_rows: int
    max_length: int = 0
    """In tokens; 0, or more than the model's own limit: the model's own limit."""
    poison: bool = False
    """NaN in unwritten slots, so that a read of one shows."""


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
        weights: LlamaWeights,
        limits: EngineLimits,
        identity: ModelIdentity,
    ) -> None:
        max_length = min(limits.max_length or config.max_length, config.max_length)
        self._pool = KvPool(config, limits.num_slots, poison=limits.poison)
        self._hello = Hello(
            instance_id=0,
            model_id=identity.model_id,
            model_hash=identity.model_hash,
            vocab_size=config.vocab_size,
            eos_token_ids=config.eos_token_ids,
            num_slots=limits.num_slots,
            max_rows=limits.max_rows,
            max_length=max_length,
            kv_dtype="float32",
            device="cpu",
            kind="model",
            kv_bytes_per_slot=self._pool.bytes_per_slot,
        )
        self._table = RowTable(
            num_slots=limits.num_slots,
            max_rows=limits.max_rows,
            max_length=max_length,
            vocab_size=config.vocab_size,
        )
        self._model = LlamaModel(config, weights, TorchAttention(config), max_length)

    def hello(self) -> Hello:
        """See Engine."""
        return self._hello

    def reset(self) -> None:
        """See Engine."""
        self._table.reset()
        self._pool.forget()

    def execute(self, plan: BatchPlan) -> BatchResult:
        """See Engine."""
        started_ns = time.perf_counter_ns()
        step, logits = self.forward(plan)
        token_ids, logprobs = self._sample(step, logits)
        return BatchResult(
            step_id=plan.step_id,
            token_ids=token_ids,
            forward_ns=time.perf_counter_ns() - started_ns,
            logprobs=logprobs,
        )

    def forward(self, plan: BatchPlan) -> tuple[Step, torch.Tensor]:
        """The plan without its sampling: the step, and logits [num_sampling_rows, vocab].

        Raises:
            PlanError: see Engine.execute.
        """
        step = self._table.apply(plan)
        with torch.inference_mode():
            return step, self._model.forward(step, self._pool)

    def _sample(self, step: Step, logits: torch.Tensor) -> tuple[array[int], LogprobColumns | None]:
        token_ids, recorder = array("i"), LogprobRecorder()
        sampling_rows = [row for row in step.rows if row.samples]
        for row, raw in zip(sampling_rows, logits.numpy(), strict=True):
            sampling = self._table.sampling(row.row)
            adjusted = sampling.adjusted(raw, row.length)
            token_id = sample_token(adjusted, sampling.params, row.length)
            if sampling.params.logprobs >= 0:
                recorder.add(raw, token_id, sampling.params.logprobs)
            self._table.record(row.row, token_id)
            token_ids.append(token_id)
        return token_ids, recorder.columns()
