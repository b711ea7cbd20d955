"""Log probabilities of one row of logits."""

import math
from array import array

import numpy as np
import pytest
import torch

from gpu_worker.logprobs import LogprobRecorder, log_softmax
from protos.plan import LogprobColumns


def columns(logits: np.ndarray, token_id: int, num_top: int) -> LogprobColumns:
    recorder = LogprobRecorder()
    recorder.add(logits, token_id, num_top)
    found = recorder.columns()
    assert found is not None
    return found


@pytest.mark.parametrize("size", [3, 300, 50_000])
def test_equals_the_library(size: int) -> None:
    logits = np.random.default_rng(size).normal(0, 6, size).astype(np.float32)
    wanted = torch.log_softmax(torch.tensor(logits, dtype=torch.float64), 0)
    np.testing.assert_allclose(log_softmax(logits), wanted.numpy(), rtol=1e-12)
    found = columns(logits, 2, 3)
    assert found.chosen[0] == np.float32(wanted[2])
    top = torch.topk(wanted, 3)
    assert list(found.top_ids) == top.indices.tolist()
    assert list(found.top_logprobs) == top.values.float().tolist()


def test_of_equals_the_lower_ids_come_first() -> None:
    logits = np.zeros(1000, np.float32)
    logits[[700, 30]] = 1.0
    assert list(columns(logits, 5, 4).top_ids) == [30, 700, 0, 1]


def test_rows_that_ask_follow_each_other() -> None:
    recorder = LogprobRecorder()
    assert recorder.columns() is None
    recorder.add(np.zeros(4, np.float32), 1, 2)
    recorder.add(np.zeros(4, np.float32), 3, 0)
    recorder.add(np.array([0, 0, 0, 9], np.float32), 3, 1)
    found = recorder.columns()
    assert found is not None
    assert len(found.chosen) == 3
    assert found.top_ids == array("i", [0, 1, 3])
    assert found.top_logprobs[2] == found.chosen[2]


def test_broken_rows_stay_in_range() -> None:
    # field case 86
    inf = np.inf
    assert log_softmax(np.array([1, np.nan, 1], np.float32)).tolist() == [
        -math.log(2),
        -inf,
        -math.log(2),
    ]
    assert log_softmax(np.array([inf, 3, -inf, inf], np.float32)).tolist() == [
        -math.log(2),
        -inf,
        -inf,
        -math.log(2),
    ]
    assert log_softmax(np.full(3, -inf, np.float32)).tolist() == [-inf] * 3
    logits = np.array([0, 1e30, -3e38], np.float32)
    assert log_softmax(logits).max() == 0
