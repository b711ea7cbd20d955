"""The contract "same tokens", to the last bit: company, chunks and cache change nothing at all."""

import math

import pytest
import torch

from gpu_worker.model_engine import ModelEngine
from protos.plan import SamplingParams
from tests.gpu_worker.backends import ALL
from tests.gpu_worker.driver import Driver, Part
from tests.gpu_worker.tiny_models import make_engine, make_oracle, random_tokens

SEEDED = SamplingParams(temperature=0.8, seed=42)


@pytest.fixture(scope="module", params=ALL)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelEngine:
    oracle = make_oracle(num_attention_heads=6, num_key_value_heads=2, hidden_size=96)
    folder = tmp_path_factory.mktemp("tiny")
    return make_engine(oracle, folder, request.param, num_slots=4096)


@pytest.fixture
def driver(engine: ModelEngine) -> Driver:
    engine.reset()
    return Driver(engine)


def chunked(driver: Driver, row: int, tokens: list[int], chunk: int) -> torch.Tensor:
    """Logits after the last token."""
    opened = driver.open(row)
    for start in range(0, len(tokens), chunk):
        logits = driver.logits(Part(opened, tokens[start : start + chunk]))
    return logits[0]


@pytest.mark.parametrize("length", [5, 64, 130, 300])
def test_bits_do_not_depend_on_chunks(driver: Driver, length: int) -> None:
    tokens = random_tokens(length, seed=length)
    wanted = chunked(driver, 0, tokens, 1000)
    for row, chunk in enumerate((1, 3, 16, 61, 128, 200), start=1):
        assert torch.equal(chunked(driver, row, tokens, chunk), wanted)


def test_bits_do_not_depend_on_company(driver: Driver) -> None:
    # field case 100
    tokens = random_tokens(130, seed=1)
    alone = chunked(driver, 0, tokens, 1000)
    source = driver.open(15)
    driver.logits(Part(source, tokens))
    for num_mates in range(1, 8):
        for cached in (0, 64, 129):
            row = driver.open(1, source.slots[:cached])
            mates = [driver.open(2 + index) for index in range(num_mates)]
            parts = [Part(row, tokens[cached:])]
            parts += [Part(mate, random_tokens(1 + 7 * mate.row, 2)) for mate in mates]
            assert torch.equal(driver.logits(*parts)[0], alone)
            for opened in (row, *mates):
                driver.free(opened)


def test_greedy_repeats_in_any_batch(driver: Driver) -> None:
    # field case 100
    prompt = random_tokens(30, seed=3)
    wanted = driver.generate(driver.open(0), prompt, 10)
    source = driver.open(1)
    driver.step(Part(source, prompt))
    rows = [driver.open(2 + index, source.slots[:size]) for index, size in enumerate((0, 7, 29))]
    out = [driver.step(*(Part(row, prompt[len(row.slots) :]) for row in rows))]
    out += [driver.step(*(Part(row, [-1]) for row in rows)) for _ in range(9)]
    assert [list(column) for column in zip(*out, strict=True)] == [wanted] * 3


def test_seed_does_not_depend_on_company(driver: Driver) -> None:
    # field case 99
    prompt = random_tokens(11, seed=4)
    alone = driver.generate(driver.open(0, sampling=SEEDED), prompt, 8)
    unseeded = driver.open(1, sampling=SamplingParams(temperature=1.0, seed=2**62 + 5))
    seeded = [
        driver.open(2 + i, sampling=SamplingParams(temperature=1.0, seed=i)) for i in range(5)
    ]
    driver.step(Part(unseeded, random_tokens(4, 5)))
    driver.step(*(Part(mate, random_tokens(6, mate.row)) for mate in seeded))
    joining = driver.open(8, sampling=SEEDED)
    mates = (unseeded, *seeded)
    out = [driver.step(Part(unseeded, [-1]), Part(joining, prompt))[1]]
    for index in range(7):
        company = [Part(mate, [-1]) for mate in mates[: index % 3]]
        # A row may feed on its last token only in the very next plan, so those that waited are
        # told what they said.
        company = [Part(part.row, [7]) for part in company]
        out.append(driver.step(*company, Part(joining, [-1]))[-1])
    assert out == alone


def test_resumed_row_draws_what_it_would_have_drawn(driver: Driver) -> None:
    prompt = random_tokens(11, seed=6)
    whole = driver.generate(driver.open(0, sampling=SEEDED), prompt, 12)
    resumed = driver.open(1, sampling=SEEDED)
    assert driver.generate(resumed, prompt + whole[:5], 7, chunk=4) == whole[5:]


def test_unwritten_slots_hold_nan(engine: ModelEngine, driver: Driver) -> None:
    """The poison that the other tests rely on is there, and shows."""
    stranger = driver.open(0, [4000, 4001])
    assert math.isnan(driver.logits(Part(stranger, [5]))[0, 0])
