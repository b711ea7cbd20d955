"""Columns of a step in one copy, and back."""

import numpy as np
import torch

from gpu_worker.device.transfers import Moment, Readback, Staging, layout_of

CPU = torch.device("cpu")


def columns(first: int, size: int) -> dict[str, np.ndarray]:
    return {
        "a": np.arange(first, first + size, dtype=np.int32),
        "none": np.empty(0, np.int32),
        "square": np.arange(4, dtype=np.int32).reshape(2, 2) + first,
        "one": np.array([first], np.int32),
    }


def test_columns_arrive_flat_each_at_a_multiple_of_16_bytes() -> None:
    sent = columns(5, 3)
    flat, there = Staging(CPU).send(sent)
    assert len(flat) == layout_of(sent).size == 4 + 0 + 4 + 4
    for name, column in sent.items():
        assert there[name].tolist() == column.ravel().tolist()
        assert there[name].storage_offset() % 4 == 0


def test_two_steps_may_be_in_flight_however_large() -> None:
    staging = Staging(CPU)
    for first in range(0, 50, 10):
        _, former = staging.send(columns(first, 3))
        _, latter = staging.send(columns(first + 5, 20_000 + first))
        assert former["a"].tolist() == [first, first + 1, first + 2]
        assert latter["one"].tolist() == [first + 5]
        assert latter["a"][-1] == first + 5 + 20_000 + first - 1


def test_a_result_comes_back_as_it_was() -> None:
    begun = Moment(CPU)
    result = torch.arange(6, dtype=torch.int32)
    readback = Readback(result)
    result.zero_()
    assert readback.numpy().tolist() == [0, 1, 2, 3, 4, 5]
    done = Moment(CPU)
    assert done.has_passed()
    assert done.ns_since(begun) > 0
