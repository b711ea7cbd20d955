"""Root-mean-square norm of each token, with the residual added on the way.

    total = x + residual, rounded to residual's type and stored there
    y = total / rms(total) * weight

rms(v) = sqrt(mean(v ** 2) + eps) in float32 (Zhang and Sennrich, 2019).  A token's bits depend on
the token alone.  Moves 2 * size * bytes a token, 4 * size * bytes with a residual.
"""

import torch
import triton
import triton.language as tl

from kernels.compile_case import FUSED, SHORT_DTYPES, CompileCase, CompileCases

_LARGEST_SIZE = 1 << 16


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None = None,
    weight_offset: float = 0.0,
) -> torch.Tensor:
    """The norm of [tokens, size], in x's type.

    weight: [size].  residual: [tokens, size], changed in place, where given.
    weight_offset: added to every weight; 1 for Gemma, whose files hold weights less one.

    Raises:
        ValueError: shapes do not go together, or a token's numbers are not contiguous.
    """
    _check(x, weight, residual)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    num_tokens, size = x.shape
    if num_tokens:
        _rms_norm[(num_tokens,)](
            x, x if residual is None else residual, weight, y,
            x.stride(0), x.stride(0) if residual is None else residual.stride(0), y.stride(0),
            size, eps, weight_offset,
            **_constants(size, residual is not None), num_warps=_num_warps(size),
            **FUSED,
        )  # fmt: skip
    return y


def _constants(size: int, has_residual: bool) -> dict[str, object]:
    return {"HAS_RESIDUAL": has_residual, "BLOCK": triton.next_power_of_2(size)}


def _num_warps(size: int) -> int:
    return 4 if size <= 2048 else 8 if size <= 8192 else 16


@triton.jit
def _rms_norm(
    x, residual, weight, y, x_stride, residual_stride, y_stride, size, eps, weight_offset,
    HAS_RESIDUAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (tokens)."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    live = column < size
    value = tl.load(x + token * x_stride + column, mask=live, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        place = residual + token * residual_stride + column
        value += tl.load(place, mask=live, other=0.0).to(tl.float32)
        total = value.to(residual.dtype.element_ty)
        tl.store(place, total, mask=live)
        value = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / size + eps)
    factor = tl.load(weight + column, mask=live, other=0.0).to(tl.float32) + weight_offset
    normed = (value * scale * factor).to(y.dtype.element_ty)
    tl.store(y + token * y_stride + column, normed, mask=live)


def rms_norm_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None = None,
    weight_offset: float = 0.0,
) -> torch.Tensor:
    """The same in plain torch."""
    _check(x, weight, residual)
    total = x.float()
    if residual is not None:
        residual.copy_((total + residual.float()).to(residual.dtype))
        total = residual.float()
    scale = torch.rsqrt(total.square().mean(-1, keepdim=True) + eps)
    return (total * scale * (weight.float() + weight_offset)).to(x.dtype)


def _check(x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None) -> None:
    if x.ndim != 2 or weight.shape != x.shape[1:] or not 1 <= x.shape[1] <= _LARGEST_SIZE:
        raise ValueError(f"x {tuple(x.shape)} and weight {tuple(weight.shape)}")
    if residual is not None and residual.shape != x.shape:
        raise ValueError(f"x {tuple(x.shape)} and residual {tuple(residual.shape)}")
    for name, tensor in (("x", x), ("weight", weight), ("residual", residual)):
        if tensor is not None and tensor.stride(-1) != 1:
            raise ValueError(f"{name}: a token's numbers do not lie one behind the other")


def compile_cases() -> CompileCases:
    """Hidden sizes of models from 0.1 to 70 billion parameters."""
    for size, dtype in ((576, "f32"), (4096, "bf16"), (8192, "bf16")):
        for has_residual in (False, True) if size == 4096 else (True,):
            yield CompileCase(
                name=f"rms_norm {dtype} {size}{' residual' * has_residual}",
                kernel=_rms_norm,
                types={
                    "x": SHORT_DTYPES[dtype], "residual": SHORT_DTYPES[dtype],
                    "weight": SHORT_DTYPES[dtype], "y": SHORT_DTYPES[dtype], "x_stride": "i32",
                    "residual_stride": "i32", "y_stride": "i32", "size": "i32", "eps": "fp32",
                    "weight_offset": "fp32",
                },
                constants=_constants(size, has_residual),
                num_warps=_num_warps(size),
            )  # fmt: skip
