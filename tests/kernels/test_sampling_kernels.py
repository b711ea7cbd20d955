"""Adjusting, drawing and log probabilities: against references, and against the worker's sampler.

A draw in float32 can differ from one in float64 where two tokens are within 1e-6 of each other; the
rows here have none so near.
"""

import numpy as np
import pytest
import torch

from gpu_worker.logprobs import log_softmax
from gpu_worker.sampler import sample_token
from kernels import sample as sample_file
from kernels import survey_logits as survey_file
from kernels.adjust_logits import Adjustments, IdList, adjust_logits, adjust_logits_reference
from kernels.logprobs import logprobs, logprobs_reference
from kernels.sample import Sampling, sample, sample_reference
from kernels.survey_logits import survey_logits, survey_logits_reference
from protos.plan import SamplingParams

VOCAB = 3001
ROWS = (
    # temperature, top_k, top_p, min_p
    (0.0, 0, 1.0, 0.0),
    (1.0, 0, 1.0, 0.0),
    (0.7, 50, 1.0, 0.0),
    (1.3, 0, 0.9, 0.0),
    (1.0, 20, 0.8, 0.0),
    (0.9, 1, 1.0, 0.0),
    (1.0, 0, 1.0, 0.1),
    (2.0, 3000, 0.5, 0.0),
    (1.0, 40, 0.5, 0.02),
    (0.5, 3, 0.3, 0.0),
    (1.0, 5000, 0.999, 1.0),
    (1e-6, 7, 0.5, 0.0),
)


def logits(num_rows: int, *, levels: bool = False) -> torch.Tensor:
    """Random; with levels whole numbers, so that hundreds of tokens are equal."""
    numbers = torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(3)) * 3
    return numbers.round() if levels else numbers


def parameters(seeds: range) -> Sampling:
    temperature, top_k, top_p, min_p = zip(*ROWS, strict=True)
    return Sampling(
        temperature=torch.tensor(temperature),
        top_k=torch.tensor(top_k, dtype=torch.int32),
        top_p=torch.tensor(top_p),
        min_p=torch.tensor(min_p),
        seed=torch.tensor([seed * 2**37 + seed for seed in seeds]),
        position=torch.arange(len(ROWS), dtype=torch.int32) * 1000 + 5,
    )


def chosen_rows(asked: Sampling, some: torch.Tensor | slice) -> Sampling:
    return Sampling(**{name: getattr(asked, name)[some] for name in Sampling.__dataclass_fields__})


def worker_tokens(rows: torch.Tensor, asked: Sampling) -> list[int]:
    return [
        sample_token(
            row.numpy(),
            SamplingParams(
                temperature=float(asked.temperature[index]),
                top_k=int(asked.top_k[index]),
                top_p=float(asked.top_p[index]),
                min_p=float(asked.min_p[index]),
                seed=int(asked.seed[index]),
            ),
            int(asked.position[index]),
        )
        for index, row in enumerate(rows)
    ]


@pytest.mark.parametrize(("levels", "first_seed"), [(False, 1), (True, 1000)])
def test_draws_are_those_of_the_reference_and_of_the_worker(levels: bool, first_seed: int) -> None:
    rows = logits(len(ROWS), levels=levels)
    asked = parameters(range(first_seed, first_seed + len(ROWS)))
    drawn = sample(rows, asked).tolist()
    assert drawn == sample_reference(rows, asked).tolist()
    assert drawn == worker_tokens(rows, asked)


def test_broken_rows_still_give_a_token() -> None:
    rows = logits(len(ROWS))
    rows[1, 7], rows[2, :] = torch.nan, torch.nan
    rows[3, 9], rows[3, 11] = torch.inf, torch.inf
    rows[4, :], rows[6, ::7] = -torch.inf, -torch.inf
    asked = parameters(range(len(ROWS)))
    drawn = sample(rows, asked).tolist()
    assert drawn == sample_reference(rows, asked).tolist()
    assert drawn == worker_tokens(rows, asked)
    assert drawn[3] == 9


def test_a_draw_does_not_depend_on_its_company() -> None:
    rows, asked = logits(len(ROWS)), parameters(range(len(ROWS)))
    drawn = sample(rows, asked)
    some = torch.tensor([7, 1, 11, 3])
    assert torch.equal(sample(rows[some].contiguous(), chosen_rows(asked, some)), drawn[some])
    assert sample(rows[:0], chosen_rows(asked, slice(0))).shape == (0,)


def test_draws_follow_the_distribution() -> None:
    """Chi-square over 1000 positions of one seed; 16.3 is passed once in 1000 times (3 degrees).

    Of the reference, which the kernel draws like.
    """
    count = 1000
    row = torch.tensor([[0.0, 1.0, 2.0, -1.0]])
    every = torch.ones(count)
    drawn = sample_reference(
        row.expand(count, 4).contiguous(),
        Sampling(
            temperature=every,
            top_k=every.int() * 0,
            top_p=every,
            min_p=every * 0,
            seed=every.long() * 99,
            position=torch.arange(count, dtype=torch.int32),
        ),
    )
    wanted = row[0].softmax(-1) * count
    found = torch.bincount(drawn, minlength=4)
    assert float(((found - wanted) ** 2 / wanted).sum()) < 16.3


def test_draws_are_the_same_where_every_loop_takes_several_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many tiles, blocks of groups and of listed groups; a row with each kind of limit."""
    monkeypatch.setitem(survey_file._CONSTANTS, "GROUP", 16)
    monkeypatch.setitem(survey_file._CONSTANTS, "TILE", 2048)
    monkeypatch.setitem(sample_file._CONSTANTS, "GROUP", 16)
    monkeypatch.setitem(sample_file._CONSTANTS, "BLOCK", 128)
    monkeypatch.setitem(sample_file._CONSTANTS, "BITS", 4)
    rows = logits(len(ROWS))[1:5]
    asked = chosen_rows(parameters(range(len(ROWS))), slice(1, 5))
    assert sample(rows, asked).tolist() == sample_reference(rows, asked).tolist()


def test_the_survey_says_of_groups_how_much_they_can_matter() -> None:
    """Largest logits exactly; masses to rounding; no noisy score above its bound."""
    rows, asked = logits(len(ROWS)), parameters(range(len(ROWS)))
    rows[1, 70], rows[2, 5], rows[3, 2990:] = torch.nan, torch.nan, -torch.inf
    rows[4, 9] = torch.inf
    ours, wanted = survey_logits(rows, asked), survey_logits_reference(rows, asked)
    assert torch.equal(ours[0], wanted[0])
    drawn = asked.temperature > 0.1
    torch.testing.assert_close(
        ours[1][drawn], wanted[1][drawn], rtol=2e-6, atol=2e-5, equal_nan=True
    )
    # Of greedy rows there is whatever was there before.
    assert ours[1][drawn].isnan().sum() == wanted[1][drawn].isnan().sum() >= 2


@pytest.mark.parametrize("num_top", [0, 1, 5])
def test_logprobs(num_top: int) -> None:
    rows = logits(5)
    rows[1] = rows[1].round()
    rows[2, 7], rows[3, 9], rows[4] = torch.nan, torch.inf, -torch.inf
    chosen = torch.tensor([5, 3000, 7, 9, 0], dtype=torch.int32)
    ours, theirs = logprobs(rows, chosen, num_top), logprobs_reference(rows, chosen, num_top)
    torch.testing.assert_close(ours[0], theirs[0], atol=2e-6, rtol=1e-6)
    assert torch.equal(ours[1], theirs[1])
    torch.testing.assert_close(ours[2], theirs[2], atol=2e-6, rtol=1e-6)
    assert not any((part > 0).any() for part in (ours[0], ours[2]))
    for index, row in enumerate(rows.numpy()):
        np.testing.assert_allclose(ours[0][index], log_softmax(row)[chosen[index]], atol=2e-6)


def lists(rows: list[list[int]]) -> IdList:
    starts = np.cumsum([0, *map(len, rows)])
    return IdList(
        start=torch.tensor(starts, dtype=torch.int32),
        ids=torch.tensor([token for row in rows for token in row], dtype=torch.int32),
    )


def test_adjustments() -> None:
    """Each row asks for other things; one for all at once, one for nothing."""
    rows = logits(6)
    rows[2, 5] = torch.nan
    history = torch.zeros(3, VOCAB, dtype=torch.int32)
    history[0, ::3], history[2, ::7] = 1, 6
    history[0, ::5] += 4
    words = -(-VOCAB // 32)
    masks = torch.randint(
        -(2**31), 2**31, (2, words), generator=torch.Generator().manual_seed(1)
    ).to(torch.int32)
    asked = Adjustments(
        history=history,
        history_row=torch.tensor([0, -1, 2, 1, -1, 0], dtype=torch.int32),
        repetition=torch.tensor([1.2, 1, 0.8, 2, 1, 1.5]),
        frequency=torch.tensor([0.5, 0, -0.3, 0, 0, 1]),
        presence=torch.tensor([0.1, 0, 0.2, 0, 0, -1]),
        masks=masks,
        mask_row=torch.tensor([-1, 0, 1, -1, -1, 1], dtype=torch.int32),
        biased=lists([[], [3, 3000], [5], [], [], [9]]),
        biases=torch.tensor([1.5, -100.0, 3.0, 2.0]),
        suppressed=lists([[0, 1], [], [], list(range(200, 260)), [], [7]]),
    )
    before = rows.clone()
    ours = adjust_logits(rows, asked)
    assert torch.equal(rows.nan_to_num(), before.nan_to_num())
    torch.testing.assert_close(ours, adjust_logits_reference(rows, asked), equal_nan=True)
    assert torch.equal(ours[4], rows[4])
    assert not ours[[1, 2, 5]].isnan().any()  # a grammar's rows have numbers


def test_what_does_not_go_together_is_refused() -> None:
    rows, asked = logits(3), parameters(range(12))
    with pytest.raises(ValueError, match="temperature"):
        sample(rows, asked)
    with pytest.raises(ValueError, match="logits"):
        sample(rows.double(), asked)
    with pytest.raises(ValueError, match="num_top 3002"):
        logprobs(rows, torch.zeros(3, dtype=torch.int32), VOCAB + 1)
    with pytest.raises(ValueError, match="chosen"):
        logprobs(rows, torch.zeros(3), 1)
