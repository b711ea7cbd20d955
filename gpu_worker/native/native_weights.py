"""All weights of a model in panels, as the library wants them."""

from dataclasses import dataclass

from gpu_worker.blocks import FloatArray, WeightFormat
from gpu_worker.model_config import ModelConfig
from gpu_worker.native.packing import Panels, read_panels
from gpu_worker.weights import WeightReader, mostly_int4


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeLayer:
    """One decoder layer; projections that share their input are one matrix."""

    attention_norm: FloatArray
    mlp_norm: FloatArray
    matrices: tuple[Panels, Panels, Panels, Panels]
    """q, k and v; attention out; gate and up; down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeWeights:
    """A model in one format, save for matrices that cannot have it."""

    format: WeightFormat
    embedding: Panels
    head: Panels
    layers: tuple[NativeLayer, ...]
    final_norm: FloatArray
    rope_factors: FloatArray | None


def read_native_weights(
    config: ModelConfig, reader: WeightReader, format: WeightFormat
) -> NativeWeights:
    """Reads and packs one matrix after the other.

    Raises:
        ModelError: a tensor is missing, of another shape, or cannot be read.
    """
    shape = (config.vocab_size, config.hidden_size)
    # Rows of the embedding are added up over all layers, and the head picks the token: both keep 8
    # bits where the rest has 4, unless the file has 4 there too.
    embedding = read_panels(reader, [("model.embed_tokens.weight", shape)], format, keep_int8=True)
    head = embedding
    if not config.tied_embeddings:
        head = read_panels(reader, [("lm_head.weight", shape)], format, keep_int8=True)
    keep_int8 = mostly_int4(config, reader)
    factors = None
    if reader.has("rope_factors"):
        factors = reader.read("rope_factors", (config.head_dim // 2,))
    return NativeWeights(
        format=format,
        embedding=embedding,
        head=head,
        layers=tuple(
            _read_layer(config, reader, index, format, keep_int8=keep_int8)
            for index in range(config.num_layers)
        ),
        final_norm=reader.read("model.norm.weight", (config.hidden_size,)),
        rope_factors=factors,
    )


def _read_layer(
    config: ModelConfig, reader: WeightReader, index: int, format: WeightFormat, *, keep_int8: bool
) -> NativeLayer:
    hidden, inner = config.hidden_size, config.intermediate_size
    query_size = config.num_heads * config.head_dim
    kv_size = config.num_kv_heads * config.head_dim

    def name(part: str) -> str:
        return f"model.layers.{index}.{part}.weight"

    def read(*parts: tuple[str, tuple[int, int]]) -> Panels:
        named = [(name(part), shape) for part, shape in parts]
        return read_panels(reader, named, format, keep_int8=keep_int8)

    return NativeLayer(
        attention_norm=reader.read(name("input_layernorm"), (hidden,)),
        mlp_norm=reader.read(name("post_attention_layernorm"), (hidden,)),
        matrices=(
            read(
                ("self_attn.q_proj", (query_size, hidden)),
                ("self_attn.k_proj", (kv_size, hidden)),
                ("self_attn.v_proj", (kv_size, hidden)),
            ),
            read(("self_attn.o_proj", (hidden, query_size))),
            read(("mlp.gate_proj", (inner, hidden)), ("mlp.up_proj", (inner, hidden))),
            read(("mlp.down_proj", (hidden, inner))),
        ),
    )
