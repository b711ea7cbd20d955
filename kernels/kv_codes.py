"""How keys and values are coded in the pool: as they are, int8, or fp8, with a scale for each head.

    kind    storage  value of a code            scale [slots, kv_heads] float32
    "none"  floats   the number                 none
    "int8"  int8     code * scale               largest magnitude / 127
    "fp8"   uint8    e4m3fn(code) * scale       largest magnitude / 448

fp8 is coded by integer operations on bytes, because sm_80 has no such type and the interpreter
rounds it wrongly.  Device functions for the other kernels, and their plain-torch reference.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import triton
import triton.language as tl

KvKind = Literal["none", "int8", "fp8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedSlots:
    """Keys or values of one layer as a pool has them.

    Raises:
        ValueError: codes and scale are not what `kind` says.
    """

    codes: torch.Tensor
    """[slots, kv_heads, head_dim]"""
    kind: KvKind = "none"
    scale: torch.Tensor | None = None
    """float32 [slots, kv_heads]; None of "none"."""

    def __post_init__(self) -> None:
        if self.codes.dtype != storage_dtype(self.kind, self.codes.dtype):
            raise ValueError(f"{self.codes.dtype} is not what kind {self.kind} is stored as")
        if (self.scale is None) != (self.kind == "none"):
            raise ValueError(f"kind {self.kind} and its scales do not go together")
        if self.scale is not None and self.scale.shape != self.codes.shape[:-1]:
            raise ValueError(
                f"scales {tuple(self.scale.shape)} for codes {tuple(self.codes.shape)}"
            )

    def at(self, slots: torch.Tensor) -> "CodedSlots":
        """A copy of these slots."""
        scale = None if self.scale is None else self.scale[slots]
        return CodedSlots(codes=self.codes[slots], kind=self.kind, scale=scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayer:
    """One layer of a pool.

    Raises:
        ValueError: keys and values are not of one shape and kind, or heads lie apart.
    """

    keys: CodedSlots
    values: CodedSlots

    def __post_init__(self) -> None:
        keys, values = self.keys, self.values
        if keys.kind != values.kind or keys.codes.shape != values.codes.shape:
            raise ValueError(
                f"keys {keys.kind} {tuple(keys.codes.shape)},"
                f" values {values.kind} {tuple(values.codes.shape)}"
            )
        for name, codes in (("keys", keys.codes), ("values", values.codes)):
            if codes.ndim != 3 or codes.stride()[1:] != (codes.shape[2], 1):
                raise ValueError(f"{name}: heads of a slot do not lie one behind the other")

    @property
    def heads(self) -> tuple[int, int]:
        """How many KV heads, and their size."""
        _, num_kv_heads, head_dim = self.keys.codes.shape
        return num_kv_heads, head_dim


LARGEST_INT8 = tl.constexpr(127.0)
LARGEST_FP8 = tl.constexpr(448.0)
LEAST_MAGNITUDE = tl.constexpr(1e-8)
"""A head of zeros has this one, so that its scale is not zero."""
FP8_FACTOR = tl.constexpr(256.0)
"""What `fp8_over_factor` leaves to its caller's scale."""


@triton.jit
def rounded(x):
    """Nearest integer, halves to even, of float32 below 2**22 in magnitude."""
    magic = 12582912.0  # 1.5 * 2**23: at this size the last bit of a float32 is worth one
    return (x + magic) - magic


@triton.jit
def fp8_code(x):
    """float32 to the byte of e4m3fn: to nearest, halves to even, beyond 448 to 448."""
    sign = (x.to(tl.uint32, bitcast=True) >> 24) & 0x80
    magnitude = tl.minimum(tl.abs(x), LARGEST_FP8)
    bits = magnitude.to(tl.uint32, bitcast=True)
    # Twenty bits of the mantissa go; half of them less one, and the last kept bit, round to even.
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    # Below 2**-6 codes are multiples of 2**-9; adding 2**23 rounds to one.
    small = (magnitude * 512.0 + 8388608.0).to(tl.uint32, bitcast=True) & 0xF
    return (sign | tl.where(magnitude < 0.015625, small, normal)).to(tl.uint8)


@triton.jit
def fp8_over_factor(code):
    """The value of an e4m3fn byte over FP8_FACTOR, as float16, exactly.

    Both have four bits of mantissa and differ in the bias of the exponent, by 8.
    """
    wide = code.to(tl.uint16)
    return (((wide & 0x80) << 8) | ((wide & 0x7F) << 7)).to(tl.float16, bitcast=True)


@triton.jit
def scale_of(x, KIND: tl.constexpr):
    """Scales [heads] of numbers [heads, BLOCK_D] float32, where those beyond a head are 0."""
    largest = tl.maximum(tl.max(tl.abs(x), 1), LEAST_MAGNITUDE)
    return largest / (LARGEST_INT8 if KIND == "int8" else LARGEST_FP8)


@triton.jit
def coded(x, scale, KIND: tl.constexpr):
    """The codes of numbers [heads, BLOCK_D] float32 under scales [heads]."""
    x = x / scale[:, None]
    return rounded(x).to(tl.int8) if KIND == "int8" else fp8_code(x)


def storage_dtype(kind: KvKind, dtype: torch.dtype) -> torch.dtype:
    """What a pool of this kind holds, where it holds floats of `dtype` if not coded."""
    return {"none": dtype, "int8": torch.int8, "fp8": torch.uint8}[kind]


def new_slots(
    shape: tuple[int, int, int],
    kind: KvKind,
    dtype: torch.dtype,
    device: torch.device | None = None,
) -> CodedSlots:
    """Room for such slots, not written; dtype: of floats where they are not coded."""
    codes = torch.empty(shape, dtype=storage_dtype(kind, dtype), device=device)
    scale = None if kind == "none" else torch.empty(shape[:2], device=device)
    return CodedSlots(codes=codes, kind=kind, scale=scale)


def encode(x: torch.Tensor, kind: KvKind) -> CodedSlots:
    """Reference: the codes of numbers [slots, kv_heads, head_dim]."""
    if kind == "none":
        return CodedSlots(codes=x)
    wide = x.float()
    largest = wide.abs().amax(-1).clamp_min(LEAST_MAGNITUDE.value)
    if kind == "int8":
        scale = largest / LARGEST_INT8.value
        codes = (wide / scale[..., None]).round().to(torch.int8)
    else:
        scale = largest / LARGEST_FP8.value
        limited = (wide / scale[..., None]).clamp(-LARGEST_FP8.value, LARGEST_FP8.value)
        codes = limited.to(torch.float8_e4m3fn).view(torch.uint8)
    return CodedSlots(codes=codes, kind=kind, scale=scale)


def decode(slots: CodedSlots) -> torch.Tensor:
    """Reference: their numbers [slots, kv_heads, head_dim] float32."""
    codes = slots.codes.view(torch.float8_e4m3fn) if slots.kind == "fp8" else slots.codes
    return codes.float() if slots.scale is None else codes.float() * slots.scale[..., None]
