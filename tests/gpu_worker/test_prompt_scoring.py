"""Log probabilities of prompts: those of transformers, whatever the chunks, company and cache."""

from array import array

import pytest
import torch
from transformers import LlamaForCausalLM

from gpu_worker.engine import PlanError
from gpu_worker.fake_engine import FakeEngine, FakeModel
from gpu_worker.model_engine import ModelEngine
from protos.plan import NOT_SCORED, LogprobColumns, SamplingParams
from tests.gpu_worker.backends import ALL, EXACT
from tests.gpu_worker.driver import Driver, Part
from tests.gpu_worker.tiny_models import VOCAB, make_engine, make_oracle, random_tokens

NUM_TOP = 3
PROMPT = random_tokens(33, seed=12)
SCORED = SamplingParams(prompt_logprobs=NUM_TOP)


@pytest.fixture(scope="module")
def oracle() -> LlamaForCausalLM:
    return make_oracle(num_attention_heads=6, num_key_value_heads=2, hidden_size=96)


@pytest.fixture(params=ALL)
def engine(
    request: pytest.FixtureRequest,
    oracle: LlamaForCausalLM,
    tmp_path_factory: pytest.TempPathFactory,
) -> ModelEngine:
    return make_engine(oracle, tmp_path_factory.mktemp("tiny"), request.param, num_slots=2048)


def fake_engine() -> FakeEngine:
    model = FakeModel(vocab_size=VOCAB, eos_token_ids=(2,))
    return FakeEngine(model, num_slots=2048, max_rows=16, max_length=512)


def part(driver: Driver, row: int, **fields: object) -> Part:
    """The whole prompt, scored."""
    return Part(driver.open(row, sampling=SCORED), PROMPT, next_ids=next_ids(), **fields)  # type: ignore[arg-type]


def next_ids(start: int = 0, end: int = len(PROMPT)) -> list[int]:
    """Of prompt positions [start, end)."""
    return [*PROMPT[1:], NOT_SCORED][start:end]


def scores(driver: Driver) -> LogprobColumns:
    assert driver.scores is not None
    return driver.scores


def alone(engine: ModelEngine | FakeEngine) -> LogprobColumns:
    engine.reset()
    driver = Driver(engine)
    driver.step(part(driver, 0))
    return scores(driver)


@pytest.mark.parametrize("options", EXACT)
def test_transformers_says_the_same(
    options: object, oracle: LlamaForCausalLM, tmp_path: pytest.TempPathFactory
) -> None:
    # field case 23
    engine = make_engine(oracle, tmp_path, options)  # type: ignore[arg-type]
    found = alone(engine)
    with torch.inference_mode():
        logits = oracle(torch.tensor([PROMPT])).logits[0, :-1]
    wanted = logits.double().log_softmax(-1)
    chosen = wanted.gather(1, torch.tensor(PROMPT[1:])[:, None])[:, 0]
    top = wanted.topk(NUM_TOP)
    assert torch.allclose(torch.tensor(found.chosen), chosen.float(), atol=1e-4)
    assert list(found.top_ids) == top.indices.flatten().tolist()
    assert torch.allclose(torch.tensor(found.top_logprobs), top.values.flatten().float(), atol=1e-4)


def run_scenarios(engine: ModelEngine | FakeEngine) -> None:
    check_chunks(engine)
    check_company(engine)
    check_behind_a_prefix(engine)


def check_chunks(engine: ModelEngine | FakeEngine) -> None:
    wanted = alone(engine)
    for chunk in (1, 4, 7, len(PROMPT) - 1, len(PROMPT)):
        engine.reset()
        driver = Driver(engine)
        row, found = driver.open(0, sampling=SCORED), no_columns()
        for start in range(0, len(PROMPT), chunk):
            end = min(start + chunk, len(PROMPT))
            is_last = end == len(PROMPT)
            piece = Part(row, PROMPT[start:end], samples=is_last, next_ids=next_ids(start, end))
            driver.step(piece)
            add(found, driver.scores)
        assert found == wanted, chunk


def check_company(engine: ModelEngine | FakeEngine) -> None:
    """Beside a stream, one with drafts, a prompt that is not scored and one that is, of others."""
    wanted = alone(engine)
    engine.reset()
    driver = Driver(engine)
    (said,) = driver.step(part(driver, 9))
    engine.reset()
    driver = Driver(engine)
    streams = [driver.open(row) for row in (1, 2)]
    driver.step(*(Part(row, PROMPT[:5]) for row in streams))
    brief = driver.open(3, sampling=SamplingParams(prompt_logprobs=0))
    tokens = driver.step(
        Part(streams[0], [-1]),
        part(driver, 4),
        Part(driver.open(5), PROMPT[:9], samples=False),
        Part(brief, PROMPT[:3], samples=False, next_ids=[PROMPT[1], NOT_SCORED, NOT_SCORED]),
        Part(streams[1], [-1], drafts=[1, 2]),
    )
    assert tokens[1] == said, "scoring changes no token"
    found = scores(driver)
    assert found.chosen[:-1] == wanted.chosen
    assert found.chosen[-1] == wanted.chosen[0]
    assert found.top_ids == wanted.top_ids
    assert found.top_logprobs == wanted.top_logprobs


def check_behind_a_prefix(engine: ModelEngine | FakeEngine) -> None:
    """A row that comes back: its first tokens are cached, some more of them are scored."""
    wanted = alone(engine)
    engine.reset()
    driver = Driver(engine)
    first = driver.open(0)
    driver.step(Part(first, PROMPT))
    for num_cached, num_scored in ((4, 4), (4, 7), (12, 13), (31, 32)):
        row = driver.open(1, first.slots[:num_cached], SCORED)
        driver.step(
            Part(
                row,
                PROMPT[num_cached:],
                next_ids=[NOT_SCORED] * (num_scored - num_cached) + next_ids(num_scored),
            )
        )
        if num_scored == len(PROMPT) - 1:
            assert driver.scores is None
        else:
            assert scores(driver).chosen == wanted.chosen[num_scored:]
            assert scores(driver).top_ids == wanted.top_ids[num_scored * NUM_TOP :]
        driver.free(row)


def test_the_same_bits_in_any_chunk_company_and_cache(engine: ModelEngine) -> None:
    # field cases 21, 23, 101
    run_scenarios(engine)


def test_the_fake_worker_does_the_same() -> None:
    run_scenarios(fake_engine())
    assert alone(fake_engine()) == fake_engine().model.score_prompt(PROMPT, NUM_TOP)


@pytest.mark.parametrize("kind", ["model", "fake"])
def test_who_did_not_ask_is_not_scored(kind: str, oracle: LlamaForCausalLM, tmp_path) -> None:  # type: ignore[no-untyped-def]
    engine = make_engine(oracle, tmp_path) if kind == "model" else fake_engine()
    bad = [
        (SamplingParams(logprobs=2), next_ids()),
        (SCORED, [VOCAB, *next_ids(1)]),
        (SCORED, [-2, *next_ids(1)]),
    ]
    for sampling, wrong in bad:
        driver = Driver(engine)
        row = driver.open(0, sampling=sampling)
        with pytest.raises(PlanError):
            driver.step(Part(row, PROMPT, next_ids=wrong))
        engine.reset()
    alone(engine)


def no_columns() -> LogprobColumns:
    return LogprobColumns(chosen=array("f"), top_ids=array("i"), top_logprobs=array("f"))


def add(columns: LogprobColumns, more: LogprobColumns | None) -> None:
    if more is not None:
        columns.chosen.extend(more.chosen)
        columns.top_ids.extend(more.top_ids)
        columns.top_logprobs.extend(more.top_logprobs)
