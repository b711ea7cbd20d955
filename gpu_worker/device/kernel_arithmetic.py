"""A decoder's arithmetic on the kernels.  Not here: plans, sampling, what lies in which slot."""

import math

import torch

from gpu_worker.blocks import FloatArray
from gpu_worker.decoder_weights import Norm
from gpu_worker.device.device_pool import DevicePool
from gpu_worker.device.step_inputs import StepInputs
from gpu_worker.model_config import ModelConfig
from gpu_worker.rope import rope_tables
from kernels.attention_inputs import AttentionRules
from kernels.gather_rows import gather_rows
from kernels.paged_attention import paged_attention
from kernels.rms_norm import rms_norm
from kernels.rope_store import Rotation, rope_store
from kernels.silu_mul import silu_mul


class KernelArithmetic:
    """Arithmetic on a pool in a device's memory."""

    def __init__(
        self,
        config: ModelConfig,
        pool: DevicePool,
        device: torch.device,
        *,
        max_length: int,
        rope_factors: FloatArray | None,
    ) -> None:
        self._pool = pool
        cos, sin = rope_tables(config, max_length, rope_factors)
        self._rotation = Rotation(
            cos=torch.from_numpy(cos).to(device), sin=torch.from_numpy(sin).to(device)
        )
        self._rules = AttentionRules(scale=1.0 / math.sqrt(config.head_dim))

    def embed(self, table: torch.Tensor, step: StepInputs) -> torch.Tensor:
        """See Arithmetic."""
        return gather_rows(table, step.token_ids)

    def norm(
        self, x: torch.Tensor, norm: Norm, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See Arithmetic."""
        return rms_norm(x, norm.weight, norm.eps, residual, norm.offset)

    def rotate_and_store(self, layer: int, qkv: torch.Tensor, step: StepInputs) -> torch.Tensor:
        """See Arithmetic."""
        target = self._pool.target(layer)
        return rope_store(qkv, step.positions, step.out_slots, self._rotation, target)

    def attend(self, layer: int, query: torch.Tensor, step: StepInputs) -> torch.Tensor:
        """See Arithmetic."""
        paged = self._pool.paged(layer, step.page_table)
        out = torch.zeros_like(query)
        for work in step.work[self._rules.window]:
            paged_attention(query, paged, work, self._rules, out)
        return out.flatten(1)

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See Arithmetic."""
        return silu_mul(gate_up)

    def wanted(self, hidden: torch.Tensor, step: StepInputs) -> torch.Tensor:
        """See Arithmetic."""
        return gather_rows(hidden, step.logit_tokens)

    def logits(self, scores: torch.Tensor) -> torch.Tensor:
        """See Arithmetic."""
        return scores.float()
