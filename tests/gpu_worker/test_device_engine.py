"""An engine on interpreted kernels, two steps in flight: the tokens of the CPU's, plan by plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from gpu_worker.blocks import FloatArray
from gpu_worker.device import kernel_arithmetic
from gpu_worker.device.device_backend import DeviceBackend
from gpu_worker.engine import StepInFlight
from gpu_worker.model_engine import EngineLimits, ModelEngine, ModelIdentity
from gpu_worker.torch_backend import TorchBackend
from kernels.attention_inputs import PagedKv, WorkItems
from kernels.paged_attention import paged_attention
from protos.plan import BatchPlan, BatchResult, Hello, LogprobColumns, SamplingParams
from radixd.chassis.vocabulary import fake_vocabulary
from tests.gpu_worker.driver import Driver, Known, Part, Row
from tests.gpu_worker.interpreted import INTERPRETED
from tests.gpu_worker.random_models import Piece, RandomWeights, make_step, shape
from tests.gpu_worker.tiny_models import random_tokens
from tokenizer_svc.constraints.forms import grammar_of
from tokenizer_svc.generation_request import Constraint

VOCAB, EOS = 264, 257
CONFIG = replace(
    shape(vocab_size=VOCAB, num_layers=1, hidden_size=32, intermediate_size=32, num_heads=4),
    eos_token_ids=(EOS,),
)
LIMITS = EngineLimits(num_slots=300, max_rows=6, max_length=80)
LETTERS = grammar_of(Constraint(kind="regex", text="[ab][cd](xyz)+"))

HOT = SamplingParams(temperature=0.9, top_k=40, top_p=0.9, min_p=0.01, seed=11, logprobs=2)
PENALISED = SamplingParams(
    temperature=0.2, seed=12, repetition_penalty=1.5, frequency_penalty=6.0, presence_penalty=4.0,
    min_tokens=6, logit_bias=((3, 6.0), (9, -100.0), (40, 12.0), (41, 11.0)), logprobs=0,
)  # fmt: skip
"""Without its penalties it would say 41 again and again."""
STOPS = tuple(range(0, 256, 2))
"""Half of what can be said; not before `min_tokens`."""
SPELLED = SamplingParams(temperature=0.8, seed=13, grammar=LETTERS, min_tokens=3)
SCORED = SamplingParams(prompt_logprobs=2)


def torch_engine() -> ModelEngine:
    backend = TorchBackend(CONFIG, RandomWeights(), num_slots=300, max_length=80, poison=True)
    return engine_on(backend)


def device_backend(*, graphs: bool = True, deterministic: bool = False) -> DeviceBackend:
    options = replace(
        INTERPRETED,
        num_slots=LIMITS.num_slots,
        max_rows=LIMITS.max_rows,
        max_length=80,
        graphs=graphs,
        deterministic=deterministic,
    )
    return DeviceBackend(CONFIG, RandomWeights(), options)


def engine_on(backend: TorchBackend | DeviceBackend) -> ModelEngine:
    identity = ModelIdentity(model_id="tiny", model_hash="x")
    return ModelEngine(CONFIG, backend, LIMITS, identity, fake_vocabulary)


class Recorder:
    """An engine whose plans and results are kept."""

    def __init__(self, engine: ModelEngine) -> None:
        self._engine = engine
        self.plans: list[BatchPlan] = []
        self.results: list[BatchResult] = []

    def hello(self) -> Hello:
        return self._engine.hello()

    def begin(self, plan: BatchPlan) -> StepInFlight:
        step = self._engine.begin(plan)
        self.plans.append(plan)
        self.results.append(step.result())
        return step


def two_in_flight(engine: ModelEngine, plans: Sequence[BatchPlan]) -> list[BatchResult]:
    """Results of plans, each begun before the one before is asked for."""
    results, former = [], None
    for plan in plans:
        step = engine.begin(plan)
        if former is not None:
            results.append(former.result())
        former = step
    assert former is not None
    return [*results, former.result()]


class Story:
    """Rows that sample in every way, on an engine that knows what comes."""

    def __init__(self) -> None:
        self.engine = torch_engine()
        self.recorder = Recorder(self.engine)
        self.driver = Driver(self.recorder)  # type: ignore[arg-type]
        self.prompts = {name: random_tokens(9, seed, 256) for seed, name in enumerate("hpsg")}

    def continuation(self, name: str, sampling: SamplingParams, count: int) -> list[int]:
        """What a row will say."""
        prompt = self.prompts[name]
        driver = Driver(torch_engine())
        known = Known(prompt=prompt, stop_ids=STOPS)
        return driver.generate(driver.open(0, (), sampling, known), prompt, count)

    def open(self, name: str, row: int, sampling: SamplingParams) -> Row:
        known = Known(prompt=self.prompts[name], stop_ids=STOPS)
        return self.driver.open(row, (), sampling, known)

    def first(self, name: str, row: Row) -> Part:
        return Part(row, self.prompts[name])

    def tell(self) -> tuple[list[BatchPlan], list[BatchResult]]:
        step, prompts = self.driver.step, self.prompts
        hot, greedy = self.open("h", 0, HOT), self.open("g", 1, SCORED)
        scores = [*prompts["g"][1:], -1]
        step(self.first("h", hot), Part(greedy, prompts["g"], next_ids=scores))
        penalised = self.open("p", 2, PENALISED)
        right = self.continuation("p", PENALISED, 10)
        assert right[0] == 41
        first = Part(penalised, prompts["p"], drafts=right[:2])
        step(Part(hot, [-1]), Part(greedy, [-1]), first)
        assert self.driver.num_sampled == [1, 1, 3]
        spelled = self.open("s", 4, SPELLED)
        said = step(Part(penalised, [-1]), Part(hot, [-1]), self.first("s", spelled))
        said += step(*(Part(row, [-1]) for row in (hot, spelled, penalised)))
        self.with_drafts(greedy, penalised, spelled)
        self.moved(greedy, hot, penalised)
        return self.recorder.plans, self.recorder.results

    def with_drafts(self, greedy: Row, penalised: Row, spelled: Row) -> None:
        """Guesses that are right, that are wrong, and that a grammar forbids."""
        step = self.driver.step
        right = self.continuation("g", SCORED, 8)
        step(Part(greedy, [-1], drafts=[*right[2:4], 7]), Part(penalised, [-1]))
        assert self.driver.num_sampled == [3, 1]
        right = self.continuation("p", PENALISED, 10)
        spelling = self.continuation("s", SPELLED, 6)
        step(
            Part(penalised, [-1], drafts=[*right[6:8], right[9]]),
            Part(spelled, [-1], drafts=[spelling[2], spelling[3], 2, 5]),
            Part(greedy, [-1]),
        )
        assert self.driver.num_sampled[0] >= 3
        assert self.driver.num_sampled[1:] == [3, 1]
        step(Part(penalised, [-1]), Part(spelled, [-1]), Part(greedy, [-1]))

    def moved(self, greedy: Row, hot: Row, penalised: Row) -> None:
        """A row on another's prefix, a row whose slots change, a row number that comes again."""
        step, driver, prompt = self.driver.step, self.driver, self.prompts["g"]
        twin = driver.open(3, greedy.slots[:4], HOT)
        step(Part(twin, prompt[4:]), Part(hot, [-1]))
        driver.remap(twin, 4, greedy.slots[4:7])
        driver.free(hot)
        again = driver.open(0, penalised.slots[:5], PENALISED, Known(prompt=self.prompts["p"]))
        step(Part(twin, [-1]), Part(again, self.prompts["p"][5:]), Part(penalised, [-1]))
        step(Part(again, [-1]), Part(twin, [-1]))


@pytest.fixture(scope="module")
def story() -> tuple[list[BatchPlan], list[BatchResult]]:
    return Story().tell()


def near(ours: LogprobColumns | None, theirs: LogprobColumns | None) -> None:
    assert (ours is None) == (theirs is None)
    if ours is not None and theirs is not None:
        assert list(ours.top_ids) == list(theirs.top_ids)
        np.testing.assert_allclose(ours.chosen, theirs.chosen, atol=1e-3)
        np.testing.assert_allclose(ours.top_logprobs, theirs.top_logprobs, atol=1e-3)


def test_tokens_are_those_of_torch(story: tuple[list[BatchPlan], list[BatchResult]]) -> None:
    plans, wanted = story
    assert len({len(result.token_ids) for result in wanted}) > 2
    for ours, theirs in zip(two_in_flight(engine_on(device_backend()), plans), wanted, strict=True):
        assert ours.step_id == theirs.step_id
        assert list(ours.token_ids) == list(theirs.token_ids), ours.step_id
        assert ours.num_sampled == theirs.num_sampled
        near(ours.logprobs, theirs.logprobs)
        near(ours.prompt_logprobs, theirs.prompt_logprobs)
        assert ours.row_faults == theirs.row_faults


@pytest.mark.parametrize("deterministic", [False, True])
def test_deterministic_attention_has_one_tile(
    monkeypatch: pytest.MonkeyPatch, deterministic: bool
) -> None:
    """Interpreted, both add alike: on a GPU they may be multiplied by other instructions."""
    found = set()

    def attended(query: torch.Tensor, kv: PagedKv, work: WorkItems, *others: Any) -> torch.Tensor:
        found.add(work.block_queries)
        return paged_attention(query, kv, work, *others)

    monkeypatch.setattr(kernel_arithmetic, "paged_attention", attended)
    backend = device_backend(deterministic=deterministic)
    tokens, slots = random_tokens(40, 1, VOCAB), np.arange(1, 41, dtype=np.int32)
    for begin, end in ((0, 38), (38, 39)):
        backend.forward(
            make_step([Piece(tokens=tokens, slots=slots, begin=begin, end=end, num_samples=1)])
        )
    assert len(found) == (1 if deterministic else 2)


def test_deterministic_bits_are_the_same_in_any_company() -> None:
    tokens = [random_tokens(12, seed, VOCAB) for seed in range(3)]
    order = np.random.default_rng(1).permutation(290).astype(np.int32) + 1

    def logits(backend: DeviceBackend, *parts: tuple[int, int, int]) -> list[bytes]:
        """Of each (row, begin, end)."""
        pieces = [
            Piece(tokens=tokens[row], slots=order[20 * row :][:12], begin=begin, end=end,
                  num_samples=1)
            for row, begin, end in parts
        ]  # fmt: skip
        found: FloatArray = backend.forward(make_step(pieces))
        return [row.tobytes() for row in found]

    alone, company = (device_backend(deterministic=True) for _ in range(2))
    wanted = logits(alone, (0, 0, 7)) + logits(alone, (0, 7, 8)) + logits(alone, (0, 8, 9))
    together = logits(company, (1, 0, 12), (0, 0, 7), (2, 0, 3))[1:2]
    together += logits(company, (0, 7, 8), (2, 3, 9))[:1]
    together += logits(company, (2, 9, 10), (0, 8, 9))[1:]
    assert together == wanted
