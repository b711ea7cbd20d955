"""A decoder's arithmetic in plain torch, on the CPU; see ops for what it promises of bits.

Not here: the operations (ops), attention, the pool; it puts them together.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from gpu_worker import ops
from gpu_worker.attention import AttentionBackend
from gpu_worker.blocks import FloatArray
from gpu_worker.decoder_weights import HeadNorms, Norm
from gpu_worker.kv_pool import KvPool
from gpu_worker.model_config import ModelConfig, Rope
from gpu_worker.rope import rope_tables
from gpu_worker.step import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchStep:
    """A step's columns as tensors."""

    token_ids: torch.Tensor
    """int64 [num_tokens]"""
    positions: torch.Tensor
    """int64 [num_tokens]"""
    out_slots: torch.Tensor
    """int64 [num_tokens]"""
    rotations: Mapping[Rope, tuple[torch.Tensor, torch.Tensor]]
    """Cosines and sines [num_tokens, 1, head_dim / 2] of each rotary embedding."""
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
        self._ropes = [config.rope(layer) for layer in range(config.num_layers)]
        self._tables = {}
        for rope in set(self._ropes):
            cos, sin = rope_tables(rope, config.head_dim, max_length, rope_factors)
            self._tables[rope] = (torch.from_numpy(cos), torch.from_numpy(sin))

    def begin_step(self, step: Step) -> TorchStep:
        """Prepares what all layers of the step share."""
        self._attention.begin_step(step)
        positions = _index(step.positions)
        places = range(len(step.token_ids))
        wanted = [at for row in step.rows for at in places[row.logit_tokens]]
        return TorchStep(
            token_ids=_index(step.token_ids),
            positions=positions,
            out_slots=_index(step.out_slots),
            rotations={
                rope: (
                    cos.index_select(0, positions)[:, None],
                    sin.index_select(0, positions)[:, None],
                )
                for rope, (cos, sin) in self._tables.items()
            },
            logit_tokens=_index(wanted),
        )

    def places(self, step: TorchStep) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See Arithmetic."""
        return step.token_ids, step.positions, step.logit_tokens

    def embed(self, table: torch.Tensor, step: TorchStep) -> torch.Tensor:
        """See Arithmetic."""
        hidden = table.index_select(0, step.token_ids)
        factor = self._config.embedding_factor
        return hidden if factor == 1.0 else hidden.mul_(factor)

    def norm(
        self, x: torch.Tensor, norm: Norm, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See Arithmetic."""
        weight = norm.weight + norm.offset if norm.offset else norm.weight
        return ops.rms_norm(x if residual is None else residual.add_(x), weight, norm.eps)

    def rotate_and_store(
        self, layer: int, qkv: torch.Tensor, norms: HeadNorms | None, step: TorchStep
    ) -> torch.Tensor:
        """See Arithmetic."""
        num_heads, num_kv_heads = self._config.num_heads, self._config.num_kv_heads
        heads = qkv.view(len(qkv), -1, self._config.head_dim)
        turned = heads[:, : num_heads + num_kv_heads]
        if norms is not None:
            query, key = turned.split((num_heads, num_kv_heads), dim=1)
            turned = torch.cat([self.norm(query, norms.query), self.norm(key, norms.key)], dim=1)
        rotated = ops.rotate(turned, *step.rotations[self._ropes[layer]])
        query, key = rotated.split((num_heads, num_kv_heads), dim=1)
        self._pool.write(layer, step.out_slots, (key, heads[:, -num_kv_heads:]))
        return query

    def attend(self, layer: int, query: torch.Tensor, step: TorchStep) -> torch.Tensor:
        """See Arithmetic."""
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        window = self._config.window(layer)
        return self._attention.attend(query, keys, values, window).view(len(query), -1)

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See Arithmetic."""
        return ops.gated(gate_up, self._config.gate)

    def wanted(self, hidden: torch.Tensor, step: TorchStep) -> torch.Tensor:
        """See Arithmetic."""
        return hidden.index_select(0, step.logit_tokens)

    def logits(self, scores: torch.Tensor) -> torch.Tensor:
        """See Arithmetic."""
        cap = self._config.logit_soft_cap
        return ops.soft_cap(scores, cap) if cap else scores


def _index(column: object) -> torch.Tensor:
    return torch.as_tensor(column, dtype=torch.int64)
