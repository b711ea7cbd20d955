"""The fake engine, compiled code, torch and the kernels say the same tokens for the same plans.

One story is told to the scheduler core with each engine behind it: prompts in chunks, shared
prefixes, twins, retractions, drafts, rows freed and cancelled, a pool too small and full of NaN.
The model is one whose tokens are known without a neural network (recalling_model); a second part
draws tokens from a random one, with whatever sampling has.
"""

import random
from array import array
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from gpu_worker.backend import Backend
from gpu_worker.device.device_backend import DeviceBackend
from gpu_worker.fake_engine import FakeEngine
from gpu_worker.model_config import ModelConfig
from gpu_worker.model_engine import EngineLimits, ModelEngine, ModelIdentity
from gpu_worker.native.native_backend import NativeBackend, NativeOptions
from gpu_worker.native.native_weights import read_native_weights
from gpu_worker.weights import WeightReader
from protos.plan import BatchPlan, BatchResult, Envelope, Hello, LogprobColumns, SamplingParams
from protos.wire import encode
from scheduler_svc.core.config import SchedulerConfig
from scheduler_svc.core.messages import Submission
from scheduler_svc.core.scheduler import Scheduler
from tests.gpu_worker import recalling_model
from tests.gpu_worker.backends import needs_compiler
from tests.gpu_worker.driver import Driver, Part
from tests.gpu_worker.interpreted import INTERPRETED
from tests.gpu_worker.random_models import RandomWeights, make_torch_backend, shape
from tests.gpu_worker.recalling_model import RecallingModel, RecallingWeights
from tests.scheduler_svc.core.harness import Bench

NUM_SLOTS = 32
ROWS = 4
MAX_LENGTH = 32
LEAST_MARGIN = 5e-4
"""Of the best token over the next: far above what float32 rounds away."""


def native(config: ModelConfig, reader: WeightReader) -> Backend:
    options = NativeOptions(num_slots=NUM_SLOTS, max_length=MAX_LENGTH, poison=True)
    return NativeBackend(config, read_native_weights(config, reader, "float32"), options)


def torch_(config: ModelConfig, reader: WeightReader) -> Backend:
    return make_torch_backend(config, reader, NUM_SLOTS)


def triton(config: ModelConfig, reader: WeightReader) -> Backend:
    options = replace(INTERPRETED, num_slots=NUM_SLOTS, max_rows=ROWS)
    return DeviceBackend(config, reader, options)


MakeBackend = Callable[[ModelConfig, WeightReader], Backend]
REAL = [
    pytest.param(native, id="native", marks=needs_compiler),
    pytest.param(torch_, id="torch"),
    pytest.param(triton, id="triton"),
]


def engine_on(make: MakeBackend, config: ModelConfig, reader: WeightReader) -> ModelEngine:
    limits = EngineLimits(num_slots=NUM_SLOTS, max_rows=ROWS, max_length=MAX_LENGTH, poison=True)
    identity = ModelIdentity(model_id="tiny", model_hash="tiny")
    return ModelEngine(config, make(config, reader), limits, identity)


def recalling_fake() -> FakeEngine:
    return FakeEngine(
        RecallingModel(),  # type: ignore[arg-type]
        num_slots=NUM_SLOTS,
        max_rows=ROWS,
        max_length=MAX_LENGTH,
    )


class Beside:
    """A real engine in the bench; the fake beside it keeps what the bench looks at in slots."""

    def __init__(self, fake: FakeEngine, engine: ModelEngine) -> None:
        self._fake, self._engine = fake, engine
        self.row_slots, self.read = fake.row_slots, fake.read

    def hello(self) -> Hello:
        return self._engine.hello()

    def execute(self, plan: BatchPlan) -> BatchResult:
        wanted, found = self._fake.execute(plan), self._engine.execute(plan)
        said = (found.token_ids, found.num_sampled)
        assert said == (wanted.token_ids, wanted.num_sampled), plan
        # What the scheduler predicts from must be no clock's.
        return replace(found, forward_ns=10_000 + 500 * len(plan.input_ids), phases_ns=())


def tell(seed: int, engine: ModelEngine | None = None) -> Bench:
    """The story of this seed to its end; without an engine, to the fake alone."""
    bench = Bench(
        N=NUM_SLOTS, c=6, r=ROWS, L=MAX_LENGTH, max_batch_tokens=14, model=RecallingModel()
    )
    if engine is not None:
        bench.engine = Beside(bench.engine, engine)
    draw = random.Random(seed)
    stems = [[draw.randrange(recalling_model.VOCAB) for _ in range(9)] for _ in range(2)]
    number = 0
    for _ in range(45):
        event = draw.random()
        if event < 0.35 and number < 10:
            own = [draw.randrange(recalling_model.VOCAB) for _ in range(draw.randint(1, 4))]
            prompt = draw.choice(stems)[: draw.randint(3, 9)] + own
            bench.submit(f"r{number}", prompt, draw.randint(2, 9))
            number += 1
        elif event < 0.4 and number:
            bench.cancel(f"r{draw.randrange(number)}")
        else:
            bench.step()
    bench.run()
    for name in ("once", "again"):  # what was said once is guessed again
        bench.ask(name, [3, 1, 4], 11)
    return bench


def happened(bench: Bench) -> dict[str, int]:
    """How often the story had what."""
    parts = [
        part for plan in bench.plans for part in zip(plan.extend_lens, plan.samples, strict=True)
    ]
    counters = bench.core.counters()
    return {
        "chunks of prompts": sum(length > 1 and not samples for length, samples in parts),
        "decodes": sum(length == 1 and samples == 1 for length, samples in parts),
        "shared prefixes": sum(bool(new.prefix_slots) for p in bench.plans for new in p.new_rows),
        "remaps": sum(len(plan.remaps) for plan in bench.plans),
        "freed rows": sum(len(plan.freed_rows) for plan in bench.plans),
        "retractions": counters["retractions"],
        "right drafts": counters["accepted_tokens"],
        "wrong drafts": counters["drafted_tokens"] - counters["accepted_tokens"],
    }


@cache
def full_story() -> tuple[int, Bench]:
    """The first in which everything happens and no token is a near tie."""
    for seed in range(500):
        bench = tell(seed)
        if all(happened(bench).values()) and min(bench.model.margins) > LEAST_MARGIN:
            return seed, bench
    raise AssertionError(f"no story has everything; the last one: {happened(bench)}")


def as_bytes(plan: BatchPlan) -> bytes:
    return encode(Envelope(epoch=1, message=plan))


@pytest.mark.parametrize("make", REAL)
def test_same_tokens_as_the_fake_for_the_same_plans(make: MakeBackend) -> None:
    seed, told = full_story()
    engine = engine_on(make, recalling_model.CONFIG, RecallingWeights())
    bench = tell(seed, engine)
    assert [as_bytes(plan) for plan in bench.plans] == [as_bytes(plan) for plan in told.plans]
    assert bench.tokens == told.tokens


def after_prefix(engine: ModelEngine | FakeEngine, change: dict[int, int]) -> list[int]:
    """What a row says behind a prefix of another one, with some of its slots changed."""
    engine.reset()
    driver = Driver(engine, seed=1)
    writer = driver.open(0)
    driver.step(Part(writer, [3, 1, 4, 1, 5, 9]))
    prefix = writer.slots[:5]
    for at, slot in change.items():
        prefix[at] = slot or writer.slots[5]
    reader = driver.open(1, prefix)
    return driver.step(Part(reader, [2])) + driver.step(Part(reader, [-1]))


@pytest.mark.parametrize("make", [None, *REAL])
def test_a_wrong_slot_would_show(make: MakeBackend | None) -> None:
    """A slot with another token, or one that nobody wrote, changes what is said."""
    config, weights = recalling_model.CONFIG, RecallingWeights()
    engine = engine_on(make, config, weights) if make else recalling_fake()
    another, unwritten = 0, NUM_SLOTS + 1  # a pool has a page more than it says
    right, *wrong = (
        after_prefix(engine, change) for change in ({}, {2: another}, {4: another}, {0: unwritten})
    )
    assert right not in wrong


RANDOM = shape(
    vocab_size=40, num_layers=2, num_heads=2, num_kv_heads=1, hidden_size=32, intermediate_size=32
)
STEM = [3, 1, 4, 1, 5]
DRAWN = [
    SamplingParams(temperature=0.9, seed=5),
    SamplingParams(temperature=1.3, top_k=5, top_p=0.8, seed=2**62 + 1, logprobs=2),
    SamplingParams(temperature=0.7, min_p=0.1, seed=9, repetition_penalty=1.3, logprobs=0),
    SamplingParams(presence_penalty=0.5, frequency_penalty=0.4, prompt_logprobs=1),
    SamplingParams(temperature=1.0, seed=3, logit_bias=((7, 1.5), (8, -100.0)), min_tokens=2),
]
STOPS = tuple(range(0, 40, 2))
"""So many that one would be drawn before `min_tokens`, were it not suppressed."""


def draw(engine: ModelEngine) -> tuple[list[BatchPlan], list[BatchResult]]:
    """A request for each way of sampling, behind one stem, in a pool that is too small for all."""
    config = SchedulerConfig(
        max_batch_tokens=14, chunk_size=6, max_running=ROWS, speculation="off", itl_target_ms=0
    )
    core = Scheduler(config, engine.hello())
    for number, sampling in enumerate(DRAWN):
        submission = Submission(
            request_id=f"r{number}",
            prompt_ids=array("i", [*STEM, 9 + number, 2]),
            sampling=sampling,
            max_tokens=4,
            stop_token_ids=STOPS if sampling.min_tokens else (),
        )
        core.submit(submission, number)
    plans: list[BatchPlan] = []
    results: list[BatchResult] = []
    for now_ns in range(10, 200):
        while (plan := core.schedule(now_ns).plan) is not None:
            plans.append(plan)
        if len(results) == len(plans):
            return plans, results
        results.append(engine.execute(plans[len(results)]))
        core.apply(results[-1], now_ns)
    raise AssertionError("does not come to an end")


@cache
def drawn() -> tuple[list[BatchPlan], list[BatchResult]]:
    """What torch drew."""
    return draw(engine_on(torch_, RANDOM, RandomWeights()))


def check_near(found: LogprobColumns | None, wanted: LogprobColumns | None) -> None:
    assert (found is None) == (wanted is None)
    if found is not None and wanted is not None:
        assert found.top_ids == wanted.top_ids
        np.testing.assert_allclose(found.chosen, wanted.chosen, atol=1e-4)
        np.testing.assert_allclose(found.top_logprobs, wanted.top_logprobs, atol=1e-4)


@pytest.mark.parametrize("make", [REAL[0], REAL[2]])
def test_same_draws_as_torch_for_the_same_plans(make: MakeBackend) -> None:
    plans, results = drawn()
    assert sum(len(result.token_ids) for result in results) >= 4 * len(DRAWN) - 2
    engine = engine_on(make, RANDOM, RandomWeights())
    for plan, wanted in zip(plans, results, strict=True):
        found = engine.execute(plan)
        assert (found.token_ids, found.num_sampled) == (wanted.token_ids, wanted.num_sampled), plan
        check_near(found.logprobs, wanted.logprobs)
        check_near(found.prompt_logprobs, wanted.prompt_logprobs)
