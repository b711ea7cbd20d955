"""Small models of random weights that lie in no file, on either backend; odd shapes."""

import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_worker.backend import Backend, KvDtype
from gpu_worker.blocks import BlockKind, Blocks, FloatArray, WeightFormat
from gpu_worker.model_config import ExpertRules, ModelConfig, Rope
from gpu_worker.native.library import AUTO
from gpu_worker.native.native_backend import NativeBackend, NativeOptions
from gpu_worker.native.native_weights import NativeWeights, read_native_weights
from gpu_worker.native.packing import unpack
from gpu_worker.step import IntArray, Step, StepRow
from gpu_worker.weights import LAYER_MATRICES, WeightReader
from protos.plan import Remap
from tests.gpu_worker.kernel_tables import TABLES

MAX_LENGTH = 700


def shape(**changes: Any) -> ModelConfig:
    """A configuration, small and of odd sizes."""
    values: dict[str, Any] = {
        "vocab_size": 97,
        "hidden_size": 96,
        "intermediate_size": 160,
        "num_layers": 2,
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 16,
        "tied_embeddings": False,
    }
    return ModelConfig(
        norm_eps=1e-5,
        rope_theta=1e4,
        rope_scaling=None,
        max_length=MAX_LENGTH,
        eos_token_ids=(),
        **(values | changes),
    )


SHAPES = {
    "grouped": shape(),
    "ungrouped": shape(num_heads=3, num_kv_heads=3, head_dim=80, hidden_size=64, vocab_size=50),
    # Of these inputs only those of the attention's output are whole groups: a mixture of formats.
    "mixed": shape(num_heads=4, num_kv_heads=1, head_dim=96, hidden_size=40, intermediate_size=72),
    "tied": shape(num_heads=5, num_kv_heads=1, head_dim=48, tied_embeddings=True, vocab_size=8),
}


BEYOND_LLAMA = {
    "windows": shape(
        windows=(70, 0),
        attention_soft_cap=2.0,
        logit_soft_cap=3.0,
        head_norms=True,
        norm_offset=0.5,
        sandwich_norms=True,
        embedding_factor=1.5,
        gate="gelu_tanh",
        local_rope=Rope(theta=100.0),
    ),
    "experts": shape(
        qkv_bias=True,
        attention_out_bias=True,
        experts=ExpertRules(
            num_experts=5, num_chosen=2, intermediate_size=48, renormalised=True, layers=(0, 1)
        ),
    ),
}
"""What only torch and the kernels compute, each habit of the families at least once."""


class RandomWeights:
    """WeightReader whose tensors follow from their names, spread so that attention is not flat."""

    def has(self, name: str) -> bool:
        """See WeightReader."""
        return name != "rope_factors"

    def read(self, name: str, shape: tuple[int, ...]) -> FloatArray:
        """See WeightReader."""
        draw = np.random.default_rng(zlib.crc32(name.encode())).normal(size=shape)
        scaled = 1.0 + 0.1 * draw if len(shape) == 1 else draw * 1.5 / shape[1] ** 0.5
        return scaled.astype(np.float32)

    def read_blocks(self, name: str, shape: tuple[int, int]) -> Blocks | None:
        """See WeightReader."""
        return None

    def block_kind(self, name: str) -> BlockKind | None:
        """See WeightReader."""
        return None


class UnpackedWeights(RandomWeights):
    """WeightReader of the values that the native kernels compute with."""

    def __init__(self, config: ModelConfig, weights: NativeWeights) -> None:
        self._tensors: dict[str, FloatArray] = {
            "model.embed_tokens.weight": unpack(weights.embedding),
            "lm_head.weight": unpack(weights.head),
        }
        query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        for index, layer in enumerate(weights.layers):
            qkv, out, gate_up, down = map(unpack, layer.matrices)
            parts = [*np.split(qkv, [query, query + kv]), out, *np.split(gate_up, 2), down]
            for part, matrix in zip(LAYER_MATRICES, parts, strict=True):
                self._tensors[f"model.layers.{index}.{part}.weight"] = matrix

    def read(self, name: str, shape: tuple[int, ...]) -> FloatArray:
        """See WeightReader."""
        return self._tensors[name] if len(shape) == 2 else super().read(name, shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Who computes, and in what precision."""

    weights: WeightFormat | None
    """None: torch computes, in float32."""
    kv_dtype: KvDtype = "float32"
    kernels: str = AUTO

    @property
    def precision(self) -> str:
        return f"{self.weights or 'torch'}-kv-{self.kv_dtype}"

    def __str__(self) -> str:
        return f"{self.precision}-{self.kernels}"


TORCH = Kind(weights=None)
NATIVE = [
    Kind(weights=weights, kv_dtype=kv_dtype, kernels=kernels)
    for kernels in TABLES or [AUTO]
    for weights in ("float32", "int8", "int4")
    for kv_dtype in ("float32", "int8")
]


def native_weights(config: ModelConfig, weights: WeightFormat) -> NativeWeights:
    """The random model, packed."""
    return read_native_weights(config, RandomWeights(), weights)


def make_backend(
    config: ModelConfig, kind: Kind, *, num_slots: int = 12_000, num_threads: int = 1
) -> Backend:
    """The random model; unwritten slots hold NaN."""
    if kind.weights is None:
        return make_torch_backend(config, RandomWeights(), num_slots)
    options = NativeOptions(
        num_slots=num_slots,
        max_length=MAX_LENGTH,
        kv_dtype=kind.kv_dtype,
        num_threads=num_threads,
        kernels=kind.kernels,
        poison=True,
    )
    return NativeBackend(config, native_weights(config, kind.weights), options)


def make_torch_backend(config: ModelConfig, reader: WeightReader, num_slots: int) -> Backend:
    """These weights in torch; unwritten slots hold NaN."""
    from gpu_worker.torch_backend import TorchBackend  # late: a sanitizer's process has no torch

    return TorchBackend(config, reader, num_slots=num_slots, max_length=MAX_LENGTH, poison=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A row's part of a step: what lies in `slots[:begin]` is there, tokens up to `end` come."""

    tokens: Sequence[int]
    slots: IntArray
    begin: int
    end: int
    num_samples: int


def make_step(pieces: Sequence[Piece]) -> Step:
    """The step of these rows."""
    rows: list[StepRow] = []
    token_ids: list[int] = []
    positions: list[int] = []
    out_slots: list[int] = []
    for index, piece in enumerate(pieces):
        rows.append(
            StepRow(
                row=index,
                prefix_len=piece.begin,
                extend_len=piece.end - piece.begin,
                first_token=len(token_ids),
                num_samples=piece.num_samples,
                num_logits=piece.num_samples,
                first_logit=sum(row.num_logits for row in rows),
                slots=piece.slots[: piece.end],
            )
        )
        token_ids += piece.tokens[piece.begin : piece.end]
        positions += range(piece.begin, piece.end)
        out_slots += piece.slots[piece.begin : piece.end].tolist()
    return Step(
        rows=tuple(rows),
        token_ids=np.array(token_ids, np.int32),
        positions=np.array(positions, np.int32),
        out_slots=np.array(out_slots, np.int32),
        next_ids=np.empty(0, np.int32),
        moved=tuple(
            Remap(row=index, start=0, slots=array("i", piece.slots[: piece.begin]))
            for index, piece in enumerate(pieces)
        ),
    )


def all_logits(backend: Backend, tokens: Sequence[int]) -> FloatArray:
    """[len(tokens), vocab] logits of a text computed alone, in one go."""
    backend.forget()
    slots = np.arange(1, len(tokens) + 1, dtype=np.int32)
    whole = Piece(tokens=tokens, slots=slots, begin=0, end=len(tokens), num_samples=len(tokens))
    return backend.forward(make_step([whole])).copy()
