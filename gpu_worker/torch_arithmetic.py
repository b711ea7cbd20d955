"""A decoder's arithmetic in plain torch, on the CPU; see ops for what it promises of bits.

Not here: the operations (ops), attention, the pool; it puts them together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gpu_worker import ops
from gpu_worker.attention import AttentionBackend
from gpu_worker.blocks import FloatArray
from gpu_worker.decoder_weights import Norm
from gpu_worker.kv_pool import KvPool
from gpu_worker.model_config import ModelConfig
from gpu_worker.rope import rope_tables
from gpu_worker.row_table import Step
from gpu_worker.weight_home import MatrixSource, Product, Role


class TorchHome:
    """WeightHome in fp32, matrices packed."""

    def vector(self, values: FloatArray) -> torch.Tensor:
        """See WeightHome."""
        return torch.from_numpy(values)

    def table(self, rows: FloatArray) -> torch.Tensor:
        """See WeightHome."""
        return torch.from_numpy(rows)

    def matrix(self, role: Role, parts: Sequence[MatrixSource]) -> Product:
        """See WeightHome."""
        arrays = [part.read() for part in parts]
        return ops.Linear(arrays[0] if len(arrays) == 1 else np.concatenate(arrays))

    def tied_head(self, table: torch.Tensor) -> Product:
        """See WeightHome."""
        return ops.Linear(table.numpy())


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchStep:
    """A step's columns as tensors."""

    token_ids: torch.Tensor
    """int64 [num_tokens]"""
    out_slots: torch.Tensor
    """int64 [num_tokens]"""
    cos: torch.Tensor
    """[num_tokens, 1, head_dim / 2]"""
    sin: torch.Tensor
    logit_tokens: torch.Tensor
    """int64 [num_logits] places of the tokens whose logits are wanted."""


class TorchArithmetic:
    """Arithmetic on a pool; rows of a step keep their bits whatever company they have."""

    def __init__(
        self,
        config: ModelConfig,
        pool: KvPool,
        attention: AttentionBackend,
        *,
        max_length: int,
        rope_factors: FloatArray | None,
    ) -> None:
        self._config = config
        self._pool = pool
        self._attention = attention
        cos, sin = rope_tables(config, max_length, rope_factors)
        self._cos, self._sin = torch.from_numpy(cos), torch.from_numpy(sin)

    def begin_step(self, step: Step) -> TorchStep:
        """Prepares what all layers of the step share."""
        self._attention.begin_step(step)
        positions = _index(step.positions)
        wanted = [
            at
            for row in step.rows
            for end in (row.first_token + row.extend_len,)
            for at in range(end - row.num_logits, end)
        ]
        return TorchStep(
            token_ids=_index(step.token_ids),
            out_slots=_index(step.out_slots),
            cos=self._cos.index_select(0, positions)[:, None],
            sin=self._sin.index_select(0, positions)[:, None],
            logit_tokens=_index(wanted),
        )

    def embed(self, table: torch.Tensor, step: TorchStep) -> torch.Tensor:
        """See Arithmetic."""
        return table.index_select(0, step.token_ids)

    def norm(
        self, x: torch.Tensor, norm: Norm, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See Arithmetic."""
        return ops.rms_norm(x if residual is None else residual.add_(x), norm.weight, norm.eps)

    def rotate_and_store(self, layer: int, qkv: torch.Tensor, step: TorchStep) -> torch.Tensor:
        """See Arithmetic."""
        num_heads, num_kv_heads = self._config.num_heads, self._config.num_kv_heads
        heads = qkv.view(len(qkv), -1, self._config.head_dim)
        rotated = ops.rotate(heads[:, : num_heads + num_kv_heads], step.cos, step.sin)
        query, key = rotated.split((num_heads, num_kv_heads), dim=1)
        self._pool.write(layer, step.out_slots, (key, heads[:, -num_kv_heads:]))
        return query

    def attend(self, layer: int, query: torch.Tensor, step: TorchStep) -> torch.Tensor:
        """See Arithmetic."""
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        return self._attention.attend(query, keys, values).view(len(query), -1)

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See Arithmetic."""
        return ops.silu_mul(gate_up)

    def wanted(self, hidden: torch.Tensor, step: TorchStep) -> torch.Tensor:
        """See Arithmetic."""
        return hidden.index_select(0, step.logit_tokens)

    def logits(self, scores: torch.Tensor) -> torch.Tensor:
        """See Arithmetic."""
        return scores


def _index(column: object) -> torch.Tensor:
    return torch.as_tensor(column, dtype=torch.int64)
