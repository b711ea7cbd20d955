"""A matrix of 4 or 8 bits as numbers, for a library's product: what many tokens share.

In one pass, as what torch makes of the same (codes, times scale, plus minimum, in another type) is
five, with the whole matrix in float32 in between.  The numbers are those that `quantised_linear`
multiplies by.  Moves bits / 8 bytes a weight and 4 a group in, and the type's bytes a weight out.
"""

import torch
import triton
import triton.language as tl

from kernels.compile_case import FUSED, SHORT_DTYPES, CompileCase, CompileCases
from kernels.quantised_weight import GROUP, QuantisedWeight, check_weight, widened

_GROUP = tl.constexpr(GROUP)
_BLOCK = 128
"""Groups of a program."""


def widen_weight(weight: QuantisedWeight, dtype: torch.dtype) -> torch.Tensor:
    """The matrix [num_outputs, num_inputs] in this type.

    Raises:
        ValueError: shapes, types or strides of the weight do not go together.
    """
    check_weight(weight)
    out = torch.empty(weight.shape, dtype=dtype, device=weight.values.device)
    num_groups = weight.scale.numel()
    if num_groups:
        _widen[(triton.cdiv(num_groups, _BLOCK),)](
            weight.values, weight.scale, weight.minimum, out, num_groups,
            **_constants(weight.bits), **FUSED,
        )  # fmt: skip
    return out


def _constants(bits: int) -> dict[str, int]:
    return {"BITS": bits, "BLOCK": _BLOCK}


@triton.jit
def _widen(values, scale, minimum, out, num_groups, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (blocks of groups)."""
    # Of a group one load takes HELD values: all 32, or the 16 bytes of pairs.
    HELD: tl.constexpr = _GROUP if BITS == 8 else _GROUP // 2
    group = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = group < num_groups
    factor = tl.load(scale + group, mask=there, other=0.0).to(tl.float32)[:, None]
    least = tl.load(minimum + group, mask=there, other=0.0).to(tl.float32)[:, None]
    step = tl.arange(0, HELD)[None, :]
    code = tl.load(values + group[:, None] * HELD + step, mask=there[:, None], other=0)
    place = out + group[:, None] * _GROUP + step
    if BITS == 8:
        number = code.to(tl.float32) * factor + least
        tl.store(place, number.to(out.dtype.element_ty), mask=there[:, None])
    else:
        low = (code & 0xF).to(tl.float32) * factor + least
        tl.store(place, low.to(out.dtype.element_ty), mask=there[:, None])
        high = (code >> 4).to(tl.float32) * factor + least
        tl.store(place + HELD, high.to(out.dtype.element_ty), mask=there[:, None])


def widen_weight_reference(weight: QuantisedWeight, dtype: torch.dtype) -> torch.Tensor:
    """The same in plain torch."""
    check_weight(weight)
    return widened(weight).to(dtype)


def compile_cases() -> CompileCases:
    """Both widths; sizes are no constants."""
    for bits, stored in ((8, "*i8"), (4, "*u8")):
        for dtype in ("bf16", "f32"):
            yield CompileCase(
                name=f"widen_weight {dtype} {bits} bits",
                kernel=_widen,
                types={
                    "values": stored, "scale": "*fp16", "minimum": "*fp16",
                    "out": SHORT_DTYPES[dtype], "num_groups": "i32",
                },
                constants=_constants(bits),
            )  # fmt: skip
