"""Slots coded anew in place of another pool's: native to int8 or fp8, or between the two.

What a pool does with cold pages before it drops them.  Source and target are different pools; see
kv_codes for the codes.  Moves of each slot kv_heads * head_dim codes of both kinds and 4 bytes of
scale a head.
"""

import torch
import triton
import triton.language as tl

from kernels.compile_case import FUSED, CompileCase, CompileCases
from kernels.kv_codes import (
    FP8_FACTOR,
    CodedSlots,
    KvKind,
    coded,
    decode,
    encode,
    fp8_over_factor,
    scale_of,
)


def requantise(
    source: CodedSlots, target: CodedSlots, from_slots: torch.Tensor, to_slots: torch.Tensor
) -> None:
    """Slot to_slots[i] of target gets the numbers of slot from_slots[i] of source.

    source, target: of one shape but for the number of slots, contiguous; different pools.
    from_slots, to_slots: int32 [n].

    Raises:
        ValueError: shapes, types or kinds do not go together; names which.
    """
    _check(source, target)
    _check_slots(from_slots, to_slots)
    num_kv_heads, head_dim = source.codes.shape[1:]
    unused = from_slots
    if len(from_slots):
        _requantise[(len(from_slots),)](
            source.codes, unused if source.scale is None else source.scale,
            target.codes, unused if target.scale is None else target.scale, from_slots, to_slots,
            **_constants(num_kv_heads, head_dim, source.kind, target.kind),
            **FUSED,
        )  # fmt: skip


def _constants(num_kv_heads: int, head_dim: int, start: KvKind, end: KvKind) -> dict[str, object]:
    return {
        "NUM_KV_HEADS": num_kv_heads,
        "BLOCK_KV": triton.next_power_of_2(num_kv_heads),
        "HEAD_DIM": head_dim,
        "BLOCK_D": triton.next_power_of_2(head_dim),
        "FROM": start,
        "TO": end,
    }


@triton.jit
def _requantise(
    source, source_scale, target, target_scale, from_slots, to_slots,
    NUM_KV_HEADS: tl.constexpr, BLOCK_KV: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, FROM: tl.constexpr, TO: tl.constexpr,
):  # fmt: skip
    """Grid (slots)."""
    index = tl.program_id(0)
    head, dim = tl.arange(0, BLOCK_KV), tl.arange(0, BLOCK_D)
    origin = tl.load(from_slots + index).to(tl.int64) * NUM_KV_HEADS + head
    place = tl.load(to_slots + index).to(tl.int64) * NUM_KV_HEADS + head
    there = head < NUM_KV_HEADS
    live = there[:, None] & (dim < HEAD_DIM)[None, :]
    code = tl.load(source + origin[:, None] * HEAD_DIM + dim[None, :], mask=live, other=0)
    if FROM == "fp8":
        scale = tl.load(source_scale + origin, mask=there, other=0.0) * FP8_FACTOR
        x = fp8_over_factor(code).to(tl.float32) * scale[:, None]
    elif FROM == "int8":
        scale = tl.load(source_scale + origin, mask=there, other=0.0)
        x = code.to(tl.float32) * scale[:, None]
    else:
        x = code.to(tl.float32)
    target += place[:, None] * HEAD_DIM + dim[None, :]
    if TO == "none":
        tl.store(target, x.to(target.dtype.element_ty), mask=live)
    else:
        scale = scale_of(x, TO)
        tl.store(target_scale + place, scale, mask=there)
        tl.store(target, coded(x, scale, TO), mask=live)


def requantise_reference(
    source: CodedSlots, target: CodedSlots, from_slots: torch.Tensor, to_slots: torch.Tensor
) -> None:
    """The same in plain torch."""
    _check(source, target)
    _check_slots(from_slots, to_slots)
    place = to_slots.long()
    new = encode(decode(source.at(from_slots.long())), target.kind)
    target.codes[place] = new.codes.to(target.codes.dtype)
    if target.scale is not None and new.scale is not None:
        target.scale[place] = new.scale


def _check(source: CodedSlots, target: CodedSlots) -> None:
    if source.codes.ndim != 3 or source.codes.shape[1:] != target.codes.shape[1:]:
        raise ValueError(f"source {tuple(source.codes.shape)}, target {tuple(target.codes.shape)}")
    for name, pool in (("source", source), ("target", target)):
        if not pool.codes.is_contiguous():
            raise ValueError(f"{name} is not contiguous")


def _check_slots(from_slots: torch.Tensor, to_slots: torch.Tensor) -> None:
    if from_slots.shape != to_slots.shape or from_slots.ndim != 1:
        raise ValueError(f"from_slots {tuple(from_slots.shape)}, to_slots {tuple(to_slots.shape)}")
    if from_slots.dtype != torch.int32 or to_slots.dtype != torch.int32:
        raise ValueError("from_slots and to_slots are not int32")


def compile_cases() -> CompileCases:
    """Down, up and across."""
    stored: dict[KvKind, str] = {"none": "*bf16", "int8": "*i8", "fp8": "*u8"}
    ways: tuple[tuple[KvKind, KvKind], ...] = (
        ("none", "int8"),
        ("none", "fp8"),
        ("int8", "none"),
        ("fp8", "int8"),
    )
    for start, end in ways:
        yield CompileCase(
            name=f"requantise {start} to {end}",
            kernel=_requantise,
            types={
                "source": stored[start], "source_scale": "*fp32", "target": stored[end],
                "target_scale": "*fp32", "from_slots": "*i32", "to_slots": "*i32",
            },
            constants=_constants(8, 128, start, end),
        )  # fmt: skip
