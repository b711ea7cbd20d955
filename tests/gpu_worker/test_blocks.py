"""Quantising to groups of 32: how far off values may be, and which matrices are refused."""

import warnings
from collections.abc import Callable

import numpy as np
import pytest

from gpu_worker.blocks import (
    BlockKind,
    Blocks,
    can_quantise,
    dequantise,
    quantise,
    stack,
    widen,
)

KINDS: list[BlockKind] = ["int4", "int8"]
LEVELS = {"int4": 15, "int8": 254}


def normal(shape: tuple[int, int], scale: float = 1.0, mean: float = 0.0) -> np.ndarray:
    values = np.random.default_rng(sum(shape)).normal(mean, scale, shape)
    return values.astype(np.float32)


def by_group(matrix: np.ndarray) -> np.ndarray:
    return matrix.reshape(len(matrix), -1, 32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("scale", "mean"), [(1.0, 0.0), (0.02, 0.0), (3e-6, 0.0), (1e4, 0.0), (0.01, 0.5), (1.0, -3e4)]
)
def test_no_value_is_off_by_more_than_half_a_step(
    kind: BlockKind, scale: float, mean: float
) -> None:
    matrix = normal((37, 96), scale, mean)
    blocks = quantise(matrix, kind)
    assert (blocks.kind, blocks.shape) == (kind, (37, 96))
    off = np.abs(by_group(dequantise(blocks).astype(np.float64) - matrix)).max(-1)
    largest = np.abs(by_group(matrix)).max(-1)
    steps = blocks.scale.astype(np.float64)
    assert (off <= 0.5001 * steps + 2.0**-11 * largest + 2.0**-25).all()
    # And the steps are no longer than they must be.
    reach = np.ptp(by_group(matrix), axis=-1) + 2.0**-10 * largest
    assert (steps <= 1.001 * reach / LEVELS[kind] + 2.0**-24).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -0.3, 6e-8, 65504.0, -65504.0])
def test_groups_of_equal_values_are_exact_to_float16(kind: BlockKind, value: float) -> None:
    matrix = np.full((2, 64), value, np.float32)
    found = dequantise(quantise(matrix, kind))
    assert np.isfinite(found).all()
    assert (np.abs(found - matrix) <= np.abs(matrix - np.float16(value))).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_range_of_float16_fits(kind: BlockKind) -> None:
    matrix = np.linspace(-65504, 65504, 64, dtype=np.float32).reshape(2, 32)
    matrix[0, 0], matrix[0, 1] = 65504, -65504
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        blocks = quantise(matrix, kind)
    off = np.abs(dequantise(blocks) - matrix)
    assert off.max() <= 131008 / LEVELS[kind] / 2 + 32


def spoil(value: float) -> np.ndarray:
    matrix = normal((3, 64))
    matrix[1, 40] = value
    return matrix


@pytest.mark.parametrize(
    "matrix",
    [normal((3, 33)), normal((3, 31)), normal((0, 32)), normal((3, 0)),
     spoil(np.nan), spoil(np.inf), spoil(-np.inf), spoil(70000.0), spoil(-1e30)],
)  # fmt: skip
@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_quantised_is_refused(matrix: np.ndarray, kind: BlockKind) -> None:
    assert not can_quantise(matrix)
    with pytest.raises(ValueError, match="not whole groups of 32 values within float16"):
        quantise(matrix, kind)


def test_values_of_blocks_by_hand() -> None:
    values = np.arange(16, dtype=np.uint8).reshape(1, 1, 16) | (15 - np.arange(16)) << 4
    half, two = np.array([[0.5]], np.float16), np.array([[-2.0]], np.float16)
    blocks = Blocks(kind="int4", values=values.astype(np.uint8), scale=half, minimum=two)
    wanted = [0.5 * q - 2 for q in [*range(16), *range(15, -1, -1)]]
    assert dequantise(blocks).tolist() == [wanted]
    wide = widen(blocks)
    assert (wide.kind, wide.values.dtype) == ("int8", np.int8)
    assert wide.values.tolist() == [[[*range(16), *range(15, -1, -1)]]]
    assert dequantise(wide).tolist() == [wanted]
    assert widen(wide) is wide


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_quantised_quantises_to_itself(kind: BlockKind) -> None:
    once = dequantise(quantise(normal((40, 320)), kind))
    again = dequantise(quantise(once, kind))
    assert np.abs(again - once).max() <= 2.0**-11 * np.abs(once).max()


def test_large_matrices_are_worked_on_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = normal((50, 64))
    whole: Callable[[], list[np.ndarray]] = lambda: [  # noqa: E731
        dequantise(quantise(matrix, kind)) for kind in KINDS
    ]
    wanted = whole()
    for size in (1, 64, 200):
        monkeypatch.setattr("gpu_worker.blocks._SLICE", size)
        assert all((a == b).all() for a, b in zip(whole(), wanted, strict=True))


def test_stack() -> None:
    parts = [quantise(normal((rows, 64)), "int4") for rows in (3, 8, 1)]
    assert stack(parts[:1]) is parts[0]
    wanted = np.concatenate([dequantise(part) for part in parts])
    assert (dequantise(stack(parts)) == wanted).all()
