"""Lays matrices out as the native kernels read them: in panels of 8 outputs.

A kernel computes 8 outputs side by side, so their weights for the same inputs lie together; the
number of outputs is filled up with zeros.  Panels of a matrix [N, K], all of them bytes:

  float32  [N/8][K][8]         element (p, k, r) is W[8 p + r, k]
  int8     [N/8][K/32][288]    256 values, 8 scales, 8 minima.  Byte 16 c + 2 r + i is q of output r
                               and input 2 c + i: pairs of inputs, as 16-bit multiply-adds want them
  int4     [N/8][K/32][160]    128 bytes of nibbles, 8 scales, 8 minima.  Byte 32 c + 4 r + i holds
                               q of output r and input 4 c + i (low), 16 + 4 c + i (high): quads of
                               inputs, as 8-bit multiply-adds want them

Scales and minima are float16, see `Blocks`.  Not here: kernels, and which format a model gets.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_worker.block_reading import read_stacked_blocks
from gpu_worker.blocks import (
    GROUP,
    Blocks,
    FloatArray,
    WeightFormat,
    dequantise,
)
from gpu_worker.weights import WeightReader

PANEL = 8
"""Outputs in a panel."""
ALIGNMENT = 64
"""Of the start of every array, in bytes: a line of the cache."""

ByteArray = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panels:
    """A packed matrix."""

    format: WeightFormat
    num_outputs: int
    num_inputs: int
    data: ByteArray
    """[ceil(num_outputs / 8), num_inputs, 32] for float32, else [..., num_inputs / 32, 288 or 160];
    C-contiguous, its start a multiple of 64 bytes."""


def read_panels(
    reader: WeightReader,
    parts: Sequence[tuple[str, tuple[int, int]]],
    format: WeightFormat,
    *,
    keep_int8: bool = False,
) -> Panels:
    """Matrices (name, [outputs, inputs]), one below the other, in this format if they can be.

    Blocks of the file are taken as they are.  Where int4 is wanted and the file has 8-bit blocks,
    or floats, `keep_int8` makes it int8: a head costs accuracy first.  A matrix that cannot be
    quantised becomes float32.

    Raises:
        ModelError: see WeightReader.read.
    """
    if format != "float32":
        blocks = read_stacked_blocks(reader, parts, format, keep_int8=keep_int8)
        if blocks is not None:
            return pack_blocks(blocks)
    return pack_float32(np.concatenate([reader.read(name, shape) for name, shape in parts]))


def pack_blocks(blocks: Blocks) -> Panels:
    """Panels of the same values, int4 or int8 as the blocks are."""
    num_outputs, num_inputs = blocks.shape
    num_panels, num_groups = -(-num_outputs // PANEL), num_inputs // GROUP
    # What moves together: a quad of nibble pairs, or a pair of bytes.
    unit, size = (np.uint32, 128) if blocks.kind == "int4" else (np.uint16, 256)
    data = aligned_zeros((num_panels, num_groups, size + 4 * PANEL))
    values = data[..., :size].view(unit).reshape(num_panels, num_groups, -1, PANEL)
    scales = data[..., size:].view(np.float16).reshape(num_panels, num_groups, 2, PANEL)
    _side_by_side(blocks.values.view(unit), values)
    _side_by_side(blocks.scale, scales[:, :, 0])
    _side_by_side(blocks.minimum, scales[:, :, 1])
    return Panels(format=blocks.kind, num_outputs=num_outputs, num_inputs=num_inputs, data=data)


def pack_float32(matrix: FloatArray) -> Panels:
    """Panels of a matrix [outputs, inputs] as it is."""
    num_outputs, num_inputs = matrix.shape
    data = aligned_zeros((-(-num_outputs // PANEL), num_inputs, 4 * PANEL))
    _side_by_side(matrix, data.view(np.float32))
    return Panels(format="float32", num_outputs=num_outputs, num_inputs=num_inputs, data=data)


def unpack(panels: Panels) -> FloatArray:
    """The matrix [outputs, inputs]; what the kernels compute with, to the bit."""
    if panels.format == "float32":
        by_row = panels.data.view(np.float32).swapaxes(1, 2)
        return by_row.reshape(-1, panels.num_inputs)[: panels.num_outputs]
    return dequantise(unpack_blocks(panels))


def unpack_blocks(panels: Panels) -> Blocks:
    """The blocks that pack_blocks was given."""
    assert panels.format != "float32"
    unit, size = (np.uint32, 128) if panels.format == "int4" else (np.uint16, 256)
    num_panels, num_groups = panels.data.shape[:2]
    units = panels.data[..., :size].view(unit).reshape(num_panels, num_groups, -1, PANEL)
    values = np.ascontiguousarray(units.transpose(0, 3, 1, 2)).view(np.uint8)
    scales = panels.data[..., size:].view(np.float16).reshape(num_panels, num_groups, 2, PANEL)
    scale, minimum = scales.transpose(2, 0, 3, 1).reshape(2, -1, num_groups)
    values = values.reshape(num_panels * PANEL, num_groups, -1)
    if panels.format == "int8":
        values = values.view(np.int8)
    whole = Blocks(kind=panels.format, values=values, scale=scale, minimum=minimum)
    return whole[: panels.num_outputs]


def aligned_zeros(shape: tuple[int, ...]) -> ByteArray:
    """Zero bytes that start at a multiple of ALIGNMENT."""
    num_bytes = int(np.prod(shape))
    room = np.zeros(num_bytes + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return room[start : start + num_bytes].reshape(shape)


def _side_by_side(rows: np.ndarray[Any, Any], panels: np.ndarray[Any, Any]) -> None:
    """Rows [N, ...] into panels [ceil(N / 8), ..., 8]; what is left of the last one stays."""
    num_whole, num_left = divmod(len(rows), PANEL)
    whole = rows[: num_whole * PANEL].reshape(num_whole, PANEL, *rows.shape[1:])
    panels[:num_whole] = np.moveaxis(whole, 1, -1)
    if num_left:
        panels[num_whole, ..., :num_left] = np.moveaxis(rows[-num_left:], 0, -1)
