"""The Llama family: weights in, logits out.  Not here: the pool's books, sampling, plans."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from gpu_worker import ops
from gpu_worker.attention import AttentionBackend
from gpu_worker.blocks import FloatArray
from gpu_worker.kv_pool import KvPool
from gpu_worker.model_config import ModelConfig
from gpu_worker.rope import rope_tables
from gpu_worker.row_table import Step
from gpu_worker.weights import WeightReader

Product = Callable[[torch.Tensor], torch.Tensor]
"""[num_tokens, num_inputs] to [num_tokens, num_outputs] by a matrix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightHome:
    """Where weights go as they are read, and who multiplies by them."""

    matrix: Callable[[FloatArray], Product] = ops.Linear
    """[num_outputs, num_inputs]"""
    tensor: Callable[[FloatArray], torch.Tensor] = torch.from_numpy


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """Weights of one decoder layer; projections that share their input are one matrix."""

    attention_norm: torch.Tensor
    qkv: Product
    """[(heads + 2 * kv_heads) * head_dim, hidden]"""
    attention_out: Product
    mlp_norm: torch.Tensor
    gate_up: Product
    """[2 * intermediate, hidden]"""
    down: Product


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaWeights:
    """All weights of a model."""

    embedding: torch.Tensor
    """[vocab, hidden]"""
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    head: Product
    """[vocab, hidden]; padding rows of the checkpoint are cut off, so they cannot be sampled."""
    rope_factors: FloatArray | None


def load_llama(
    config: ModelConfig, reader: WeightReader, home: WeightHome | None = None
) -> LlamaWeights:
    """Reads all weights, one layer after the other, into packed fp32 unless a home says otherwise.

    Raises:
        ModelError: a tensor is missing, of another shape, or cannot be read.
    """
    home = home or WeightHome()
    vocab_shape = (config.vocab_size, config.hidden_size)
    embedding = reader.read("model.embed_tokens.weight", vocab_shape)
    head = embedding
    if not config.tied_embeddings:
        head = reader.read("lm_head.weight", vocab_shape)
    factors = None
    if reader.has("rope_factors"):
        factors = reader.read("rope_factors", (config.head_dim // 2,))
    return LlamaWeights(
        embedding=home.tensor(embedding),
        layers=tuple(
            _load_layer(config, reader, home, index) for index in range(config.num_layers)
        ),
        final_norm=home.tensor(reader.read("model.norm.weight", (config.hidden_size,))),
        head=home.matrix(head),
        rope_factors=factors,
    )


def _load_layer(
    config: ModelConfig, reader: WeightReader, home: WeightHome, index: int
) -> LayerWeights:
    hidden, inner = config.hidden_size, config.intermediate_size
    query_size = config.num_heads * config.head_dim
    kv_size = config.num_kv_heads * config.head_dim

    def read(part: str, *shape: int) -> FloatArray:
        return reader.read(f"model.layers.{index}.{part}.weight", shape)

    qkv = [
        read("self_attn.q_proj", query_size, hidden),
        read("self_attn.k_proj", kv_size, hidden),
        read("self_attn.v_proj", kv_size, hidden),
    ]
    gate_up = [read("mlp.gate_proj", inner, hidden), read("mlp.up_proj", inner, hidden)]
    return LayerWeights(
        attention_norm=home.tensor(read("input_layernorm", hidden)),
        qkv=home.matrix(np.concatenate(qkv)),
        attention_out=home.matrix(read("self_attn.o_proj", hidden, query_size)),
        mlp_norm=home.tensor(read("post_attention_layernorm", hidden)),
        gate_up=home.matrix(np.concatenate(gate_up)),
        down=home.matrix(read("mlp.down_proj", hidden, inner)),
    )


class LlamaModel:
    """Computes a step's tokens, ragged and in one go, on a KV pool."""

    def __init__(
        self,
        config: ModelConfig,
        weights: LlamaWeights,
        attention: AttentionBackend,
        max_length: int,
    ) -> None:
        self._config = config
        self._weights = weights
        self._attention = attention
        cos, sin = rope_tables(config, max_length, weights.rope_factors)
        self._cos, self._sin = torch.from_numpy(cos), torch.from_numpy(sin)

    def forward(self, step: Step, pool: KvPool) -> torch.Tensor:
        """Writes the KV of the step's tokens; logits [sum(num_logits), vocab] in plan order."""
        last = [
            at
            for end, num_logits in (
                (row.first_token + row.extend_len, row.num_logits) for row in step.rows
            )
            for at in range(end - num_logits, end)
        ]
        hidden = self._layers(step, pool) if step.rows else self._weights.final_norm.new_empty(0)
        if not last:
            return hidden.new_empty(0, self._config.vocab_size)
        # The head is the largest matrix: only what is sampled or scored goes through it.
        hidden = hidden.index_select(0, _index(last))
        eps = self._config.norm_eps
        return self._weights.head(ops.rms_norm(hidden, self._weights.final_norm, eps))

    def _layers(self, step: Step, pool: KvPool) -> torch.Tensor:
        hidden = self._weights.embedding.index_select(0, _index(step.token_ids))
        positions, out_slots = _index(step.positions), _index(step.out_slots)
        cos = self._cos.index_select(0, positions)[:, None]
        sin = self._sin.index_select(0, positions)[:, None]
        self._attention.begin_step(step)
        for index, layer in enumerate(self._weights.layers):
            attend = self._attend(index, pool, out_slots, (cos, sin))
            hidden = self._layer(layer, hidden, attend)
        return hidden

    def _layer(
        self,
        layer: LayerWeights,
        hidden: torch.Tensor,
        attend: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        eps = self._config.norm_eps
        qkv = layer.qkv(ops.rms_norm(hidden, layer.attention_norm, eps))
        hidden = hidden + layer.attention_out(attend(qkv))
        gate_up = layer.gate_up(ops.rms_norm(hidden, layer.mlp_norm, eps))
        return hidden + layer.down(ops.silu_mul(gate_up))

    def _attend(
        self,
        index: int,
        pool: KvPool,
        out_slots: torch.Tensor,
        rope: tuple[torch.Tensor, torch.Tensor],
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        config = self._config

        def attend(qkv: torch.Tensor) -> torch.Tensor:
            """[num_tokens, (heads + 2 * kv_heads) * D] to [num_tokens, heads * D]."""
            heads = qkv.view(len(qkv), -1, config.head_dim)
            rotated = ops.rotate(heads[:, : config.num_heads + config.num_kv_heads], *rope)
            query, key = rotated.split((config.num_heads, config.num_kv_heads), dim=1)
            pool.write(index, out_slots, (key, heads[:, -config.num_kv_heads :]))
            mixed = self._attention.attend(query, pool.keys[index], pool.values[index])
            return mixed.view(len(qkv), -1)

        return attend


def _index(column: object) -> torch.Tensor:
    return torch.as_tensor(column, dtype=torch.int64)
