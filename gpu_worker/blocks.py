"""Quantised matrices: groups of 32 inputs that share a float16 scale and minimum.

A value is `scale * q + minimum`.  Not here: files, and the order in which a kernel reads them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

FloatArray = np.ndarray[Any, np.dtype[np.float32]]
HalfArray = np.ndarray[Any, np.dtype[np.float16]]
BlockKind = Literal["int4", "int8"]
WeightFormat = Literal["float32", "int8", "int4"]

GROUP = 32
"""Inputs that share a scale and a minimum."""
_LARGEST = 65504.0
"""Of float16: beyond it neither scale nor minimum may be."""
_SLICE = 1 << 18
"""Values worked on at a time: small enough for the caches, and no second copy of a matrix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """A matrix [rows, inputs] in groups of 32 inputs."""

    kind: BlockKind
    values: np.ndarray[Any, np.dtype[Any]]
    """int4: uint8 [rows, groups, 16], byte j holds q of input j of its group in the low nibble and
    of input 16 + j in the high one, q in 0..15.  int8: int8 [rows, groups, 32]."""
    scale: HalfArray
    """[rows, groups]"""
    minimum: HalfArray
    """[rows, groups]"""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and inputs."""
        return self.scale.shape[0], self.scale.shape[1] * GROUP

    def __getitem__(self, rows: slice) -> "Blocks":
        """A range of rows, without a copy."""
        return Blocks(
            kind=self.kind,
            values=self.values[rows],
            scale=self.scale[rows],
            minimum=self.minimum[rows],
        )


def can_quantise(matrix: FloatArray) -> bool:
    """Whether a matrix [rows, inputs] is made of whole groups of values within float16."""
    if matrix.shape[1] % GROUP or not matrix.size:
        return False
    # A NaN fails both comparisons.
    return bool(matrix.max() <= _LARGEST and matrix.min() >= -_LARGEST)


def quantise(matrix: FloatArray, kind: BlockKind) -> Blocks:
    """The nearest blocks: affine, rounded to nearest, scale and minimum rounded to float16 first.

    No value is off by more than half a scale and the rounding of the minimum to float16 together; a
    group of equal values is off by that rounding alone.

    Raises:
        ValueError: see can_quantise.
    """
    if not can_quantise(matrix):
        raise ValueError("rows are not whole groups of 32 values within float16")
    num_rows, num_groups = matrix.shape[0], matrix.shape[1] // GROUP
    size, dtype = (GROUP // 2, np.uint8) if kind == "int4" else (GROUP, np.int8)
    blocks = Blocks(
        kind=kind,
        values=np.empty((num_rows, num_groups, size), dtype),
        scale=np.empty((num_rows, num_groups), np.float16),
        minimum=np.empty((num_rows, num_groups), np.float16),
    )
    for rows in _slices(matrix.shape):
        grouped = matrix[rows].reshape(-1, num_groups, GROUP)
        part = blocks[rows]
        if kind == "int4":
            _quantise_int4(grouped, part)
        else:
            _quantise_int8(grouped, part)
    return blocks


def widen(blocks: Blocks) -> Blocks:
    """The same values as int8."""
    if blocks.kind == "int8":
        return blocks
    values = np.empty((*blocks.scale.shape, GROUP), np.int8)
    np.bitwise_and(blocks.values, 15, out=values[..., :16], casting="unsafe")
    np.right_shift(blocks.values, 4, out=values[..., 16:], casting="unsafe")
    return Blocks(kind="int8", values=values, scale=blocks.scale, minimum=blocks.minimum)


def dequantise(blocks: Blocks) -> FloatArray:
    """The values [rows, inputs]; exact but for one rounding of the sum."""
    out = np.empty(blocks.shape, np.float32)
    for rows in _slices(blocks.shape):
        part = widen(blocks[rows])
        values = out[rows].reshape(part.values.shape)
        np.multiply(part.values, part.scale[..., None].astype(np.float32), out=values)
        values += part.minimum[..., None].astype(np.float32)
    return out


def stack(parts: Sequence[Blocks]) -> Blocks:
    """Matrices of one kind and as many inputs, one below the other."""
    if len(parts) == 1:
        return parts[0]
    assert len({part.kind for part in parts}) == 1, [part.kind for part in parts]
    return Blocks(
        kind=parts[0].kind,
        values=np.concatenate([part.values for part in parts]),
        scale=np.concatenate([part.scale for part in parts]),
        minimum=np.concatenate([part.minimum for part in parts]),
    )


def _quantise_int4(grouped: FloatArray, out: Blocks) -> None:
    low, high = grouped.min(axis=-1), grouped.max(axis=-1)
    out.minimum[:] = low
    minimum = out.minimum.astype(np.float32)
    out.scale[:] = _scale(high - minimum, steps=15)
    q = _nearest(grouped, minimum, out.scale).clip(0, 15).astype(np.uint8)
    np.bitwise_or(q[..., :16], q[..., 16:] << 4, out=out.values)


def _quantise_int8(grouped: FloatArray, out: Blocks) -> None:
    low, high = grouped.min(axis=-1), grouped.max(axis=-1)
    out.minimum[:] = low / 2 + high / 2
    middle = out.minimum.astype(np.float32)
    out.scale[:] = _scale(np.maximum(high - middle, middle - low), steps=127)
    out.values[:] = _nearest(grouped, middle, out.scale).clip(-128, 127)


def _scale(reach: FloatArray, *, steps: int) -> HalfArray:
    """The float16 with which so many steps reach so far, to within half a step."""
    # A reach below zero is the rounding of a minimum: such a group needs no steps.
    scale = (reach.clip(min=0) / steps).astype(np.float16)
    # Only among the smallest float16 does rounding down fall short by more than that.
    short = scale.astype(np.float32) * (steps + 0.5) < reach
    return np.where(short, np.nextafter(scale, np.float16(np.inf)), scale)


def _nearest(grouped: FloatArray, minimum: FloatArray, scale: HalfArray) -> FloatArray:
    """(value - minimum) / scale, rounded; 0 where the scale is 0."""
    wide = scale.astype(np.float32)
    inverse = np.divide(1.0, wide, out=np.zeros_like(wide), where=wide > 0)
    steps: FloatArray = grouped - minimum[..., None]
    steps *= inverse[..., None]
    return np.rint(steps, out=steps)


def _slices(shape: tuple[int, ...]) -> Iterator[slice]:
    """Ranges of rows of about _SLICE values."""
    step = max(_SLICE // max(shape[1], 1), 1)
    for start in range(0, shape[0], step):
        yield slice(start, min(start + step, shape[0]))
