"""The forward pass on interpreted Triton kernels gives what the CPU's gives."""

from dataclasses import replace

import numpy as np
import pytest

from gpu_worker.device.device_backend import DeviceBackend
from kernels.kv_codes import KvKind
from tests.gpu_worker.interpreted import INTERPRETED
from tests.gpu_worker.random_models import (
    SHAPES,
    TORCH,
    Kind,
    Piece,
    RandomWeights,
    make_backend,
    make_step,
)
from tests.gpu_worker.tiny_models import random_tokens

NUM_SLOTS = 700


def device_backend(name: str, kv_kind: KvKind = "none") -> DeviceBackend:
    options = replace(INTERPRETED, num_slots=NUM_SLOTS, max_rows=4, kv_kind=kv_kind)
    return DeviceBackend(SHAPES[name], RandomWeights(), options)


def steps(vocab_size: int) -> list[list[Piece]]:
    """A prompt in two chunks, two rows beside it, drafts, and decodes; slots in random order."""
    order = np.random.default_rng(5).permutation(NUM_SLOTS - 1).astype(np.int32) + 1
    rows = [
        (random_tokens(length, seed, vocab_size), order[start : start + length])
        for seed, (length, start) in enumerate(((70, 0), (9, 100), (26, 200)))
    ]

    def piece(row: int, begin: int, end: int, num_samples: int = 1) -> Piece:
        tokens, slots = rows[row]
        return Piece(tokens=tokens, slots=slots, begin=begin, end=end, num_samples=num_samples)

    return [
        [piece(0, 0, 40, 0), piece(1, 0, 8), piece(2, 0, 21)],
        [piece(0, 40, 69), piece(1, 8, 9), piece(2, 21, 25, 4)],
        [piece(0, 69, 70), piece(2, 25, 26)],
    ]


@pytest.mark.parametrize("name", SHAPES)
def test_logits_and_tokens_are_those_of_torch(name: str) -> None:
    device, torch_backend = (
        device_backend(name),
        make_backend(SHAPES[name], TORCH, num_slots=NUM_SLOTS),
    )
    for pieces in steps(SHAPES[name].vocab_size):
        step = make_step(pieces)
        ours, theirs = device.forward(step).copy(), torch_backend.forward(step)
        np.testing.assert_allclose(ours, theirs, atol=2e-4, rtol=0)
        assert (ours.argmax(-1) == theirs.argmax(-1)).all()


def test_an_int8_pool_is_near() -> None:
    device = device_backend("grouped", "int8")
    other = make_backend(
        SHAPES["grouped"], Kind(weights="float32", kv_dtype="int8"), num_slots=NUM_SLOTS
    )
    assert device.kv_bytes_per_slot < 0.4 * device_backend("grouped").kv_bytes_per_slot
    for pieces in steps(SHAPES["grouped"].vocab_size):
        step = make_step(pieces)
        ours, theirs = device.forward(step), other.forward(step)
        assert np.abs(ours - theirs).max() < 0.15 * np.abs(theirs).max()
