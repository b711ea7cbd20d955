"""Weights of 8 and 4 bits on the kernels: which blocks a matrix gets, and what it multiplies to."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gpu_worker.blocks import BlockKind, Blocks, FloatArray, dequantise, quantise
from gpu_worker.device import device_home, quantised_home
from gpu_worker.device.device_backend import DeviceBackend
from gpu_worker.device.device_home import DeviceHome
from gpu_worker.device.quantised_home import QuantisedHome
from gpu_worker.weight_home import MatrixSource, Role
from kernels import quantised_linear
from kernels.quantised_linear import MOST_TOKENS, block_tokens
from kernels.quantised_weight import QuantisedWeight
from kernels.widen_weight import widen_weight
from tests.gpu_worker.interpreted import INTERPRETED
from tests.gpu_worker.random_models import RandomWeights, all_logits, shape

CPU = torch.device("cpu")


class FileOfBlocks(RandomWeights):
    """Matrices in blocks of this kind, drawn, so that they are not the nearest to any floats."""

    def __init__(self, kind: BlockKind | None) -> None:
        self._kind = kind

    def block_kind(self, name: str) -> BlockKind | None:
        return self._kind

    def read_blocks(self, name: str, shape: tuple[int, int]) -> Blocks | None:
        if self._kind is None:
            return None
        blocks = quantise(super().read(name, shape), self._kind)
        # Only the middle of the range is used: quantised again, it would get another scale.
        values = blocks.values & 0x77 | 0x44 if self._kind == "int4" else blocks.values // 2
        return Blocks(kind=self._kind, values=values, scale=blocks.scale, minimum=blocks.minimum)

    def read(self, name: str, shape: tuple[int, ...]) -> FloatArray:
        blocks = self.read_blocks(name, shape) if len(shape) == 2 else None  # type: ignore[arg-type]
        return super().read(name, shape) if blocks is None else dequantise(blocks)


def sources(reader: RandomWeights, *shapes: tuple[int, int]) -> list[MatrixSource]:
    return [
        MatrixSource(reader=reader, name=f"part{index}", shape=shape)
        for index, shape in enumerate(shapes)
    ]


def home(kind: BlockKind, *, keep_int8: bool = False, deterministic: bool = False) -> QuantisedHome:
    plain = DeviceHome(CPU, torch.float32)
    return QuantisedHome(plain, CPU, kind, keep_int8=keep_int8, deterministic=deterministic)


@pytest.mark.parametrize(
    ("kind", "in_file", "role", "keep_int8", "wanted"),
    [
        ("int8", "int8", "down", False, "as it is"),
        ("int4", "int4", "down", False, "as it is"),
        ("int4", "int4", "head", True, "as it is"),
        ("int8", "int4", "down", False, "as it is"),  # widened, without loss
        ("int4", "int8", "head", False, "as it is"),
        ("int4", "int8", "down", True, "as it is"),
        ("int8", None, "qkv", False, "int8"),
        ("int4", None, "qkv", False, "int4"),
        ("int4", None, "head", False, "int8"),
        ("int4", "int8", "qkv", False, "int4"),
    ],
)
def test_which_blocks_a_matrix_gets(
    kind: BlockKind, in_file: BlockKind | None, role: Role, keep_int8: bool, wanted: str
) -> None:
    parts = sources(FileOfBlocks(in_file), (3, 64), (5, 64))
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(1))
    y = home(kind, keep_int8=keep_int8).matrix(role, parts)(x)
    matrices = [part.read() for part in parts]
    if wanted != "as it is":
        matrices = [dequantise(quantise(matrix, wanted)) for matrix in matrices]  # type: ignore[arg-type]
    exact = x.double() @ torch.from_numpy(np.concatenate(matrices)).double().T
    torch.testing.assert_close(y.double(), exact, atol=1e-5, rtol=1e-5)


def test_many_tokens_are_multiplied_like_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the library, from widened weights, but in deterministic mode."""
    widened: list[torch.dtype] = []

    def watched(weight: QuantisedWeight, dtype: torch.dtype) -> torch.Tensor:
        widened.append(dtype)
        return widen_weight(weight, dtype)

    monkeypatch.setattr(quantised_home, "widen_weight", watched)
    x = torch.randn(MOST_TOKENS + 1, 32, generator=torch.Generator().manual_seed(2))
    for deterministic in (False, True):
        product = home("int4", deterministic=deterministic).matrix(
            "down", sources(RandomWeights(), (7, 32))
        )
        many, few = product(x), product(x[:3])
        torch.testing.assert_close(many[:3], few, atol=1e-5, rtol=1e-5)
        assert torch.equal(many[:3], few) or not deterministic
        assert widened == [torch.float32]


def test_one_tile_serves_any_number_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter gives tiles the same bits, which instructions of a GPU need not."""
    used: list[int] = []

    def watched(num_tokens: int, one_tile: bool) -> int:
        used.append(block_tokens(num_tokens, one_tile))
        return used[-1]

    monkeypatch.setattr(quantised_linear, "block_tokens", watched)
    for deterministic in (True, False):
        product = home("int8", deterministic=deterministic).matrix(
            "down", sources(RandomWeights(), (7, 32))
        )
        for num_tokens in (1, 17):
            product(torch.ones(num_tokens, 32))
    assert used == [64, 64, 16, 64]


def test_biases_are_added() -> None:
    (part,) = sources(RandomWeights(), (4, 32))
    x = torch.randn(2, 32, generator=torch.Generator().manual_seed(3))
    with_bias = replace(part, has_bias=True)
    bias = with_bias.read_bias()
    assert bias is not None
    y = home("int8").matrix("qkv", [part])(x)
    assert torch.equal(home("int8").matrix("qkv", [with_bias])(x), y + torch.from_numpy(bias))


def test_what_is_no_whole_group_stays_as_it_is() -> None:
    parts = sources(RandomWeights(), (4, 40))
    x = torch.randn(2, 40, generator=torch.Generator().manual_seed(3))
    y = home("int8").matrix("down", parts)(x)
    torch.testing.assert_close(y, x @ torch.from_numpy(parts[0].read()).T)


@pytest.mark.parametrize(("kind", "most"), [("int8", 0.03), ("int4", 0.2)])
def test_a_model_in_blocks_is_near_the_model(kind: BlockKind, most: float) -> None:
    config = shape(num_layers=1, num_heads=2, num_kv_heads=1, hidden_size=32, intermediate_size=32)
    tokens = [3, 1, 4, 1, 5, 9]

    def logits(blocks: BlockKind | None) -> tuple[str, FloatArray]:
        backend = DeviceBackend(config, RandomWeights(), replace(INTERPRETED, blocks=blocks))
        return backend.weights, all_logits(backend, tokens)

    (plain, exact), (name, coarse) = logits(None), logits(kind)
    assert (plain, name) == ("float32", kind)
    error = np.abs(coarse - exact).max() / np.abs(exact).max()
    assert 0 < error < most


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_head_makes_whole_rows_of_logits(is_tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of an odd vocabulary would begin anywhere; so would those of a part of the table, behind
    which lie rows of another rank."""
    found: list[int] = []
    multiply = torch.nn.functional.linear

    def watched(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        found.append(len(weight))
        return multiply(x, weight, bias)

    monkeypatch.setattr(torch.nn.functional, "linear", watched)
    (part,) = sources(RandomWeights(), (99, 8))
    plain, x = DeviceHome(CPU, torch.float32), torch.randn(2, 8)
    table = plain.table(part.read())
    pieces = [table, table[3:50], table[50:]] if is_tied else [table]
    for piece in pieces:
        product = plain.tied_head(piece) if is_tied else plain.matrix("head", [part])
        torch.testing.assert_close(product(x), x @ piece.T)
    assert found == [128, 64, 64][: len(pieces)]
    plain.matrix("down", [part])(x)
    monkeypatch.setattr(device_home, "linear", watched)
    same_bits = DeviceHome(CPU, torch.float32, deterministic=True)
    (same_bits.tied_head(table) if is_tied else same_bits.matrix("head", [part]))(x)
    assert found[len(pieces) :] == [99, 99]
