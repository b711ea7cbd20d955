"""Prompts on the interpreted kernels: cut into as many items as fill a device, and no more."""

import numpy as np
import pytest
import torch

from gpu_worker.device.step_inputs import CutSizes, step_columns
from gpu_worker.step import Step
from kernels.attention_inputs import NO_PARTIAL
from tests.gpu_worker.random_models import Piece, make_step

SIZES = CutSizes(groups=4, enough_items=32)
"""Tiles of 16 tokens."""
WIDTH = 1 << 16


def prompts(*rows: tuple[int, int]) -> Step:
    """Rows of (length, tokens to compute now)."""
    return make_step(
        [
            Piece(
                tokens=range(length),
                slots=np.arange(length, dtype=np.int32) + 1,
                begin=length - num_tokens,
                end=length,
                num_samples=1,
            )
            for length, num_tokens in rows
        ]
    )


def items_of(step: Step, sizes: CutSizes = SIZES) -> np.ndarray:
    (work,) = step_columns(step, sizes, WIDTH).work
    return work.plan.items


def test_as_many_tiles_as_fill_a_device_are_not_cut() -> None:
    items = items_of(prompts((8192, 512)))
    assert len(items) == 32
    assert (items[:, 3] == 0).all()
    assert (items[:, 6] == NO_PARTIAL).all()


@pytest.mark.parametrize(("length", "num_tokens", "least"), [(8192, 256, 32), (32768, 17, 32)])
def test_fewer_tiles_are_cut_until_they_fill_it(length: int, num_tokens: int, least: int) -> None:
    items = items_of(prompts((length, num_tokens)))
    assert least <= len(items) < 2 * least
    assert ((items[:, 4] - items[:, 3]) % 512 == 0).sum() >= len(items) // 2


def test_partial_results_stay_few_however_long_the_contexts() -> None:
    for length in (2048, 65536):
        for num_tokens in (17, 100, 256, 496, 2000):
            (work,) = step_columns(prompts((length, num_tokens)), SIZES, WIDTH).work
            assert work.plan.num_partials <= 2 * 32 * 16 + num_tokens


def test_short_contexts_are_cut_no_finer_than_those_of_decodes() -> None:
    assert len(items_of(prompts((600, 20)))) <= 2 * 2


def test_bits_that_must_not_depend_on_company_have_fixed_cuts() -> None:
    fixed = CutSizes(groups=4)
    alone = items_of(prompts((2048, 32)), fixed)
    beside = items_of(prompts((2048, 32), (4096, 2048)), fixed)
    assert (alone[:, :6] == beside[beside[:, 2] == 0][:, :6]).all()
    assert (alone[:, 4] - alone[:, 3]).max() == 512
    ours = items_of(prompts((2048, 32), (4096, 2048)))
    assert len(ours) < len(beside)


def test_lengths_decide_in_a_step_of_several_rows() -> None:
    items = items_of(prompts((40000, 32), (64, 64)))
    of_short = items[items[:, 2] == WIDTH]
    assert len(of_short) == 4
    assert torch.from_numpy(of_short[:, 4]).max() == 64


@pytest.mark.parametrize("sizes", [SIZES, CutSizes(groups=4)])
def test_what_reads_most_of_a_prompt_comes_first(sizes: CutSizes) -> None:
    """And the parts of a token stay in the order of its context, as they are merged in that."""
    (work,) = step_columns(prompts((3000, 3000), (64, 40), (1500, 700)), sizes, WIDTH).work
    items = work.plan.items
    first_of_tile = np.flatnonzero(np.diff(items[:, 0], prepend=-1))
    positions = items[first_of_tile, 5]
    assert (np.diff(positions) <= 0).all()
    assert len(positions) == len(np.unique(items[:, 0]))
    begins = items[:, 3]
    assert (np.diff(begins)[np.diff(items[:, 0]) == 0] > 0).all()
    # All tokens are some item's.
    counted = np.concatenate([np.arange(item[0], item[0] + item[1]) for item in items.tolist()])
    assert set(counted.tolist()) == set(range(3740))
