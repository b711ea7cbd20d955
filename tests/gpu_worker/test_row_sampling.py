"""Penalties and suppression against loops as the textbook writes them."""

import math
from array import array
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.engine import PlanError
from gpu_worker.row_sampling import RowSampling, check_sampling
from protos.plan import NewRow, SamplingParams

VOCAB = 12
tokens = st.lists(st.integers(0, VOCAB - 1), max_size=30)


def textbook(
    logits: list[float], prompt: list[int], output: list[int], params: SamplingParams
) -> list[float]:
    """One token at a time, one penalty after the other, in double precision."""
    out = list(logits)
    for token, bias in params.logit_bias:
        out[token] += bias
    for token in range(len(logits)):
        if token in prompt or token in output:
            if out[token] > 0:
                out[token] /= params.repetition_penalty
            else:
                out[token] *= params.repetition_penalty
        out[token] -= params.frequency_penalty * output.count(token)
        if token in output:
            out[token] -= params.presence_penalty
    return out


def row_sampling(
    prompt: list[int], output: list[int], params: SamplingParams, stop_ids: tuple[int, ...] = ()
) -> RowSampling:
    new = NewRow(
        row=0,
        prefix_slots=array("i"),
        sampling=params,
        num_prompt=len(prompt),
        context_ids=array("i", prompt + output if params.needs_context else []),
        suppressed_ids=stop_ids,
    )
    return RowSampling(new, VOCAB)


@given(
    logits=st.lists(st.floats(-50, 50, width=32), min_size=VOCAB, max_size=VOCAB),
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=30),
    output=tokens,
    num_told=st.integers(0, 30),
    repetition=st.sampled_from([1.0, 1.25, 0.5, 10.0]),
    presence=st.sampled_from([0.0, 0.75, -2.0]),
    frequency=st.sampled_from([0.0, 0.125, -0.5, 2.0]),
    biases=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100, width=32), max_size=4),
)
def test_penalties_are_the_textbooks(
    logits: list[float],
    prompt: list[int],
    output: list[int],
    num_told: int,
    repetition: float,
    presence: float,
    frequency: float,
    biases: dict[int, float],
) -> None:
    """Whether the row was told of its output or recorded it, in any mixture."""
    params = SamplingParams(
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias=tuple(sorted(biases.items())),
    )
    raw = np.array(logits, np.float32)
    row = row_sampling(prompt, output[:num_told], params)
    for token in output[num_told:]:
        row.record(token)
    adjusted = row.adjusted(raw, len(prompt) + len(output))
    assert adjusted.dtype == np.float32
    np.testing.assert_allclose(adjusted, textbook(logits, prompt, output, params), 1e-5, 1e-4)
    assert raw.tolist() == logits
    whole = row_sampling(prompt, output, params)
    assert whole.adjusted(raw, 0).tolist() == adjusted.tolist()
    assert row.num_known == (len(prompt) + len(output) if params.needs_context else None)


def test_penalties_by_hand() -> None:
    params = SamplingParams(repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
    row = row_sampling([0, 1], [1, 2, 2], params)
    logits = np.array([4.0, -4.0, 4.0, 4.0] + [0.0] * (VOCAB - 4), np.float32)
    assert row.adjusted(logits, 5)[:4].tolist() == [2.0, -8.75, 1.0, 4.0]


def test_ends_are_suppressed_by_position_alone() -> None:
    params = SamplingParams(min_tokens=2)
    row = row_sampling([5, 5, 5], [], params, stop_ids=(1, 7))
    raw = np.arange(VOCAB, dtype=np.float32)
    wanted = raw.copy()
    wanted[[1, 7]] = -np.inf
    assert row.adjusted(raw, 3).tolist() == wanted.tolist()
    row.record(4)
    assert row.adjusted(raw, 4).tolist() == wanted.tolist()
    assert row.adjusted(raw, 5).tolist() == raw.tolist()
    assert row.adjusted(raw, 4).tolist() == wanted.tolist()
    assert raw.tolist() == list(range(VOCAB))


def test_plain_rows_use_the_logits_as_they_are() -> None:
    raw = np.zeros(VOCAB, np.float32)
    assert row_sampling([1], [], SamplingParams(temperature=1.0)).adjusted(raw, 1) is raw


def test_biases_come_before_penalties_and_suppression() -> None:
    params = SamplingParams(
        repetition_penalty=2.0, min_tokens=1, logit_bias=((0, 2.0), (1, -5.0), (2, 100.0))
    )
    row = row_sampling([0, 1], [], params, stop_ids=(2,))
    raw = np.array([2.0, 4.0] + [0.0] * (VOCAB - 2), np.float32)
    assert row.adjusted(raw, 2)[:4].tolist() == [2.0, -2.0, -np.inf, 0.0]
    assert row.adjusted(raw, 3)[:4].tolist() == [2.0, -2.0, 100.0, 0.0]
    assert raw[:3].tolist() == [2.0, 4.0, 0.0]


@pytest.mark.parametrize(
    "bad",
    [
        {"logit_bias": ((VOCAB, 1.0),)},
        {"logit_bias": ((-1, 1.0),)},
        {"logit_bias": ((10**9, 1.0),)},
        {"logit_bias": ((1, 1.0), (1, 2.0))},
        {"logit_bias": ((1, math.nan),)},
        {"logit_bias": ((1, -math.inf),)},
        {"prompt_logprobs": VOCAB + 1},
        {"prompt_logprobs": -2},
    ],
)
def test_biases_and_alternatives_that_cannot_be_are_refused(bad: dict[str, Any]) -> None:
    # field cases 80, 82
    def new(**fields: Any) -> NewRow:
        sampling = SamplingParams(**fields)
        return NewRow(row=0, prefix_slots=array("i"), sampling=sampling, num_prompt=1)

    check_sampling(new(logit_bias=((VOCAB - 1, 100.0),), prompt_logprobs=VOCAB), VOCAB)
    with pytest.raises(PlanError):
        check_sampling(new(**bad), VOCAB)
