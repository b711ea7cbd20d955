"""The Llama family on the kernels.  Not here: plans, sampling, what lies in which slot."""

import math

import torch
import torch.nn.functional as F  # noqa: N812 (its name everywhere)

from gpu_worker.blocks import FloatArray
from gpu_worker.device.device_pool import DevicePool
from gpu_worker.device.step_inputs import StepInputs
from gpu_worker.llama import LayerWeights, LlamaWeights, Product, WeightHome
from gpu_worker.model_config import ModelConfig
from gpu_worker.rope import rope_tables
from kernels.attention_inputs import AttentionRules
from kernels.gather_rows import gather_rows
from kernels.paged_attention import paged_attention
from kernels.rms_norm import rms_norm
from kernels.rope_store import Rotation, rope_store
from kernels.silu_mul import silu_mul


def device_home(device: torch.device, dtype: torch.dtype) -> WeightHome:
    """Weights as they are, in a device's memory; products by torch."""

    def tensor(array: FloatArray) -> torch.Tensor:
        return torch.from_numpy(array).to(device, dtype)

    def matrix(array: FloatArray) -> Product:
        weight = tensor(array)
        return lambda x: F.linear(x, weight)

    return WeightHome(matrix=matrix, tensor=tensor)


class DeviceLlama:
    """Computes a step's tokens, ragged and in one go, on a pool."""

    def __init__(
        self, config: ModelConfig, weights: LlamaWeights, pool: DevicePool, max_length: int
    ) -> None:
        self._config = config
        self._weights = weights
        self._pool = pool
        device = weights.embedding.device
        cos, sin = rope_tables(config, max_length, weights.rope_factors)
        self._rotation = Rotation(
            cos=torch.from_numpy(cos).to(device), sin=torch.from_numpy(sin).to(device)
        )
        self._rules = AttentionRules(scale=1.0 / math.sqrt(config.head_dim))

    def forward(self, inputs: StepInputs) -> torch.Tensor:
        """Writes the KV of the step's tokens; float32 logits [num_logits, vocab]."""
        hidden = gather_rows(self._weights.embedding, inputs.token_ids)
        update: torch.Tensor | None = None
        for index, layer in enumerate(self._weights.layers):
            update = self._layer(index, layer, inputs, hidden, update)
        if update is not None:
            hidden += update
        # The head is the largest matrix: only what is sampled or scored goes through it.
        wanted = gather_rows(hidden, inputs.logit_tokens)
        return self._weights.head(self._norm(wanted, self._weights.final_norm)).float()

    def _layer(
        self,
        index: int,
        layer: LayerWeights,
        inputs: StepInputs,
        hidden: torch.Tensor,
        update: torch.Tensor | None,
    ) -> torch.Tensor:
        """What the layer adds to `hidden`, to which it adds what the one before left."""
        if update is None:
            normed = self._norm(hidden, layer.attention_norm)
        else:
            normed = self._norm(update, layer.attention_norm, hidden)
        mixed = self._attend(index, layer.qkv(normed), inputs)
        normed = self._norm(layer.attention_out(mixed), layer.mlp_norm, hidden)
        return layer.down(silu_mul(layer.gate_up(normed)))

    def _attend(self, index: int, qkv: torch.Tensor, inputs: StepInputs) -> torch.Tensor:
        """[num_tokens, (heads + 2 * kv_heads) * D] to [num_tokens, heads * D]."""
        query = rope_store(
            qkv, inputs.positions, inputs.out_slots, self._rotation, self._pool.target(index)
        )
        paged = self._pool.paged(index, inputs.page_table)
        out = torch.zeros_like(query)
        for work in inputs.work:
            paged_attention(query, paged, work, self._rules, out)
        return out.flatten(1)

    def _norm(
        self, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        return rms_norm(x, weight, self._config.norm_eps, residual)
