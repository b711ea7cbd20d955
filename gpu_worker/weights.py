"""What a reader of weights gives: fp32 arrays by name, or a matrix's quantised blocks.

Names are those of Hugging Face checkpoints.  Not here: any file format, and what the weights
are for.
"""

from pathlib import Path
from typing import Any, Protocol

import numpy as np

from gpu_worker.blocks import BlockKind, Blocks, FloatArray
from gpu_worker.model_config import ModelConfig
from protos.errors import ModelError

LAYER_MATRICES = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)


class WeightReader(Protocol):
    """Gives weights by name; the first dimension in the file may be larger and is cut."""

    def has(self, name: str) -> bool:
        """Whether there is such a tensor."""
        ...

    def read(self, name: str, shape: tuple[int, ...]) -> FloatArray:
        """A fresh fp32 array.

        Raises:
            ModelError: it is missing, of another shape, not finite, or cannot be read.
        """
        ...

    def read_blocks(self, name: str, shape: tuple[int, int]) -> Blocks | None:
        """The blocks of a matrix [rows, inputs] as the file has them, without loss.

        None where the file has floats, or blocks of another kind; `read` gives those.

        Raises:
            ModelError: see read.
        """
        ...

    def block_kind(self, name: str) -> BlockKind | None:
        """What read_blocks would give, without reading it."""
        ...


def mostly_int4(config: ModelConfig, reader: WeightReader) -> bool:
    """Whether more than half of the matrices of the layers are 4-bit blocks already."""
    kinds = [
        reader.block_kind(f"model.layers.{index}.{part}.weight")
        for index in range(config.num_layers)
        for part in LAYER_MATRICES
    ]
    return 2 * kinds.count("int4") > len(kinds)


def check_shape(path: Path, name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Refuses a tensor of another shape than the model has.

    Raises:
        ModelError: it is of another shape.
    """
    # Only rows of a vocabulary may be padded, and only those are asked for with fewer.
    if len(found) != len(wanted) or found[1:] != wanted[1:] or found[0] < wanted[0]:
        raise ModelError(path, f"tensor {name} has shape {found}, expected {wanted}")
    padded = "embed" in name or "embd" in name or name in ("lm_head.weight", "output.weight")
    if found[0] != wanted[0] and not padded:
        raise ModelError(path, f"tensor {name} has shape {found}, expected {wanted}")


def check_finite(path: Path, name: str, values: np.ndarray[Any, Any]) -> None:
    """Refuses what would turn every token into NaN.

    Raises:
        ModelError: a value is infinite or not a number.
    """
    # Without a mask as large as the tensor: both ends of the range show what is not finite.
    if not (np.isfinite(values.min()) and np.isfinite(values.max())):
        raise ModelError(path, f"tensor {name} holds values that are not finite")


def widen_bfloat16(upper: np.ndarray[Any, np.dtype[np.uint16]]) -> FloatArray:
    """fp32 values of bfloat16 numbers, which are the upper halves of such."""
    wide = upper.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)
