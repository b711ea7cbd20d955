"""Norms, gates, gathers, rotary embedding and quantised products against their references.

Tolerances: float32 for results of size 1 to 10; what only moves or codes numbers is exact.
"""

import pytest
import torch

from kernels.gather_rows import gather_rows, gather_rows_reference
from kernels.kv_codes import CodedSlots, KvKind, KvLayer, decode, encode, new_slots
from kernels.quantised_linear import quantised_linear, quantised_linear_reference
from kernels.quantised_weight import QuantisedWeight, widened
from kernels.requantise import requantise, requantise_reference
from kernels.rms_norm import rms_norm, rms_norm_reference
from kernels.rope_store import (
    QkNorms,
    Rotation,
    rope_store,
    rope_store_reference,
)
from kernels.silu_mul import silu_mul, silu_mul_reference
from kernels.slot_copy import slot_copy, slot_copy_reference
from kernels.widen_weight import widen_weight, widen_weight_reference

KINDS: tuple[KvKind, ...] = ("none", "int8", "fp8")


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def close(out: torch.Tensor, wanted: torch.Tensor, atol: float = 4e-6) -> None:
    torch.testing.assert_close(out, wanted, atol=atol, rtol=1e-5)


@pytest.mark.parametrize("num_tokens", [0, 1, 5])
@pytest.mark.parametrize("size", [1, 576, 577])
def test_rms_norm(num_tokens: int, size: int) -> None:
    x, weight = random(num_tokens, size), random(size)
    close(rms_norm(x, weight, 1e-5), rms_norm_reference(x, weight, 1e-5))


def test_rms_norm_adds_the_residual_in_its_own_type() -> None:
    x, weight = random(3, 100, dtype=torch.float16), random(100, dtype=torch.float16)
    ours, theirs = (random(3, 100, dtype=torch.float16) + 3 for _ in range(2))
    out = rms_norm(x, weight, 1e-5, ours, weight_offset=1.0)
    close(out, rms_norm_reference(x, weight, 1e-5, theirs, weight_offset=1.0), atol=2e-3)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("gate", ["silu", "gelu_tanh"])
def test_gates(gate: str) -> None:
    gate_up = random(3, 2 * 1500) * 4
    close(silu_mul(gate_up, gate), silu_mul_reference(gate_up, gate))  # type: ignore[arg-type]
    assert silu_mul(gate_up[:0]).shape == (0, 1500)


def test_gather_rows_in_any_order_and_repeated() -> None:
    table, rows = random(7, 1100), torch.tensor([3, 0, 6, 3], dtype=torch.int32)
    assert torch.equal(gather_rows(table, rows, 3.0), gather_rows_reference(table, rows, 3.0))
    assert gather_rows(table, rows[:0]).shape == (0, 1100)


def unwritten(shape: tuple[int, int, int], kind: KvKind) -> CodedSlots:
    room = new_slots(shape, kind, torch.float32)
    room.codes.zero_()
    if room.scale is not None:
        room.scale.fill_(torch.nan)
    return room


def target(kind: KvKind) -> KvLayer:
    shape = (16, 3, 40)
    return KvLayer(keys=unwritten(shape, kind), values=unwritten(shape, kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize("rotated", [40, 24])
def test_rope_store(kind: KvKind, has_norms: bool, rotated: int) -> None:
    """Rotates all or a part of a head, skips padding, and leaves other slots alone."""
    norms = QkNorms(query_weight=random(40), key_weight=random(40) + 1, eps=1e-6, weight_offset=1)
    angles = torch.arange(100)[:, None] / (10000 ** (torch.arange(rotated // 2) / rotated * 2))
    rotation = Rotation(cos=angles.cos(), sin=angles.sin())
    qkv = random(4, (6 + 2 * 3) * 40)
    positions = torch.tensor([3, 50, 7, 99], dtype=torch.int32)
    slots = torch.tensor([5, -1, 2, 11], dtype=torch.int32)
    ours, theirs = target(kind), target(kind)
    asked = norms if has_norms else None
    query = rope_store(qkv, positions, slots, rotation, ours, asked)
    close(query, rope_store_reference(qkv, positions, slots, rotation, theirs, asked))
    used = torch.tensor([2, 5, 11])
    rest = torch.ones(16, dtype=torch.bool)
    rest[used] = False
    for pool, wanted in ((ours.keys, theirs.keys), (ours.values, theirs.values)):
        assert not pool.codes[rest].any()
        if pool.scale is None or wanted.scale is None:
            close(pool.codes, wanted.codes)
        else:
            assert pool.scale[rest].isnan().all()
            close(pool.scale[used], wanted.scale[used])
            # A number at the middle between two codes may take either.
            numbers, step = decode(pool.at(used)), decode(wanted.at(used))
            gap = 0.04 if kind == "fp8" else 0.01
            assert ((numbers - step).abs() <= gap * (step.abs() + 1)).all()
            assert (pool.codes[used] != wanted.codes[used]).float().mean() < 0.01


def test_fp8_codes_are_those_of_torch() -> None:
    """Through the pool, so that the device functions are what is tested: all codes, both ways."""
    every = torch.arange(256, dtype=torch.uint8)
    codes = every[~every.view(torch.float8_e4m3fn).float().isnan()]
    codes = torch.cat([codes, codes[:2]]).view(-1, 1, 32)  # 8 slots of heads of 32
    scale, slots = torch.ones(len(codes), 1), torch.arange(len(codes), dtype=torch.int32)
    numbers = torch.zeros(codes.shape)
    source = CodedSlots(codes=codes, kind="fp8", scale=scale)
    requantise(source, CodedSlots(codes=numbers), slots, slots)
    assert torch.equal(numbers, codes.view(torch.float8_e4m3fn).float())
    fine = torch.cat([torch.linspace(-448, 448, 8191), torch.linspace(-0.05, 0.05, 8193)])
    fine = fine.view(-1, 1, 64).clone()
    fine[:, :, 0] = 448.0  # so that scales are 1
    ours, wanted = unwritten((len(fine), 1, 64), "fp8"), encode(fine, "fp8")
    slots = torch.arange(len(fine), dtype=torch.int32)
    requantise(CodedSlots(codes=fine), ours, slots, slots)
    assert ours.scale is not None
    assert wanted.scale is not None
    assert torch.equal(ours.scale, wanted.scale)
    assert torch.equal(ours.codes, wanted.codes)


@pytest.mark.parametrize("start", KINDS)
@pytest.mark.parametrize("end", KINDS)
def test_requantise(start: KvKind, end: KvKind) -> None:
    source = encode(random(9, 2, 24), start)
    slots = torch.tensor([8, 0, 3], dtype=torch.int32)
    places = torch.tensor([1, 4, 0], dtype=torch.int32)
    ours, theirs = unwritten((5, 2, 24), end), unwritten((5, 2, 24), end)
    requantise(source, ours, slots, places)
    requantise_reference(source, theirs, slots, places)
    assert torch.equal(ours.codes, theirs.codes)
    if ours.scale is not None and theirs.scale is not None:
        close(ours.scale[places], theirs.scale[places])
        assert ours.scale.isnan().sum() == 2 * 2, "slots that nobody named were written"


@pytest.mark.parametrize("dtype", [torch.float16, torch.uint8])
def test_slots_are_gathered_scattered_and_moved(dtype: torch.dtype) -> None:
    pool = (random(3, 20, 2, 64) * 50).to(dtype)
    chosen, places = (torch.tensor(x, dtype=torch.int32) for x in ([3, 19, 0], [1, 2, 4]))
    for origin, place, source, room in (
        (chosen, None, pool, torch.zeros(3, 3, 2, 64, dtype=dtype)),
        (None, places, pool[:, :3], torch.zeros_like(pool)),
        (chosen, places, pool, torch.zeros_like(pool)),
    ):
        wanted = room.clone()
        slot_copy(source, room, origin, place)
        slot_copy_reference(source, wanted, origin, place)
        assert torch.equal(room, wanted)
        assert room.any()
    moved, wanted = pool.clone(), pool.clone()
    slot_copy(moved, moved, chosen, places)
    slot_copy_reference(wanted, wanted, chosen, places)
    assert torch.equal(moved, wanted)


def quantised(num_outputs: int, num_inputs: int, bits: int) -> QuantisedWeight:
    groups = random(num_outputs, num_inputs).view(num_outputs, -1, 32)
    minimum = groups.amin(-1).half()
    most = 15 if bits == 4 else 127
    scale = ((groups.amax(-1) - minimum.float()) / most).half()
    q = ((groups - minimum.float()[..., None]) / scale.float()[..., None]).round().clamp(0, most)
    if bits == 4:
        q = q.to(torch.uint8)
        values = (q[..., :16] | (q[..., 16:] << 4)).reshape(num_outputs, -1)
    else:
        values = q.to(torch.int8).view(num_outputs, num_inputs)
    return QuantisedWeight(bits=bits, values=values, scale=scale, minimum=minimum)  # type: ignore[arg-type]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("num_tokens", [0, 1, 17, 150])
@pytest.mark.parametrize("num_inputs", [96, 256])
def test_quantised_linear(bits: int, num_tokens: int, num_inputs: int) -> None:
    weight, x = quantised(70, num_inputs, bits), random(num_tokens, num_inputs)
    close(quantised_linear(x, weight), quantised_linear_reference(x, weight), atol=1e-4)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_widened_weights_are_what_is_multiplied(bits: int, dtype: torch.dtype) -> None:
    weight = quantised(70, 96, bits)  # groups that are not whole blocks
    numbers, wanted = widen_weight(weight, dtype), widen_weight_reference(weight, dtype)
    close(numbers, wanted, atol=1e-6 if dtype == torch.float32 else 4e-3)
    if dtype == torch.float32:
        assert torch.equal(quantised_linear(torch.eye(96), weight), numbers.T)


@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_weights_are_near_what_they_were(bits: int) -> None:
    matrix = random(70, 96)
    step = 0.5 * (matrix.max() - matrix.min()) / (15 if bits == 4 else 127)
    assert (widened(quantised(70, 96, bits)) - matrix).abs().max() < step + 1e-3


def test_what_does_not_go_together_is_refused() -> None:
    rows = torch.zeros(2, dtype=torch.int32)
    with pytest.raises(ValueError, match="weight"):
        rms_norm(random(2, 8), random(9), 1e-5)
    with pytest.raises(ValueError, match="residual"):
        rms_norm(random(2, 8), random(8), 1e-5, random(3, 8))
    with pytest.raises(ValueError, match="gate_up"):
        silu_mul(random(2, 7))
    with pytest.raises(ValueError, match="rows"):
        gather_rows(random(4, 4), rows.long())
    with pytest.raises(ValueError, match="one of them is needed"):
        slot_copy(random(1, 2, 8), random(1, 2, 8), None, None)
    with pytest.raises(ValueError, match="whole words"):
        slot_copy(random(1, 2, 7), random(1, 2, 7), rows, None)
    with pytest.raises(ValueError, match="source is on meta and not pinned"):
        slot_copy(random(1, 2, 8).to("meta"), random(1, 2, 8), rows, None)
    codes, scale = torch.zeros(2, 1, 8, dtype=torch.int8), random(2, 1)
    with pytest.raises(ValueError, match="kind int8 and its scales"):
        CodedSlots(codes=codes, kind="int8")
    with pytest.raises(ValueError, match=r"scales \(1, 1\)"):
        CodedSlots(codes=codes, kind="int8", scale=scale[:1])
    with pytest.raises(ValueError, match=r"torch.float32 is not what kind int8"):
        CodedSlots(codes=random(2, 1, 8), kind="int8", scale=scale)
    pool = CodedSlots(codes=random(2, 1, 8))
    with pytest.raises(ValueError, match=r"keys none .* values int8"):
        KvLayer(keys=pool, values=CodedSlots(codes=codes, kind="int8", scale=scale))
    with pytest.raises(ValueError, match="keys: heads of a slot"):
        KvLayer(keys=CodedSlots(codes=random(2, 8, 1).transpose(1, 2)), values=pool)
    with pytest.raises(ValueError, match="target is not contiguous"):
        requantise(pool, CodedSlots(codes=random(4, 1, 8)[::2]), rows, rows)
    with pytest.raises(ValueError, match=r"x .* for 96 inputs"):
        quantised_linear(random(2, 95), quantised(70, 96, 4))
