"""Kernels in bfloat16 and float16, each once, on the interpreter mended for the former.

Tolerances: bfloat16 has 8 bits, so that a result of size 1 is rounded by up to 2 ** -9, and a
weight or probability within as much; results here are of size 1 to 4.  float16 has 11 bits.
"""

import pytest
import torch
import triton
import triton.language as tl

from kernels.attention_inputs import AttentionRules
from kernels.kv_codes import CodedSlots, KvKind, KvLayer
from kernels.linear import linear, linear_reference
from kernels.paged_attention import paged_attention
from kernels.quantised_linear import quantised_linear, quantised_linear_reference
from kernels.quantised_weight import QuantisedWeight
from kernels.rms_norm import rms_norm, rms_norm_reference
from kernels.rope_store import Rotation, rope_store, rope_store_reference
from kernels.widen_weight import widen_weight, widen_weight_reference
from tests.kernels.batches import Shape, batch, cut, softmax_attention
from tests.kernels.bfloat16 import interpret_bfloat16
from tests.kernels.lone_rows import interpret_rows_alone

BF16 = torch.bfloat16
ROUNDING = {BF16: 2.0**-8, torch.float16: 2.0**-10}


@pytest.fixture(autouse=True)
def mended(monkeypatch: pytest.MonkeyPatch) -> None:
    interpret_rows_alone(monkeypatch)  # which the other one then calls
    interpret_bfloat16(monkeypatch)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(BF16)


def close(out: torch.Tensor, wanted: torch.Tensor) -> None:
    """Within two roundings of either."""
    assert out.dtype == wanted.dtype
    rounding = ROUNDING[out.dtype]
    torch.testing.assert_close(out.float(), wanted.float(), atol=rounding, rtol=2 * rounding)


@triton.jit
def _casts(wide, narrow, back, halves, product, SIZE: tl.constexpr):  # noqa: N803 (as in kernels)
    place = tl.arange(0, SIZE)
    rounded = tl.load(wide + place).to(tl.bfloat16)
    tl.store(narrow + place, rounded)
    tl.store(back + place, tl.load(narrow + place).to(tl.float32))
    tl.store(halves + place, rounded.to(tl.float16))
    square = tl.reshape(rounded, (SIZE // 64, 64))
    total = tl.dot(square, tl.trans(square))
    at = tl.arange(0, SIZE // 64)
    tl.store(product + at[:, None] * (SIZE // 64) + at[None, :], total)


def test_the_interpreter_casts_and_multiplies_as_torch_does() -> None:
    """Random numbers, and those in the middle between two, or too small to be normal."""
    halfway = torch.arange(1, 1025).to(BF16).float() * (1 + 2.0**-8)
    wide = torch.cat([random(3070).float() * 1.001, halfway, torch.tensor([1e-40, -0.0])])
    narrow, halves = torch.zeros(4096, dtype=BF16), torch.zeros(4096, dtype=torch.float16)
    back, product = torch.zeros(4096), torch.zeros(64, 64)
    _casts[(1,)](wide, narrow, back, halves, product, SIZE=4096)
    assert torch.equal(narrow.view(torch.int16), wide.to(BF16).view(torch.int16))
    assert torch.equal(back, wide.to(BF16).float())
    assert torch.equal(halves, wide.to(BF16).half())
    square = wide.to(BF16).double().view(64, 64)
    torch.testing.assert_close(product.double(), square @ square.T, rtol=1e-5, atol=1e-2)


@triton.jit
def _doubles(numbers):
    tl.store(numbers, tl.load(numbers) + tl.load(numbers))


def test_arithmetic_on_bfloat16_is_refused() -> None:
    with pytest.raises(Exception, match="widen what is loaded"):
        _doubles[(1,)](random(1))


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [(BF16, "none"), (BF16, "int8"), (BF16, "fp8"), (torch.float16, "none")],
)
@pytest.mark.parametrize("block_queries", [16, 64])
def test_attention(dtype: torch.dtype, kind: KvKind, block_queries: int) -> None:
    """Decode, and extend; of contexts split and whole, pages of several slots."""
    queries = (1, 1, 1) if block_queries == 16 else (1, 17, 30)
    shape = Shape(page_size=16, lengths=(1, 70, 130), queries=queries, dtype=dtype, kind=kind)
    given, rules = batch(shape), AttentionRules(scale=shape.head_dim**-0.5)
    work = cut(given, block_queries=block_queries)
    out = paged_attention(given.query, given.kv, work, rules)
    close(out, softmax_attention(given, rules)[0].to(dtype))


def test_rms_norm() -> None:
    ours, theirs = random(3, 100), random(3, 100)
    x, weight = random(3, 100) + 1, random(100)
    close(rms_norm(x, weight, 1e-5, ours), rms_norm_reference(x, weight, 1e-5, theirs))
    assert torch.equal(ours, theirs)


def test_rope_store() -> None:
    angles = torch.arange(50)[:, None] / (10000 ** (torch.arange(20) / 20))
    rotation = Rotation(cos=angles.cos(), sin=angles.sin())
    places = torch.tensor([3, 49, 7], dtype=torch.int32)
    pools = [torch.zeros(50, 3, 40, dtype=BF16) for _ in range(4)]
    ours, theirs = (
        KvLayer(keys=CodedSlots(codes=keys), values=CodedSlots(codes=values))
        for keys, values in (pools[:2], pools[2:])
    )
    qkv = random(3, 12 * 40)
    query = rope_store(qkv, places, places, rotation, ours)
    close(query, rope_store_reference(qkv, places, places, rotation, theirs))
    close(pools[0], pools[2])
    assert torch.equal(pools[1], pools[3])
    assert pools[1].any()


def test_linear() -> None:
    x, weight, bias = random(70, 100) / 10, random(40, 100), random(40)
    together = linear(x, weight, bias)
    close(together, linear_reference(x, weight, bias))
    assert torch.equal(linear(x[68:69], weight, bias), together[68:69])


@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_linear(bits: int) -> None:
    generator = torch.Generator().manual_seed(bits)
    held = (20, 96 * bits // 8)
    values = torch.randint(0, 128, held, generator=generator)
    weight = QuantisedWeight(
        bits=bits,  # type: ignore[arg-type]
        values=values.to(torch.uint8 if bits == 4 else torch.int8),
        scale=(random(20, 3) / 16).half(),
        minimum=random(20, 3).half(),
    )
    x = random(5, 96) / 10
    wanted = quantised_linear_reference(x, weight)
    # Weights are rounded to bfloat16 on the way, and so are within a rounding of the largest.
    torch.testing.assert_close(quantised_linear(x, weight), wanted, atol=0.05, rtol=2.0**-7)
    numbers = widen_weight(weight, BF16)
    torch.testing.assert_close(numbers, widen_weight_reference(weight, BF16), atol=0, rtol=2.0**-8)
