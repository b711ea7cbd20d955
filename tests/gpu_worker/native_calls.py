"""A model in the compiled library, a step for it, and what either must look like."""

import ctypes
from dataclasses import dataclass, field

import numpy as np

from gpu_worker.blocks import FloatArray
from gpu_worker.native.build import built_library
from gpu_worker.native.library import AUTO, NativeModel, NativeStep, Sizes, open_library
from gpu_worker.native.packing import pack_float32

LAYERS, HIDDEN, INNER, VOCAB, LONGEST, SLOTS = 2, 96, 40, 21, 40, 64
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16
PADDED_VOCAB = 24


def matrix_shapes(head_dim: int = HEAD_DIM) -> tuple[tuple[int, int], ...]:
    """[outputs, inputs] of the four matrices of a layer."""
    return (
        ((HEADS + 2 * KV_HEADS) * head_dim, HIDDEN),
        (HIDDEN, HEADS * head_dim),
        (2 * INNER, HIDDEN),
        (HIDDEN, INNER),
    )


def library() -> ctypes.CDLL:
    return open_library(built_library())


def sizes(**changes: int) -> Sizes:
    values = {
        "layers": LAYERS,
        "hidden": HIDDEN,
        "inner": INNER,
        "heads": HEADS,
        "kv_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab": VOCAB,
        "max_length": LONGEST,
        "num_slots": SLOTS,
        "kv_int8": 0,
    }
    return Sizes(**(values | changes), norm_eps=1e-5)


def matrix(outputs: int, inputs: int) -> FloatArray:
    drawn = np.random.default_rng(outputs * inputs).normal(size=(outputs, inputs))
    return (drawn / inputs**0.5).astype(np.float32)


def give_all(model: NativeModel, head_dim: int = HEAD_DIM) -> None:
    """Weights for every place."""
    for part in (0, 1):
        model.set_matrix(part, pack_float32(matrix(VOCAB, HIDDEN)))
    for layer in range(LAYERS):
        for part, shape in enumerate(matrix_shapes(head_dim)):
            model.set_matrix(part, pack_float32(matrix(*shape)), layer)
        for part in (0, 1):
            model.set_vector(part, np.ones(HIDDEN, np.float32), layer)
    model.set_vector(0, np.ones(HIDDEN, np.float32))
    for part in (1, 2):
        model.set_vector(part, np.ones((LONGEST, head_dim // 2), np.float32))


def make_model(num_threads: int = 1, *, kernels: str = AUTO, **changes: int) -> NativeModel:
    model = NativeModel(library(), sizes(**changes), kernels)
    give_all(model, changes.get("head_dim", HEAD_DIM))
    model.start(num_threads)
    return model


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


@dataclass(kw_only=True)
class Wanted:
    """Two rows: one token behind two others, and three tokens of which two are sampled."""

    prefix_lens: list[int] = field(default_factory=lambda: [2, 0])
    extend_lens: list[int] = field(default_factory=lambda: [1, 3])
    num_samples: list[int] = field(default_factory=lambda: [1, 2])
    slots: list[list[int]] = field(default_factory=lambda: [[5, 6, 7], [8, 63, 0]])
    token_ids: list[int] = field(default_factory=lambda: [20, 0, 1, 2])
    out_slots: list[int] = field(default_factory=lambda: [7, 8, 63, 0])

    def columns(self) -> NativeStep:
        return NativeStep(
            prefix_lens=ints(*self.prefix_lens),
            extend_lens=ints(*self.extend_lens),
            num_samples=ints(*self.num_samples),
            slots=tuple(ints(*slots) for slots in self.slots),
            token_ids=ints(*self.token_ids),
            out_slots=ints(*self.out_slots),
        )
