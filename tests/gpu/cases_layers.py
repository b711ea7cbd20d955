"""Norms, gates, gathers and rotary embedding: checks, and speed at an 8B model's sizes."""

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 (its name everywhere)

from kernels.gather_rows import gather_rows, gather_rows_reference
from kernels.kv_codes import KvKind, KvLayer
from kernels.rms_norm import rms_norm, rms_norm_reference
from kernels.rope_store import QkNorms, Rotation, rope_store, rope_store_reference
from kernels.silu_mul import Gate, silu_mul, silu_mul_reference
from tests.gpu.case import Check, Prepared, Speed
from tests.gpu.comparison import Comparison, coded, near, worst
from tests.gpu.place import Place, in_float64
from tests.gpu.work import Work, slot_bytes

KINDS: tuple[KvKind, ...] = ("none", "int8", "fp8")
NUM_TOKENS = {"prompt of 8k": 8192, "256 decodes": 256}

_EPS = 1e-5


def checks() -> Iterator[Check]:
    """Sizes of models from 0.1 to 70 billion parameters."""
    for size, dtype in ((576, torch.float32), (4096, None), (5000, None), (8192, None)):
        for residual in ("", " residual"):
            name = f"{size}{residual}{' float32' * (dtype is not None)}"
            run = partial(_check_norm, size, bool(residual), dtype)
            yield Check(kernel="rms_norm", name=name, run=run, is_core=size == 4096)
    gates: tuple[Gate, ...] = ("silu", "gelu_tanh")
    for gate in gates:
        yield Check(kernel="silu_mul", name=gate, run=partial(_check_gate, gate))
    yield Check(kernel="gather_rows", name="repeated rows, factor", run=_check_gather)
    for kind in KINDS:
        for head_dim, has_norms in ((64, False), (128, False), (256, True)):
            run = partial(_check_rope, kind, head_dim, has_norms)
            name = f"kv={kind} D{head_dim}{' norms' * has_norms}"
            yield Check(kernel="rope_store", name=name, run=run, is_core=head_dim != 64)


def speeds() -> Iterator[Speed]:
    """A prompt, and a batch of decodes."""
    for what, count in NUM_TOKENS.items():
        yield Speed(kernel="rms_norm", name=f"4096 residual, {what}", prepare=partial(_norm, count))
        yield Speed(kernel="silu_mul", name=f"14336, {what}", prepare=partial(_gate, count))
        for kind in KINDS:
            yield Speed(
                kernel="rope_store",
                name=f"32 + 2 x 8 heads of 128 kv={kind}, {what}",
                prepare=partial(_rope, kind, count),
            )
    yield Speed(kernel="gather_rows", name="4096, prompt of 8k", prepare=partial(_gather, 8192))


def _check_norm(
    size: int, has_residual: bool, dtype: torch.dtype | None, place: Place
) -> Comparison:
    dtype, size = dtype or place.dtype, place.pick(size, size % 100 + 64)
    num_tokens = place.pick(67, 2)
    x, weight = place.randn(num_tokens, size, dtype=dtype), place.randn(size, dtype=dtype, seed=1)
    residual = place.randn(num_tokens, size, dtype=dtype, seed=2) if has_residual else None
    wanted_residual = None if residual is None else residual.clone()
    y = rms_norm(x, weight, _EPS, residual, weight_offset=1.0)
    with in_float64(place.device):
        wanted = rms_norm_reference(x.double(), weight, _EPS, wanted_residual, weight_offset=1.0)
    found = [near(y, wanted)]
    if residual is not None and wanted_residual is not None:
        found.append(near(residual, wanted_residual))
    return worst(found)


def _norm(num_tokens: int, place: Place) -> Prepared:
    """With a residual, as each layer has two of them."""
    num_tokens, size = place.pick(num_tokens, 2), place.pick(4096, 96)
    x, weight = place.randn(num_tokens, size), place.randn(size, seed=1)
    residual = place.randn(num_tokens, size, seed=2)

    def check() -> Comparison:
        ours, theirs = residual.detach() * 1, residual.detach() * 1
        y = rms_norm(x, weight, _EPS, ours)
        with in_float64(place.device):
            wanted = rms_norm_reference(x.double(), weight, _EPS, theirs)
        return worst([near(y, wanted), near(ours, theirs)])

    def rival() -> torch.Tensor:
        return F.rms_norm(residual.add(x), (size,), weight, _EPS)

    moved = (4 * num_tokens + 1) * size * x.element_size()
    # The residual grows from run to run; a bf16 that overflows costs no more than another.
    return Prepared(
        work=Work(num_bytes=moved),
        run=lambda: rms_norm(x, weight, _EPS, residual),
        check=check,
        rivals={"add, F.rms_norm": rival},
    )


def _check_gate(gate: Gate, place: Place) -> Comparison:
    gate_up = 4 * place.randn(place.pick(67, 3), 2 * place.pick(14_336, 100))
    with in_float64(place.device):
        wanted = silu_mul_reference(gate_up.double(), gate)
    return near(silu_mul(gate_up, gate), wanted)


def _gate(num_tokens: int, place: Place) -> Prepared:
    num_tokens, size = place.pick(num_tokens, 2), place.pick(14_336, 100)
    gate_up = place.randn(num_tokens, 2 * size)

    def check() -> Comparison:
        few = gate_up[-64:]
        with in_float64(place.device):
            wanted = silu_mul_reference(few.double())
        return near(silu_mul(gate_up)[-64:], wanted)

    def rival() -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    return Prepared(
        work=Work(num_bytes=3 * num_tokens * size * gate_up.element_size()),
        run=lambda: silu_mul(gate_up),
        check=check,
        rivals={"F.silu, mul": rival},
    )


def _check_gather(place: Place) -> Comparison:
    table = place.randn(place.pick(1000, 7), place.pick(4096, 100))
    rows = place.ints([3, 0, 6, 3])
    with in_float64(place.device):
        wanted = gather_rows_reference(table.double(), rows, 3.0)
    return near(gather_rows(table, rows, 3.0), wanted)


def _gather(num_tokens: int, place: Place) -> Prepared:
    num_tokens, size = place.pick(num_tokens, 2), place.pick(4096, 100)
    table = place.randn(place.pick(128_256, 9), size)
    rows = place.some(num_tokens, len(table))

    def check() -> Comparison:
        with in_float64(place.device):
            wanted = gather_rows_reference(table, rows)
        return near(gather_rows(table, rows), wanted)

    wide = rows.long()
    return Prepared(
        work=Work(num_bytes=num_tokens * (2 * size * table.element_size() + 4)),
        run=lambda: gather_rows(table, rows),
        check=check,
        rivals={"F.embedding": lambda: F.embedding(wide, table)},
    )


def _rotation(place: Place, rotated: int) -> Rotation:
    position = torch.arange(place.pick(8192, 64), device=place.device)[:, None]
    part = torch.arange(0, rotated, 2, device=place.device, dtype=torch.float32) / rotated
    angles = position / 500_000.0**part
    return Rotation(cos=angles.cos(), sin=angles.sin())


def _target(
    place: Place, kind: KvKind, shape: tuple[int, int, int], dtype: torch.dtype | None = None
) -> KvLayer:
    """shape: slots, KV heads and their size."""
    keys, values = (place.slots(shape, kind, dtype) for _ in range(2))
    return KvLayer(keys=keys, values=values)


def _check_rope(kind: KvKind, head_dim: int, has_norms: bool, place: Place) -> Comparison:
    """Tokens without a slot among them; what lies in other slots stays as it is."""
    head_dim, num_tokens = place.pick(head_dim, 16), place.pick(67, 4)
    num_heads, num_kv_heads = place.pick(32, 3), place.pick(8, 1)
    qkv = place.randn(num_tokens, (num_heads + 2 * num_kv_heads) * head_dim)
    rotation = _rotation(place, head_dim)
    positions = place.some(num_tokens, len(rotation.cos), seed=1)
    slots = place.some(num_tokens, 2 * num_tokens, seed=2)
    slots[1] = -1
    norms = None
    if has_norms:
        weights = (place.randn(head_dim, seed=seed) for seed in (3, 4))
        norms = QkNorms(query_weight=next(weights), key_weight=next(weights), eps=1e-6)
    shape = (2 * num_tokens, num_kv_heads, head_dim)
    ours, theirs = _target(place, kind, shape), _target(place, kind, shape, torch.float64)
    query = rope_store(qkv, positions, slots, rotation, ours, norms)
    with in_float64(place.device):
        wanted = rope_store_reference(qkv.double(), positions, slots, rotation, theirs, norms)
    return worst(
        [near(query, wanted), coded(ours.keys, theirs.keys), coded(ours.values, theirs.values)]
    )


def _rope(kind: KvKind, num_tokens: int, place: Place) -> Prepared:
    num_tokens, head_dim = place.pick(num_tokens, 2), place.pick(128, 16)
    num_heads, num_kv_heads = place.pick(32, 3), place.pick(8, 1)
    qkv = place.randn(num_tokens, (num_heads + 2 * num_kv_heads) * head_dim)
    rotation = _rotation(place, head_dim)
    positions = place.some(num_tokens, len(rotation.cos), seed=1)
    shape = (16 * num_tokens, num_kv_heads, head_dim)
    slots = place.some(num_tokens, shape[0], seed=2)
    target, theirs = (_target(place, kind, shape) for _ in range(2))

    def check() -> Comparison:
        query = rope_store(qkv, positions, slots, rotation, target)
        with in_float64(place.device):
            wanted = rope_store_reference(qkv.double(), positions, slots, rotation, theirs)
        return worst(
            [
                near(query, wanted),
                coded(target.keys, theirs.keys),
                coded(target.values, theirs.values),
            ]
        )

    per_token = (2 * num_heads + 2 * num_kv_heads) * head_dim * qkv.element_size()
    per_token += 2 * slot_bytes(num_kv_heads, head_dim, kind, qkv.element_size()) + 8
    per_token += 4 * head_dim  # a row of cosines and one of sines, float32
    return Prepared(
        work=Work(num_bytes=num_tokens * per_token),
        run=lambda: rope_store(qkv, positions, slots, rotation, target),
        check=check,
    )
