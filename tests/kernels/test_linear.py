"""The product whose rows have the same bits in any company, against float64 and against itself.

Tolerances are for sums of 100 products of size 1; float16 has 11 bits.
"""

import pytest
import torch

from kernels import linear as linear_file
from kernels.linear import linear, linear_reference, tile_for
from tests.kernels.lone_rows import interpret_rows_alone

TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-2}


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("is_wide", [False, True])
def test_a_row_has_the_same_bits_alone_and_in_company(
    dtype: torch.dtype, is_wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Odd sizes, several blocks of tokens, outputs and inputs, both tiles."""
    interpret_rows_alone(monkeypatch)
    monkeypatch.setattr(linear_file, "_WIDE_OUTPUTS", 1 if is_wide else 1000)
    x, bias = random(131, 100, dtype=dtype), random(70, dtype=dtype)
    weight = random(70, 110, dtype=dtype)[:, 3:103]
    together = linear(x, weight, bias)
    wanted = linear_reference(x, weight, bias)
    torch.testing.assert_close(together, wanted, atol=TOLERANCE[dtype], rtol=0)
    for rows in (slice(5, 6), slice(130, 131), slice(40, 57)):
        assert torch.equal(linear(x[rows], weight, bias), together[rows])


def test_nothing_is_a_product_too() -> None:
    assert linear(random(0, 8), random(5, 8)).shape == (0, 5)
    assert torch.equal(linear(random(2, 0), random(5, 0), random(5)), random(5).expand(2, 5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_weight_has_one_of_two_tiles(dtype: torch.dtype) -> None:
    """Tiles of few outputs and of many; nothing else is asked for, least of all the tokens."""
    tiles = {tile_for(outputs, dtype, "nvidia") for outputs in (1, 576, 4096, 16384, 150000)}
    assert len(tiles) == (1 if dtype == torch.float32 else 2)


@pytest.mark.parametrize(
    ("x", "weight", "bias", "named"),
    [
        (random(2, 8), random(3, 9), None, "weight"),
        (random(2, 8), random(3, 8).half(), None, "weight torch.float16 for x torch.float32"),
        (random(2, 8), random(3, 8), random(4), r"bias \(4,\)"),
        (random(2, 8), random(3, 8), random(3).half(), "bias torch.float16"),
        (random(2, 8), random(8, 3).T, None, "weight: the inputs"),
        (random(2, 8).double(), random(3, 8).double(), None, "x torch.float64"),
    ],
)
def test_what_does_not_go_together_is_refused(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        linear(x, weight, bias)
