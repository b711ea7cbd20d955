"""The panels the native kernels read: every byte where the layout says, and nothing lost."""

import numpy as np
import pytest

from gpu_worker.blocks import BlockKind, Blocks, WeightFormat, dequantise, quantise, widen
from gpu_worker.native.packing import (
    ALIGNMENT,
    Panels,
    aligned_zeros,
    pack_blocks,
    pack_float32,
    read_panels,
    unpack,
    unpack_blocks,
)

SHAPES = [(1, 32), (7, 32), (8, 64), (9, 96), (20, 32), (64, 160)]


def normal(rows: int, inputs: int) -> np.ndarray:
    return np.random.default_rng(rows * inputs).normal(size=(rows, inputs)).astype(np.float32)


def q(blocks: Blocks) -> np.ndarray:
    """[rows, inputs] integers, unpacked by index arithmetic."""
    rows, inputs = blocks.shape
    out = np.empty((rows, inputs), int)
    for row in range(rows):
        for at in range(inputs):
            group, place = divmod(at, 32)
            if blocks.kind == "int8":
                out[row, at] = blocks.values[row, group, place]
            else:
                out[row, at] = blocks.values[row, group, place % 16] >> place // 16 * 4 & 15
    return out


def check_form(panels: Panels, shape: tuple[int, int], last: int) -> None:
    groups = shape[1] if panels.format == "float32" else shape[1] // 32
    assert (panels.num_outputs, panels.num_inputs) == shape
    assert panels.data.shape == (-(-shape[0] // 8), groups, last)
    assert panels.data.dtype == np.uint8
    assert panels.data.flags.c_contiguous
    assert panels.data.ctypes.data % ALIGNMENT == 0


def check_scale(blocks: Blocks, row: int, group: int, tail: np.ndarray) -> None:
    """Behind a group's values stand the scales of the panel's 8 rows, then their minima."""
    halves, r = tail.view(np.float16), row % 8
    assert (halves[r], halves[8 + r]) == (blocks.scale[row, group], blocks.minimum[row, group])


@pytest.mark.parametrize("shape", SHAPES)
def test_int4_bytes_lie_where_the_kernel_reads_them(shape: tuple[int, int]) -> None:
    blocks = quantise(normal(*shape), "int4")
    panels = pack_blocks(blocks)
    check_form(panels, shape, 160)
    wanted = q(blocks)
    for row in range(shape[0]):
        for group in range(shape[1] // 32):
            block = panels.data[row // 8, group]
            r = row % 8
            check_scale(blocks, row, group, block[128:])
            for c in range(4):
                for i in range(4):
                    byte, first = block[32 * c + 4 * r + i], 32 * group + 4 * c + i
                    assert (byte & 15, byte >> 4) == (wanted[row, first], wanted[row, first + 16])


@pytest.mark.parametrize("shape", SHAPES)
def test_int8_bytes_lie_where_the_kernel_reads_them(shape: tuple[int, int]) -> None:
    blocks = quantise(normal(*shape), "int8")
    panels = pack_blocks(blocks)
    check_form(panels, shape, 288)
    wanted = q(blocks)
    for row in range(shape[0]):
        for group in range(shape[1] // 32):
            block = panels.data[row // 8, group]
            r = row % 8
            check_scale(blocks, row, group, block[256:])
            found = [block.view(np.int8)[16 * c + 2 * r + i] for c in range(16) for i in range(2)]
            assert found == wanted[row, 32 * group : 32 * group + 32].tolist()


@pytest.mark.parametrize("shape", [*SHAPES, (3, 5), (17, 33)])
def test_float32_lies_where_the_kernel_reads_it(shape: tuple[int, int]) -> None:
    matrix = normal(*shape)
    panels = pack_float32(matrix)
    check_form(panels, shape, 32)
    values = panels.data.view(np.float32)
    for row, inputs in enumerate(matrix):
        assert values[row // 8, :, row % 8].tolist() == inputs.tolist()
    assert (values[-1, :, (shape[0] - 1) % 8 + 1 :] == 0).all()
    assert (unpack(panels) == matrix).all()


def test_int4_panel_by_hand() -> None:
    """Two outputs of one group: q of output 0 counts up and down, output 1 is all 9."""
    counting = np.arange(16) | (15 - np.arange(16)) << 4
    blocks = Blocks(
        kind="int4",
        values=np.stack([counting, np.full(16, 0x99)]).astype(np.uint8).reshape(2, 1, 16),
        scale=np.array([[1.0], [0.5]], np.float16),
        minimum=np.array([[-2.0], [0.0]], np.float16),
    )
    block = pack_blocks(blocks).data[0, 0].tobytes()
    empty = "00" * 24
    assert block[:128].hex() == (
        f"f0e1d2c399999999{empty}b4a5968799999999{empty}"
        f"78695a4b99999999{empty}3c2d1e0f99999999{empty}"
    )
    assert block[128:].hex() == f"003c0038{'00' * 12}00c0{'00' * 14}"


@pytest.mark.parametrize("kind", ["int4", "int8"])
@pytest.mark.parametrize("shape", SHAPES)
def test_unpack_gives_back_what_was_packed(kind: BlockKind, shape: tuple[int, int]) -> None:
    blocks = quantise(normal(*shape), kind)
    panels = pack_blocks(blocks)
    found = unpack_blocks(panels)
    for name in ("kind", "values", "scale", "minimum"):
        assert np.array_equal(getattr(found, name), getattr(blocks, name)), name
    assert (unpack(panels) == dequantise(blocks)).all()


@pytest.mark.parametrize(("kind", "size"), [("int4", 128), ("int8", 256)])
def test_outputs_that_are_not_there_weigh_nothing(kind: BlockKind, size: int) -> None:
    data = pack_blocks(quantise(normal(11, 64), kind)).data
    halves = data[..., size:].view(np.float16).reshape(2, 2, 2, 8)
    assert (halves[1, :, :, 3:] == 0).all()
    assert (halves[1, :, 0, :3] != 0).all()


def test_arrays_start_at_a_line_of_the_cache() -> None:
    for num_bytes in (1, 100, 4096, 1 << 20):
        found = aligned_zeros((num_bytes, 3))
        assert found.shape == (num_bytes, 3)
        assert found.ctypes.data % 64 == 0
        assert not found.any()


class Reader:
    """WeightReader of matrices in memory: floats, or blocks."""

    def __init__(self, **matrices: np.ndarray | Blocks) -> None:
        self._matrices = matrices
        self.floats_read: list[str] = []

    def has(self, name: str) -> bool:
        return name in self._matrices

    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        self.floats_read.append(name)
        found = self._matrices[name]
        found = dequantise(found) if isinstance(found, Blocks) else found
        assert found.shape == shape
        return found.copy()

    def read_blocks(self, name: str, shape: tuple[int, int]) -> Blocks | None:
        found = self._matrices[name]
        return found if isinstance(found, Blocks) else None

    def block_kind(self, name: str) -> BlockKind | None:
        found = self._matrices[name]
        return found.kind if isinstance(found, Blocks) else None


INT4, INT8, FLOATS = quantise(normal(9, 64), "int4"), quantise(normal(6, 64), "int8"), normal(5, 64)
READER = {"a": INT4, "b": INT8, "c": FLOATS}
PARTS = {"a": ("a", (9, 64)), "b": ("b", (6, 64)), "c": ("c", (5, 64))}
EXACT = {"a": dequantise(INT4), "b": dequantise(INT8), "c": FLOATS}


@pytest.mark.parametrize(
    ("names", "format", "keep_int8", "gives", "lossless"),
    [
        ("a", "int4", False, "int4", "a"),
        ("a", "int4", True, "int4", "a"),
        ("a", "int8", False, "int8", "a"),
        ("b", "int4", False, "int4", ""),
        ("b", "int4", True, "int8", "b"),
        ("b", "int8", False, "int8", "b"),
        ("c", "int4", True, "int8", ""),
        ("ab", "int8", False, "int8", "ab"),
        ("abc", "int4", False, "int4", "a"),
        ("abc", "int4", True, "int8", "ab"),
        ("abc", "int8", True, "int8", "ab"),
        ("abc", "float32", True, "float32", "abc"),
    ],
)
def test_blocks_of_the_file_lose_nothing_they_need_not(
    names: str, format: WeightFormat, keep_int8: bool, gives: WeightFormat, lossless: str
) -> None:
    panels = read_panels(
        Reader(**READER), [PARTS[name] for name in names], format, keep_int8=keep_int8
    )
    assert panels.format == gives
    found, start = unpack(panels), 0
    for name in names:
        exact = EXACT[name]
        part = found[start : start + len(exact)]
        start += len(exact)
        assert (part == exact).all() == (name in lossless)
        assert np.abs(part - exact).max() < (0.3 if gives == "int4" else 0.02)
    assert start == panels.num_outputs


def test_blocks_are_never_widened_to_floats_on_the_way() -> None:
    reader = Reader(**READER)
    for format in ("int4", "int8"):
        read_panels(reader, [PARTS["a"], PARTS["b"]], format)
    assert reader.floats_read == []


@pytest.mark.parametrize("format", ["int4", "int8"])
@pytest.mark.parametrize(
    "odd", [normal(3, 33), np.full((3, 64), 1e6, np.float32), np.full((3, 64), -7e4, np.float32)]
)
def test_what_cannot_be_quantised_stays_float32(odd: np.ndarray, format: WeightFormat) -> None:
    other = normal(8, odd.shape[1])
    parts = [("even", other.shape), ("odd", odd.shape)]
    panels = read_panels(Reader(even=other, odd=odd), parts, format)
    assert panels.format == "float32"
    assert (unpack(panels) == np.concatenate([other, odd])).all()


def test_widened_int4_packs_as_int8() -> None:
    assert (unpack(pack_blocks(widen(INT4))) == EXACT["a"]).all()
