"""Which weights a decoder has: read from files into a home, one layer after the other.

Not here: file formats (weights), where they go and who multiplies (weight_home).
"""

from dataclasses import dataclass

import torch

from gpu_worker.blocks import FloatArray
from gpu_worker.model_config import ModelConfig
from gpu_worker.weight_home import MatrixSource, Product, WeightHome
from gpu_worker.weights import WeightReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """A root-mean-square norm: x / rms(x) * (weight + offset)."""

    weight: torch.Tensor
    eps: float
    offset: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """Weights of one decoder layer; projections that share their input are one matrix."""

    attention_norm: Norm
    qkv: Product
    """To [(heads + 2 * kv_heads) * head_dim]."""
    attention_out: Product
    mlp_norm: Norm
    gate_up: Product
    """To [2 * intermediate], gate first."""
    down: Product


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderWeights:
    """All weights of a model."""

    embedding: torch.Tensor
    """[vocab, hidden]"""
    layers: tuple[LayerWeights, ...]
    final_norm: Norm
    head: Product
    """To [vocab]; padding rows of the checkpoint are cut off, so they cannot be sampled."""
    rope_factors: FloatArray | None
    """See rope_tables."""


def load_weights(config: ModelConfig, reader: WeightReader, home: WeightHome) -> DecoderWeights:
    """Reads all weights, one layer after the other.

    Raises:
        ModelError: a tensor is missing, of another shape, or cannot be read.
    """
    vocab_shape = (config.vocab_size, config.hidden_size)
    embedding = home.table(reader.read("model.embed_tokens.weight", vocab_shape))
    if config.tied_embeddings:
        head = home.tied_head(embedding)
    else:
        head = home.matrix("head", [MatrixSource(reader=reader, name="lm_head", shape=vocab_shape)])
    factors = None
    if reader.has("rope_factors"):
        factors = reader.read("rope_factors", (config.head_dim // 2,))
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(
            _LayerReader(config, reader, home, index).layer() for index in range(config.num_layers)
        ),
        final_norm=Norm(
            weight=home.vector(reader.read("model.norm.weight", (config.hidden_size,))),
            eps=config.norm_eps,
        ),
        head=head,
        rope_factors=factors,
    )


class _LayerReader:
    """Reads one layer."""

    def __init__(
        self, config: ModelConfig, reader: WeightReader, home: WeightHome, index: int
    ) -> None:
        self._config = config
        self._reader = reader
        self._home = home
        self._prefix = f"model.layers.{index}"

    def layer(self) -> LayerWeights:
        """All of it."""
        config, home, source = self._config, self._home, self._source
        hidden, inner = config.hidden_size, config.intermediate_size
        query_size = config.num_heads * config.head_dim
        kv_size = config.num_kv_heads * config.head_dim
        qkv = [
            source("self_attn.q_proj", query_size, hidden),
            source("self_attn.k_proj", kv_size, hidden),
            source("self_attn.v_proj", kv_size, hidden),
        ]
        gate_up = [source("mlp.gate_proj", inner, hidden), source("mlp.up_proj", inner, hidden)]
        out = [source("self_attn.o_proj", hidden, query_size)]
        return LayerWeights(
            attention_norm=self._norm("input_layernorm", hidden),
            qkv=home.matrix("qkv", qkv),
            attention_out=home.matrix("attention_out", out),
            mlp_norm=self._norm("post_attention_layernorm", hidden),
            gate_up=home.matrix("gate_up", gate_up),
            down=home.matrix("down", [source("mlp.down_proj", hidden, inner)]),
        )

    def _source(self, part: str, num_outputs: int, num_inputs: int) -> MatrixSource:
        name = f"{self._prefix}.{part}"
        return MatrixSource(reader=self._reader, name=name, shape=(num_outputs, num_inputs))

    def _norm(self, part: str, size: int) -> Norm:
        values = self._reader.read(f"{self._prefix}.{part}.weight", (size,))
        return Norm(weight=self._home.vector(values), eps=self._config.norm_eps)
