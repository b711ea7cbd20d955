"""Which weights a decoder has: read from files into a home, one layer after the other.

Not here: file formats (weights), where they go and who multiplies (weight_home).
"""

from dataclasses import dataclass

import torch

from gpu_worker.blocks import FloatArray
from gpu_worker.model_config import ExpertRules, ModelConfig
from gpu_worker.weight_home import GroupedProduct, MatrixSource, Product, WeightHome
from gpu_worker.weights import WeightReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """A root-mean-square norm: x / rms(x) * (weight + offset)."""

    weight: torch.Tensor
    eps: float
    offset: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadNorms:
    """Norms of single heads, weights [head_dim]."""

    query: Norm
    key: Norm


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward:
    """down(activation(gate) * up)."""

    gate_up: Product
    """To [2 * intermediate], gate first."""
    down: Product


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A feed-forward for each expert, and what chooses among them."""

    router: Product
    """To [num_experts]."""
    gate_up: GroupedProduct
    down: GroupedProduct
    whole: Product
    """See WeightHome.mixture."""
    rules: ExpertRules


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """Weights of one decoder layer; projections that share their input are one matrix."""

    attention_norm: Norm
    qkv: Product
    """To [(heads + 2 * kv_heads) * head_dim]."""
    head_norms: HeadNorms | None
    attention_out: Product
    attention_out_norm: Norm | None
    mlp_norm: Norm
    mlp: FeedForward | Experts
    mlp_out_norm: Norm | None


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
    layers = range(config.num_layers)
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(_LayerReader(config, reader, home, index).layer() for index in layers),
        final_norm=Norm(
            weight=home.vector(reader.read("model.norm.weight", (config.hidden_size,))),
            eps=config.norm_eps,
            offset=config.norm_offset,
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
        self._index = index

    def layer(self) -> LayerWeights:
        """All of it."""
        config, home = self._config, self._home
        hidden, sandwich = config.hidden_size, config.sandwich_norms
        query_size = config.num_heads * config.head_dim
        out = self._source("self_attn.o_proj", hidden, query_size, config.attention_out_bias)
        experts = config.experts_of(self._index)
        # The same name stands behind attention in one family and before the feed-forward in most.
        before_mlp = "pre_feedforward_layernorm" if sandwich else "post_attention_layernorm"
        return LayerWeights(
            attention_norm=self._norm("input_layernorm", hidden),
            qkv=home.matrix("qkv", self._qkv()),
            head_norms=self._head_norms() if config.head_norms else None,
            attention_out=home.matrix("attention_out", [out]),
            attention_out_norm=self._norm("post_attention_layernorm", hidden) if sandwich else None,
            mlp_norm=self._norm(before_mlp, hidden),
            mlp=self._feed_forward() if experts is None else self._experts(experts),
            mlp_out_norm=self._norm("post_feedforward_layernorm", hidden) if sandwich else None,
        )

    def _qkv(self) -> list[MatrixSource]:
        config = self._config
        hidden, has_bias = config.hidden_size, config.qkv_bias
        query_size = config.num_heads * config.head_dim
        kv_size = config.num_kv_heads * config.head_dim
        return [
            self._source("self_attn.q_proj", query_size, hidden, has_bias),
            self._source("self_attn.k_proj", kv_size, hidden, has_bias),
            self._source("self_attn.v_proj", kv_size, hidden, has_bias),
        ]

    def _head_norms(self) -> HeadNorms:
        head_dim = self._config.head_dim
        return HeadNorms(
            query=self._norm("self_attn.q_norm", head_dim),
            key=self._norm("self_attn.k_norm", head_dim),
        )

    def _feed_forward(self) -> FeedForward:
        gate_up, down = self._gated("mlp", self._config.intermediate_size, self._config.mlp_bias)
        return FeedForward(
            gate_up=self._home.matrix("gate_up", gate_up), down=self._home.matrix("down", down)
        )

    def _experts(self, rules: ExpertRules) -> Experts:
        numbers = range(rules.num_experts)
        gated = [self._gated(f"mlp.experts.{n}", rules.intermediate_size) for n in numbers]
        router = self._source("mlp.gate", rules.num_experts, self._config.hidden_size)
        return Experts(
            router=self._home.matrix("router", [router]),
            gate_up=self._home.experts("gate_up", [gate_up for gate_up, _ in gated]),
            down=self._home.experts("down", [down for _, down in gated]),
            whole=self._home.mixture,
            rules=rules,
        )

    def _gated(
        self, part: str, inner: int, has_bias: bool = False
    ) -> tuple[list[MatrixSource], list[MatrixSource]]:
        """Gate and up; down."""
        hidden = self._config.hidden_size
        gate_up = [
            self._source(f"{part}.gate_proj", inner, hidden, has_bias),
            self._source(f"{part}.up_proj", inner, hidden, has_bias),
        ]
        return gate_up, [self._source(f"{part}.down_proj", hidden, inner, has_bias)]

    def _source(
        self, part: str, num_outputs: int, num_inputs: int, has_bias: bool = False
    ) -> MatrixSource:
        return MatrixSource(
            reader=self._reader,
            name=f"model.layers.{self._index}.{part}",
            shape=(num_outputs, num_inputs),
            has_bias=has_bias,
        )

    def _norm(self, part: str, size: int) -> Norm:
        values = self._reader.read(f"model.layers.{self._index}.{part}.weight", (size,))
        weight = self._home.vector(values)
        return Norm(weight=weight, eps=self._config.norm_eps, offset=self._config.norm_offset)
