"""x @ weight.T + bias, whose every row has the same bits alone and among any others.

For the deterministic mode: a library's product picks its tile, and with it the order of the sums,
by the number of rows.  Here one tile serves every number of rows, chosen by the weight alone, and
each element is summed along the inputs in one order, in float32, without a split of them.  Source
of the idea: He and Thinking Machines Lab, "Defeating Nondeterminism in LLM Inference" (2025).

x [tokens, num_inputs] and weight [num_outputs, num_inputs] are bfloat16, float16 or float32, both
of one type, inputs contiguous.  Float32 is multiplied as such, not in TF32.

Moves the weight once for every BLOCK_M tokens, and x once for every BLOCK_N outputs, of which the
second-level cache serves most where there are many; does 2 * tokens * num_outputs * num_inputs
operations.  Up to some hundred tokens it is bound by the weight's bytes.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.compile_case import FUSED, SHORT_DTYPES, CompileCase, CompileCases, Vendor, vendor_here
from kernels.product_blocks import NEIGHBOURS, product_block

_DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_WIDE_OUTPUTS = 16384
"""From here on large tiles of outputs still occupy every multiprocessor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Sizes fixed when the kernel is compiled, chosen so that nothing spills; see kernels.check."""

    block_tokens: int
    block_outputs: int
    block_inputs: int
    num_warps: int
    num_stages: int


def tile_for(num_outputs: int, dtype: torch.dtype, vendor: Vendor) -> Tile:
    """The tile of a weight: never of the number of tokens, as its sums are in the tile's order."""
    if dtype == torch.float32:  # products of such stay in registers
        return Tile(block_tokens=32, block_outputs=64, block_inputs=32, num_warps=4, num_stages=2)
    is_wide, is_amd = num_outputs >= _WIDE_OUTPUTS, vendor == "amd"
    return Tile(
        block_tokens=128 if is_wide else 64,
        block_outputs=128 if is_wide else 32,
        block_inputs=64 if is_wide or is_amd else 128,
        num_warps=8 if is_wide else 4,
        num_stages=2 if is_amd else 3,
    )


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """[tokens, num_outputs] of [tokens, num_inputs], in x's type.

    weight: [num_outputs, num_inputs].  bias: [num_outputs] or None, of the same type.

    Raises:
        ValueError: shapes, types or strides do not go together; names which.
    """
    _check(x, weight, bias)
    (num_tokens, num_inputs), num_outputs = x.shape, len(weight)
    y = x.new_empty(num_tokens, num_outputs)
    tile = tile_for(num_outputs, x.dtype, vendor_here())
    token_blocks = triton.cdiv(num_tokens, tile.block_tokens)
    if y.numel():
        _product[(token_blocks * triton.cdiv(num_outputs, tile.block_outputs),)](
            x, weight, weight if bias is None else bias, y, num_tokens, num_outputs, num_inputs,
            # One row may claim any stride; the compiler must not see another number for it.
            num_inputs if num_tokens == 1 else x.stride(0), weight.stride(0),
            **_constants(tile, bias is not None),
            num_warps=tile.num_warps, num_stages=tile.num_stages,
            **FUSED,
        )  # fmt: skip
    return y


def _constants(tile: Tile, has_bias: bool) -> dict[str, object]:
    return {
        "HAS_BIAS": has_bias,
        "BLOCK_M": tile.block_tokens,
        "BLOCK_N": tile.block_outputs,
        "BLOCK_K": tile.block_inputs,
        "NEIGHBOURS": NEIGHBOURS,
        "STAGES": tile.num_stages,
    }


# Not specialised: one token, or 16, is to run the same code as any other number.
@triton.jit(do_not_specialize=["num_tokens"])
def _product(
    x, weight, bias, y, num_tokens, num_outputs, num_inputs, x_stride, weight_stride,
    HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    NEIGHBOURS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of tokens * blocks of outputs)."""
    token_block, output_block = product_block(num_tokens, num_outputs, BLOCK_M, BLOCK_N, NEIGHBOURS)
    token = token_block * BLOCK_M + tl.arange(0, BLOCK_M)
    output = output_block * BLOCK_N + tl.arange(0, BLOCK_N)
    column = tl.arange(0, BLOCK_K)
    has_token, has_output = (token < num_tokens)[:, None], (output < num_outputs)[None, :]
    rows = x + token[:, None].to(tl.int64) * x_stride + column[None, :]
    weights = weight + output[None, :].to(tl.int64) * weight_stride + column[:, None]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in tl.range(0, num_inputs, BLOCK_K, num_stages=STAGES):
        left = num_inputs - start
        numbers = tl.load(rows + start, mask=has_token & (column < left)[None, :], other=0.0)
        factors = tl.load(weights + start, mask=has_output & (column < left)[:, None], other=0.0)
        total = tl.dot(numbers, factors, total, input_precision="ieee")
    if HAS_BIAS:
        added = tl.load(bias + output, mask=output < num_outputs, other=0.0)
        total += added.to(tl.float32)[None, :]
    place = y + token[:, None].to(tl.int64) * num_outputs + output[None, :]
    tl.store(place, total.to(y.dtype.element_ty), mask=has_token & has_output)


def linear_reference(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """The same in plain torch, summed in float64."""
    _check(x, weight, bias)
    y = x.double() @ weight.double().T
    return (y if bias is None else y + bias.double()).to(x.dtype)


def _check(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    if x.ndim != 2 or weight.ndim != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"x {tuple(x.shape)} and weight {tuple(weight.shape)}")
    if x.dtype not in _DTYPES:
        raise ValueError(f"x {x.dtype}: not bfloat16, float16 or float32")
    if bias is not None and (bias.shape != (len(weight),) or not bias.is_contiguous()):
        raise ValueError(f"bias {tuple(bias.shape)}: not [{len(weight)}] contiguous")
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and tensor.dtype != x.dtype:
            raise ValueError(f"{name} {tensor.dtype} for x {x.dtype}")
    for name, tensor in (("x", x), ("weight", weight)):
        if tensor.stride(1) != 1:
            raise ValueError(f"{name}: the inputs do not lie one behind the other")


def compile_cases() -> CompileCases:
    """Both tiles in half precision, and float32's."""
    vendors: tuple[Vendor, ...] = ("nvidia", "amd")
    for vendor in vendors:
        for num_outputs, dtype, has_bias in (
            (4096, torch.bfloat16, True),
            (28672, torch.bfloat16, False),
            (28672, torch.float16, False),
            (576, torch.float32, False),
        ):
            tile = tile_for(num_outputs, dtype, vendor)
            short = _DTYPES[dtype]
            yield CompileCase(
                name=f"linear {short} {num_outputs}{' bias' * has_bias}",
                kernel=_product,
                vendor=vendor,
                types={
                    "x": SHORT_DTYPES[short], "weight": SHORT_DTYPES[short],
                    "bias": SHORT_DTYPES[short], "y": SHORT_DTYPES[short], "num_tokens": "i32",
                    "num_outputs": "i32", "num_inputs": "i32", "x_stride": "i32",
                    "weight_stride": "i32",
                },
                constants=_constants(tile, has_bias),
                num_warps=tile.num_warps,
                num_stages=tile.num_stages,
                any_size=frozenset({"num_tokens"}),
                wants=() if short == "f32" else (
                    "sm_80:cp.async", "sm_90:wgmma.mma_async", "sm_100:tcgen05.mma"
                ),
            )  # fmt: skip
