"""One row of logits to one token: filters, extremes, and the distribution itself."""

from array import array
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.loading import load_engine
from gpu_worker.model_engine import EngineLimits
from gpu_worker.sampler import sample_token
from protos.plan import SamplingParams
from tests.gpu_worker.driver import Driver, Part
from tests.gpu_worker.tiny_models import VOCAB, make_oracle, random_tokens, save

CHI2_999_DF7 = 24.32
"""Chi-squared with 7 degrees of freedom exceeds it once in a thousand."""


def logits_of(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, size).astype(np.float32)


def naive_candidates(logits: np.ndarray, params: SamplingParams) -> set[int]:
    """Temperature, top-k, top-p, min-p by full sorts, renormalising after each."""
    scaled = logits.astype(np.float64) / params.temperature
    order = np.argsort(-scaled, kind="stable")
    if params.top_k:
        order = order[: params.top_k]
    weights = np.exp(scaled[order] - scaled.max())
    shares = weights / weights.sum()
    if params.top_p < 1:
        order = order[: int(np.searchsorted(shares.cumsum(), params.top_p)) + 1]
    kept = weights[: len(order)] >= params.min_p * weights[0]
    return set(order[kept].tolist())


def test_greedy_takes_the_lowest_of_equals() -> None:
    logits = np.zeros(1000, np.float32)
    logits[[17, 500, 999]] = 2.5
    assert sample_token(logits, SamplingParams(), 3) == 17


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1e-9, seed=1),
        SamplingParams(temperature=1e-4, seed=2),
        SamplingParams(temperature=1.0, top_k=1, seed=3),
        SamplingParams(temperature=100.0, top_p=0.0, seed=4),
        SamplingParams(temperature=2.0, top_p=1e-9, seed=5),
        SamplingParams(temperature=2.0, min_p=1.0, seed=6),
    ],
)
def test_extremes_equal_greedy(params: SamplingParams) -> None:
    for seed in range(20):
        logits = logits_of(5000, seed)
        assert sample_token(logits, params, seed) == logits.argmax()


@given(
    size=st.sampled_from([5, 300, 3000]),
    top_k=st.sampled_from([0, 1, 2, 50, 299, 5000]),
    top_p=st.sampled_from([1e-9, 0.1, 0.5, 0.9, 0.999999, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.5, 1.0]),
    temperature=st.sampled_from([1e-4, 0.3, 1.0, 100.0]),
    seed=st.integers(0, 2**63 - 1),
)
def test_only_candidates_are_drawn(
    size: int, top_k: int, top_p: float, min_p: float, temperature: float, seed: int
) -> None:
    params = SamplingParams(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed
    )
    logits = logits_of(size, seed % 1000)
    assert sample_token(logits, params, seed % 99) in naive_candidates(logits, params)


def test_top_k_of_equals_keeps_the_lowest_ids() -> None:
    logits = np.zeros(100, np.float32)
    drawn = {
        sample_token(logits, SamplingParams(temperature=1.0, top_k=3, seed=seed), 1)
        for seed in range(200)
    }
    assert drawn == {0, 1, 2}


@pytest.mark.parametrize("params", [{}, {"top_k": 6}, {"top_p": 0.9}, {"min_p": 0.2}])
def test_distribution(params: dict[str, float]) -> None:
    logits = np.array([1.2, 0.3, -0.5, 0.9, 0.0, -1.0, 0.6, 0.1], np.float32)
    sampling = SamplingParams(temperature=0.7, **params)  # type: ignore[arg-type]
    kept = sorted(naive_candidates(logits, sampling))
    weights = np.exp(logits[kept].astype(np.float64) / 0.7)
    wanted = 6000 * weights / weights.sum()
    counts = np.zeros(8)
    for position in range(6000):
        seeded = SamplingParams(temperature=0.7, seed=position % 7, **params)  # type: ignore[arg-type]
        counts[sample_token(logits, seeded, position)] += 1
    assert counts.sum() == counts[kept].sum()
    assert ((counts[kept] - wanted) ** 2 / wanted).sum() < CHI2_999_DF7


def test_seeds_and_positions_differ() -> None:
    logits = np.zeros(50_000, np.float32)
    params = [SamplingParams(temperature=1.0, seed=seed) for seed in (0, 1, 2**32, 2**62)]
    drawn = {sample_token(logits, each, position) for each in params for position in range(5)}
    assert len(drawn) == 20


def test_infinities_and_nan() -> None:
    # field case 86
    logits = np.full(1000, -np.inf, np.float32)
    logits[[5, 9]] = (1.0, 1.5)
    for params in (SamplingParams(), SamplingParams(temperature=1.0, top_p=0.5, seed=3)):
        assert sample_token(logits, params, 1) == 9
    drawn = {sample_token(logits, SamplingParams(temperature=9.0, seed=s), 1) for s in range(50)}
    assert drawn == {5, 9}
    assert sample_token(np.full(10, -np.inf, np.float32), SamplingParams(temperature=1.0), 1) == 0
    logits[7] = np.nan
    assert sample_token(logits, SamplingParams(temperature=1.0), 1) == 9


def test_padding_rows_of_the_vocabulary_are_never_sampled(tmp_path: Path) -> None:
    # field case 95
    oracle = make_oracle(vocab_size=VOCAB + 13)
    with torch.no_grad():
        oracle.lm_head.weight[VOCAB:] = 50 * oracle.lm_head.weight[:13].abs()
    source = save(oracle, tmp_path)
    tokens = ",".join(f'"t{index}": {index}' for index in range(VOCAB - 2))
    added = f'[{{"id": {VOCAB - 2}}}, {{"id": {VOCAB - 1}}}]'
    (tmp_path / "tokenizer.json").write_text(
        f'{{"model": {{"vocab": {{{tokens}}}}}, "added_tokens": {added}}}', encoding="utf-8"
    )
    engine = load_engine(source, EngineLimits(num_slots=600, max_rows=8))
    assert engine.hello().vocab_size == VOCAB
    driver, drawn = Driver(engine), array("i")
    for seed in range(6):
        sampling = SamplingParams(temperature=2.0 * (seed > 0), seed=seed)
        row = driver.open(seed, sampling=sampling)
        drawn.extend(driver.generate(row, random_tokens(9, seed), 12))
    assert max(drawn) < VOCAB
    assert driver.logits(Part(driver.open(7), [1])).shape == (1, VOCAB)
