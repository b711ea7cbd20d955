"""Perplexity, agreement and divergence against values worked out by hand or written out."""

import math

import numpy as np
import pytest

from gpu_worker.accuracy import Accuracy, compare


def test_flat_logits_are_as_perplexed_as_the_vocabulary_is_large() -> None:
    flat = np.full((70, 11), 3.0, np.float32)
    found = compare(flat, flat, [2] * 70)
    assert found.perplexity == pytest.approx(11, rel=1e-5)
    assert (found.agreement, found.divergence) == (1.0, 0.0)


def test_two_positions_by_hand() -> None:
    # After token 0, token 1 has probability 1/4 in one and 1/2 in the other; the last row predicts
    # no token of the text, but its likeliest token and its divergence count.
    reference = np.log(np.array([[0.75, 0.25], [0.5, 0.5]], np.float32))
    logits = np.log(np.array([[0.5, 0.5], [0.25, 0.75]], np.float32)) + 7
    found = compare(reference, logits, [0, 1])
    assert found.perplexity == pytest.approx(2)
    assert compare(reference, reference, [0, 1]).perplexity == pytest.approx(4)
    assert found.agreement == 0.5
    first = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    second = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert found.divergence == pytest.approx((first + second) / 2, rel=1e-5)


@pytest.mark.parametrize("count", [2, 31, 32, 33, 64, 65, 100])
def test_equals_the_formulas_written_out(count: int) -> None:
    draw = np.random.default_rng(count)
    reference, logits = draw.normal(0, 4, (2, count, 17)).astype(np.float32)
    ids = draw.integers(0, 17, count).tolist()

    def p(rows: np.ndarray) -> np.ndarray:
        wide = np.exp(rows.astype(np.float64))
        return wide / wide.sum(-1, keepdims=True)

    told = [p(logits)[at, token] for at, token in enumerate(ids[1:])]
    found = compare(reference, logits, ids)
    assert found.perplexity == pytest.approx(math.exp(-np.mean(np.log(told))), rel=1e-4)
    assert found.agreement == np.mean(reference.argmax(-1) == logits.argmax(-1))
    divergence = (p(reference) * np.log(p(reference) / p(logits))).sum(-1).mean()
    assert found.divergence == pytest.approx(divergence, rel=1e-4)


def perplexed(by: float) -> Accuracy:
    return Accuracy(perplexity=by, agreement=1.0, divergence=0.0)


def test_gate_is_a_hundredth() -> None:
    reference = perplexed(20.0)
    assert perplexed(20.19).within_gate(reference)
    assert perplexed(5.0).within_gate(reference)
    assert not perplexed(20.21).within_gate(reference)
    assert not perplexed(math.inf).within_gate(perplexed(math.inf))


def test_logits_that_are_no_numbers_are_out() -> None:
    reference = np.zeros((5, 3), np.float32)
    broken = reference.copy()
    broken[2, 1] = np.nan
    found = compare(reference, broken, [0] * 5)
    assert found.perplexity == math.inf
    assert not found.within_gate(compare(reference, reference, [0] * 5))
    certain = reference.copy()
    certain[:, 1] = 1e9
    assert compare(reference, certain, [0] * 5).perplexity == math.inf
