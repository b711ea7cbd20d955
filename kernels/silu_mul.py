"""silu(gate) * up, the activation of gated feed-forward layers (Shazeer, GLU variants, 2020).

Gemma's gate is gelu in its tanh form instead.  Moves 3 * size * bytes a token.
"""

from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812 (its name everywhere)
import triton
import triton.language as tl

from kernels.compile_case import FUSED, SHORT_DTYPES, CompileCase, CompileCases

Gate = Literal["silu", "gelu_tanh"]

_BLOCK = 1024


def silu_mul(gate_up: torch.Tensor, gate: Gate = "silu") -> torch.Tensor:
    """[tokens, size] of [tokens, 2 * size], gate first, in float32 inside.

    Raises:
        ValueError: the last dimension is odd, or not contiguous.
    """
    _check(gate_up)
    num_tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(num_tokens, size)
    if num_tokens:
        grid = (num_tokens, triton.cdiv(size, _BLOCK))
        _gated[grid](
            gate_up, out, gate_up.stride(0), out.stride(0), size, GATE=gate, BLOCK=_BLOCK, **FUSED
        )
    return out


@triton.jit
def _gated(gate_up, out, in_stride, out_stride, size, GATE: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (tokens, blocks of size)."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = column < size
    row = gate_up + token * in_stride
    x = tl.load(row + column, mask=live, other=0.0).to(tl.float32)
    up = tl.load(row + size + column, mask=live, other=0.0).to(tl.float32)
    if GATE == "silu":
        x = x * tl.sigmoid(x)
    else:
        # (1 + tanh(z)) / 2 is sigmoid(2 z).
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    tl.store(out + token * out_stride + column, (x * up).to(out.dtype.element_ty), mask=live)


def silu_mul_reference(gate_up: torch.Tensor, gate: Gate = "silu") -> torch.Tensor:
    """The same in plain torch."""
    _check(gate_up)
    x, up = gate_up.float().chunk(2, dim=-1)
    x = F.silu(x) if gate == "silu" else F.gelu(x, approximate="tanh")
    return (x * up).to(gate_up.dtype)


def _check(gate_up: torch.Tensor) -> None:
    if gate_up.ndim != 2 or gate_up.shape[1] % 2 or gate_up.stride(1) != 1:
        raise ValueError(f"gate_up {tuple(gate_up.shape)}: not [tokens, 2 * size], contiguous")


def compile_cases() -> CompileCases:
    """Both gates; the size is no constant."""
    for gate, dtype in (("silu", "f32"), ("silu", "bf16"), ("gelu_tanh", "bf16")):
        yield CompileCase(
            name=f"silu_mul {gate} {dtype}",
            kernel=_gated,
            types={
                "gate_up": SHORT_DTYPES[dtype],
                "out": SHORT_DTYPES[dtype],
                "in_stride": "i32",
                "out_stride": "i32",
                "size": "i32",
            },
            constants={"GATE": gate, "BLOCK": _BLOCK},
        )
