"""Whole slots moved: pool to staging buffer (gather), back (scatter), or in a pool (defragment).

A plane is one tensor of one layer, [slots, words]; all planes move in one launch.  Slots are copied
as 8-byte words, whatever they hold.  Moves 2 * planes * bytes of a slot for each.  Where slots
move within one pool, none may be source of one move and target of another: they run in any order.

A staging buffer may lie in pinned memory of the host, which the kernel reads and writes across the
bus: slots then move one way at the bus's speed, without a copy on the device in between.
"""

import torch
import triton
import triton.language as tl

from kernels.compile_case import CompileCase, CompileCases

_BLOCK = 512


def slot_copy(
    source: torch.Tensor,
    target: torch.Tensor,
    from_slots: torch.Tensor | None,
    to_slots: torch.Tensor | None,
) -> None:
    """target[:, to_slots[i]] = source[:, from_slots[i]] for every i.

    source, target: [planes, slots, ...] of one type, slots contiguous and whole 8-byte words.
    from_slots, to_slots: int32 [n]; None: slot i itself, as of a staging buffer; not both.
    One of source and target may be on the host, pinned, while the rest is on a device.

    Raises:
        ValueError: shapes, types or strides do not go together.
    """
    num_slots = _check(source, target, from_slots, to_slots)
    if not num_slots:
        return
    words, into = _as_words(source), _as_words(target)
    size = words.shape[2]
    chosen = from_slots if from_slots is not None else to_slots
    _copy[(num_slots, words.shape[0])](
        words, into, chosen if from_slots is None else from_slots,
        chosen if to_slots is None else to_slots, size,
        words.stride(0), into.stride(0), words.stride(1), into.stride(1),
        HAS_FROM=from_slots is not None, HAS_TO=to_slots is not None, BLOCK=_BLOCK,
    )  # fmt: skip


@triton.jit
def _copy(
    source, target, from_slots, to_slots, size, source_plane, target_plane, source_slot,
    target_slot, HAS_FROM: tl.constexpr, HAS_TO: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (slots, planes)."""
    index, plane = tl.program_id(0), tl.program_id(1).to(tl.int64)
    origin, place = index.to(tl.int64), index.to(tl.int64)
    if HAS_FROM:
        origin = tl.load(from_slots + index).to(tl.int64)
    if HAS_TO:
        place = tl.load(to_slots + index).to(tl.int64)
    source += plane * source_plane + origin * source_slot
    target += plane * target_plane + place * target_slot
    for start in range(0, size, BLOCK):
        word = start + tl.arange(0, BLOCK)
        value = tl.load(source + word, mask=word < size)
        tl.store(target + word, value, mask=word < size)


def slot_copy_reference(
    source: torch.Tensor,
    target: torch.Tensor,
    from_slots: torch.Tensor | None,
    to_slots: torch.Tensor | None,
) -> None:
    """The same in plain torch."""
    num_slots = _check(source, target, from_slots, to_slots)
    every = torch.arange(num_slots, device=source.device)
    origin = every if from_slots is None else from_slots.long()
    place = every if to_slots is None else to_slots.long()
    target[:, place] = source[:, origin]


def _as_words(planes: torch.Tensor) -> torch.Tensor:
    return planes.flatten(2).view(torch.int64)


def _check(
    source: torch.Tensor,
    target: torch.Tensor,
    from_slots: torch.Tensor | None,
    to_slots: torch.Tensor | None,
) -> int:
    """How many slots move."""
    if from_slots is None and to_slots is None:
        raise ValueError("from_slots and to_slots: one of them is needed")
    for name, planes in (("source", source), ("target", target)):
        if planes.ndim < 3 or not planes[0, 0].is_contiguous():
            raise ValueError(f"{name} {tuple(planes.shape)}: not [planes, slots, ...] contiguous")
        if planes[0, 0].numel() * planes.element_size() % 8:
            raise ValueError(f"{name}: a slot is not whole words of 8 bytes")
    same = source.shape[0] == target.shape[0] and source.shape[2:] == target.shape[2:]
    if not same or source.dtype != target.dtype:
        raise ValueError(
            f"source {tuple(source.shape)} {source.dtype}, target {tuple(target.shape)}"
            f" {target.dtype}"
        )
    for name, planes in (("source", source), ("target", target)):
        if source.device != target.device and not (planes.is_cuda or planes.is_pinned()):
            raise ValueError(f"{name} is on {planes.device} and not pinned: no kernel can reach it")
    counts = {len(slots) for slots in (from_slots, to_slots) if slots is not None}
    if len(counts) != 1:
        raise ValueError(f"from_slots and to_slots have {counts} entries")
    for slots in (from_slots, to_slots):
        if slots is not None and slots.dtype != torch.int32:
            raise ValueError(f"slots are {slots.dtype}, not int32")
    return counts.pop()


def compile_cases() -> CompileCases:
    """Gather, scatter and defragment."""
    for name, has_from, has_to in (
        ("gather", True, False),
        ("scatter", False, True),
        ("defragment", True, True),
    ):
        yield CompileCase(
            name=f"slot_copy {name}",
            kernel=_copy,
            types={
                "source": "*i64", "target": "*i64", "from_slots": "*i32", "to_slots": "*i32",
                "size": "i32", "source_plane": "i64", "target_plane": "i64", "source_slot": "i32",
                "target_slot": "i32",
            },
            constants={"HAS_FROM": has_from, "HAS_TO": has_to, "BLOCK": _BLOCK},
        )  # fmt: skip
