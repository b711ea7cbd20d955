"""x @ weight.T for weights in 4 or 8 bits, groups of 32 inputs sharing a scale and a minimum.

A weight is scale * q + minimum.  Products are made of weights widened on the way, so that results
are those of the widened matrix; activations keep their type.  For few tokens, where the weights'
bytes are what a step waits for; above MOST_TOKENS `widen_weight` and a library's product are
meant to be faster.

Moves num_outputs * num_inputs * bits / 8 bytes and 4 bytes for each group, from the second-level
cache once for every BLOCK_M tokens; does 2 * tokens * num_outputs * num_inputs operations.
"""

import torch
import triton
import triton.language as tl

from kernels.compile_case import FUSED, SHORT_DTYPES, CompileCase, CompileCases
from kernels.product_blocks import NEIGHBOURS, product_block
from kernels.quantised_weight import GROUP, QuantisedWeight, check_weight, widened

MOST_TOKENS = 128
"""On paper, as no card was at hand: of a weight in 8 bits widening moves 5 bytes (1 in, 2 out, 2 in
again), this one, and some ten operations for every 64 tokens."""

_GROUP = tl.constexpr(GROUP)
_STAGES = 3


def quantised_linear(
    x: torch.Tensor, weight: QuantisedWeight, *, one_tile: bool = False
) -> torch.Tensor:
    """[tokens, num_outputs] of [tokens, num_inputs], in x's type, summed in float32.

    one_tile: a token's bits do not depend on how many others there are.  Else few tokens have a
    smaller tile, which is faster, but may be multiplied by other instructions, as on sm_90.

    Raises:
        ValueError: shapes or types do not go together.
    """
    _check(x, weight)
    num_tokens = len(x)
    num_outputs, num_inputs = weight.shape
    y = x.new_empty(num_tokens, num_outputs)
    block_m = block_tokens(num_tokens, one_tile)
    if num_tokens:
        constants = _constants(weight.bits, block_m, num_inputs, x.dtype)
        token_blocks = triton.cdiv(num_tokens, constants["BLOCK_M"])
        _product[(token_blocks * triton.cdiv(num_outputs, constants["BLOCK_N"]),)](
            x, weight.values, weight.scale, weight.minimum, y, num_tokens, num_outputs, num_inputs,
            x.stride(0), **constants, num_stages=_STAGES,
            **FUSED,
        )  # fmt: skip
    return y


def block_tokens(num_tokens: int, one_tile: bool) -> int:
    """Tokens of a tile."""
    return 16 if num_tokens <= 16 and not one_tile else 64


def _constants(bits: int, block_m: int, num_inputs: int, dtype: torch.dtype) -> dict[str, int]:
    is_exact = dtype == torch.float32  # products of such stay in registers
    return {
        "BITS": bits,
        "BLOCK_M": block_m,
        "BLOCK_N": 16 if is_exact else 64,
        "GROUPS": 1 if is_exact or num_inputs % (4 * GROUP) else 4,
        "NEIGHBOURS": NEIGHBOURS,
        "STAGES": _STAGES,
    }


# Not specialised: a step's number of tokens must not be compiled anew while they wait.
@triton.jit(do_not_specialize=["num_tokens"])
def _product(
    x, values, scale, minimum, y, num_tokens, num_outputs, num_inputs, x_stride,
    BITS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUPS: tl.constexpr,
    NEIGHBOURS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of tokens * blocks of outputs)."""
    token_block, output_block = product_block(num_tokens, num_outputs, BLOCK_M, BLOCK_N, NEIGHBOURS)
    token = token_block * BLOCK_M + tl.arange(0, BLOCK_M)
    output = output_block * BLOCK_N + tl.arange(0, BLOCK_N)
    row = x + token[:, None].to(tl.int64) * x_stride
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    group = tl.arange(0, GROUPS)
    num_groups = num_inputs // _GROUP
    # Of a group one load takes HELD values: all 32, or the 16 bytes of pairs.
    HELD: tl.constexpr = _GROUP if BITS == 8 else _GROUP // 2
    step = tl.arange(0, GROUPS * HELD)
    inside = (token < num_tokens)[:, None]
    for first in tl.range(0, num_groups, GROUPS, num_stages=STAGES):
        at = output[None, :].to(tl.int64) * num_groups + first + group[:, None]
        there = (output < num_outputs)[None, :]
        factor = tl.load(scale + at, mask=there, other=0.0).to(tl.float32)[:, None, :]
        least = tl.load(minimum + at, mask=there, other=0.0).to(tl.float32)[:, None, :]
        place = output[None, :].to(tl.int64) * (num_groups * HELD) + first * HELD + step[:, None]
        code = tl.reshape(tl.load(values + place, mask=there, other=0), (GROUPS, HELD, BLOCK_N))
        column = first * _GROUP + step // HELD * _GROUP + step % HELD
        numbers = tl.load(row + column[None, :], mask=inside, other=0.0)
        if BITS == 8:
            total = _added(total, numbers, code, factor, least)
        else:
            total = _added(total, numbers, code & 0xF, factor, least)
            numbers = tl.load(row + column[None, :] + HELD, mask=inside, other=0.0)
            total = _added(total, numbers, code >> 4, factor, least)
    place = y + token[:, None].to(tl.int64) * num_outputs + output[None, :]
    there = inside & (output < num_outputs)[None, :]
    tl.store(place, total.to(y.dtype.element_ty), mask=there)


@triton.jit
def _added(total, numbers, code, factor, least):
    """total + numbers [M, groups * held] @ widened codes [groups, held, N]."""
    weight = code.to(tl.float32) * factor + least
    shape: tl.constexpr = (code.shape[0] * code.shape[1], code.shape[2])
    weight = tl.reshape(weight, shape).to(numbers.dtype)
    return tl.dot(numbers, weight, total, input_precision="ieee")


def quantised_linear_reference(
    x: torch.Tensor, weight: QuantisedWeight, *, one_tile: bool = False
) -> torch.Tensor:
    """The same in plain torch: the widened matrix, in x's type."""
    _check(x, weight)
    return (x.float() @ widened(weight).to(x.dtype).float().T).to(x.dtype)


def _check(x: torch.Tensor, weight: QuantisedWeight) -> None:
    num_inputs = weight.shape[1]
    if x.ndim != 2 or x.shape[1] != num_inputs or x.stride(1) != 1:
        raise ValueError(f"x {tuple(x.shape)} for {num_inputs} inputs")
    check_weight(weight)


def compile_cases() -> CompileCases:
    """Few and many tokens, both widths."""
    for bits, stored in ((8, "*i8"), (4, "*u8")):
        for block_m, dtype in ((16, "bf16"), (64, "bf16"), (16, "f32")):
            yield CompileCase(
                name=f"quantised_linear {dtype} {bits} bits BM{block_m}",
                kernel=_product,
                types={
                    "x": SHORT_DTYPES[dtype], "values": stored, "scale": "*fp16",
                    "minimum": "*fp16", "y": SHORT_DTYPES[dtype], "num_tokens": "i32",
                    "num_outputs": "i32", "num_inputs": "i32", "x_stride": "i32",
                },
                constants=_constants(
                    bits, block_m, 4096, torch.float32 if dtype == "f32" else torch.bfloat16
                ),
                num_stages=_STAGES,
                any_size=frozenset({"num_tokens"}),
            )  # fmt: skip
