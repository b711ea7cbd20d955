"""Slots moved and coded anew: checks, and speed on a thousand slots of an 8B model."""

from collections.abc import Iterator
from functools import partial

import torch

from kernels.kv_codes import CodedSlots, KvKind, encode
from kernels.requantise import requantise, requantise_reference
from kernels.slot_copy import slot_copy, slot_copy_reference
from tests.gpu.case import Check, Prepared, Speed
from tests.gpu.comparison import Comparison, coded, equal
from tests.gpu.place import Place, in_float64
from tests.gpu.work import Work, slot_bytes

KINDS: tuple[KvKind, ...] = ("none", "int8", "fp8")
WAYS = ("gather", "scatter", "defragment")

_NUM_PLANES = 64
"""Keys and values of 32 layers."""


def checks() -> Iterator[Check]:
    """Every way to move slots, and from every kind of pool to every other."""
    for way in WAYS:
        for dtype in (torch.bfloat16, torch.uint8):
            name = f"{way} {str(dtype).removeprefix('torch.')}"
            yield Check(kernel="slot_copy", name=name, run=partial(_check_copy, way, dtype))
    for start in KINDS:
        for end in KINDS:
            run = partial(_check_requantise, start, end)
            is_core = "none" in (start, end)
            yield Check(kernel="requantise", name=f"{start} to {end}", run=run, is_core=is_core)


def speeds() -> Iterator[Speed]:
    """1024 slots out and in; 64k slots of one layer coded."""
    for way in WAYS:
        name = f"{way}, 1024 slots, {_NUM_PLANES} planes"
        yield Speed(kernel="slot_copy", name=name, prepare=partial(_copy, way))
    kinds: tuple[KvKind, ...] = ("int8", "fp8")
    for kind in kinds:
        name = f"none to {kind}, 64k slots"
        yield Speed(kernel="requantise", name=name, prepare=partial(_requantise, kind))


def _moves(
    place: Place, way: str, num_slots: int, count: int
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """From where and to where; where slots move within a pool no slot is on both sides."""
    order = place.some(2 * count, num_slots, seed=5)
    origin, target = order[:count].clone(), order[count:].clone()
    return (None if way == "scatter" else origin), (None if way == "gather" else target)


def _rooms(
    place: Place, way: str, dtype: torch.dtype, planes: tuple[int, int, int], count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Source and target; planes: how many, slots of the pool, numbers of a slot."""
    num_planes, num_slots, size = planes
    pool = (50 * place.randn(num_planes, num_slots, size)).to(dtype)
    staging = pool[:, :count].flip(1).clone()
    if way == "gather":
        return pool, torch.zeros_like(staging)
    return (staging, pool) if way == "scatter" else (pool, pool)


def _check_copy(way: str, dtype: torch.dtype, place: Place) -> Comparison:
    planes = (place.pick(6, 2), place.pick(4000, 20), place.pick(1024, 16))
    count = place.pick(1000, 4)
    source, target = _rooms(place, way, dtype, planes, count)
    wanted = target.clone()
    wanted_source = wanted if source is target else source
    moves = _moves(place, way, planes[1], count)
    slot_copy(source, target, *moves)
    slot_copy_reference(wanted_source, wanted, *moves)
    return equal(target, wanted)


def _copy(way: str, place: Place) -> Prepared:
    num_slots, size = place.pick(16_384, 20), place.pick(1024, 16)
    planes, count = (place.pick(_NUM_PLANES, 2), num_slots, size), place.pick(1024, 4)
    source, target = _rooms(place, way, place.dtype, planes, count)
    moves = _moves(place, way, num_slots, count)

    def check() -> Comparison:
        slot_copy(source, target, *moves)
        origin, into = (None if slots is None else slots.long() for slots in moves)
        every = torch.arange(count, device=place.device)
        return equal(
            target[:, every if into is None else into],
            source[:, every if origin is None else origin],
        )

    origin, into = (None if slots is None else slots.long() for slots in moves)

    def rival() -> torch.Tensor:
        rows = source if origin is None else source.index_select(1, origin)
        return rows if into is None else target.index_copy_(1, into, rows)

    return Prepared(
        work=Work(num_bytes=2 * planes[0] * count * size * place.dtype.itemsize),
        run=lambda: slot_copy(source, target, *moves),
        check=check,
        rivals={"index_select, index_copy_": rival},
    )


def _check_requantise(start: KvKind, end: KvKind, place: Place) -> Comparison:
    heads = (place.pick(8, 1), place.pick(128, 16))
    num_slots, count = place.pick(900, 9), place.pick(500, 3)
    source = encode(place.randn(num_slots, *heads), start)
    origin, into = place.some(count, num_slots, seed=1), place.some(count, num_slots, seed=2)
    shape = (num_slots, *heads)
    ours, theirs = place.slots(shape, end), place.slots(shape, end, torch.float64)
    requantise(source, ours, origin, into)
    with in_float64(place.device):
        requantise_reference(source, theirs, origin, into)
    return coded(ours, theirs)


def _requantise(kind: KvKind, place: Place) -> Prepared:
    heads, count = (place.pick(8, 1), place.pick(128, 16)), place.pick(65_536, 4)
    numbers = place.randn(2 * count, *heads)
    source = CodedSlots(codes=numbers)
    origin, into = place.some(count, 2 * count, seed=1), place.some(count, count, seed=2)
    ours, theirs = (place.slots((count, *heads), kind) for _ in range(2))

    def run() -> None:
        requantise(source, ours, origin, into)

    def check() -> Comparison:
        run()
        with in_float64(place.device):
            requantise_reference(source, theirs, origin, into)
        return coded(ours, theirs)

    moved = sum(slot_bytes(*heads, of, numbers.element_size()) for of in ("none", kind))
    return Prepared(work=Work(num_bytes=count * (moved + 8)), run=run, check=check)
