"""Matrices of a model as blocks: the file's own where it has them, else the nearest.

Not here: file formats (weights), the blocks (blocks), who multiplies by them.
"""

from collections.abc import Sequence

from gpu_worker.blocks import BlockKind, Blocks, can_quantise, dequantise, quantise, stack, widen
from gpu_worker.weights import WeightReader


def read_stacked_blocks(
    reader: WeightReader,
    parts: Sequence[tuple[str, tuple[int, int]]],
    kind: BlockKind,
    *,
    keep_int8: bool = False,
) -> Blocks | None:
    """Matrices (name, [outputs, inputs]), one below the other; None: one cannot be quantised.

    Blocks of the file are taken as they are.  Where int4 is wanted and the file has 8-bit blocks,
    or floats, `keep_int8` makes it int8: a head costs accuracy first.

    Raises:
        ModelError: see WeightReader.read.
    """
    kinds = [reader.block_kind(name) for name, _ in parts]
    if keep_int8 and any(found != "int4" for found in kinds):
        kind = "int8"
    blocks: list[Blocks] = []
    for name, shape in parts:
        found = _read(reader, name, shape, kind)
        if found is None:
            return None
        blocks.append(found)
    return stack(blocks)


def _read(
    reader: WeightReader, name: str, shape: tuple[int, int], kind: BlockKind
) -> Blocks | None:
    """A matrix as blocks of this kind, if it can be."""
    blocks = reader.read_blocks(name, shape)
    if blocks is not None and blocks.kind == kind:
        return blocks
    if blocks is not None and kind == "int8":
        return widen(blocks)
    matrix = reader.read(name, shape) if blocks is None else dequantise(blocks)
    return quantise(matrix, kind) if can_quantise(matrix) else None
