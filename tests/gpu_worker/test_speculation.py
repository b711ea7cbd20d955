"""Drafts of the real scheduler core on the real engine: to the last bit the same as without."""

from collections import deque
from dataclasses import replace

import pytest

from gpu_worker.model_engine import ModelEngine
from protos.plan import BatchPlan, SamplingParams
from tests.gpu_worker.tiny_models import make_engine, make_oracle, random_tokens
from tests.scheduler_svc.core.cut_back import Records

KINDS = [
    SamplingParams(logprobs=2),
    SamplingParams(temperature=0.3, seed=7, logprobs=0),
    SamplingParams(frequency_penalty=0.1, logprobs=1),
    SamplingParams(repetition_penalty=1.02, min_tokens=30, logprobs=3),
]
NUM_TOKENS = 80


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> ModelEngine:
    oracle = make_oracle(num_attention_heads=6, num_key_value_heads=2, hidden_size=96)
    return make_engine(oracle, tmp_path_factory.mktemp("tiny"), num_slots=2048)


class ModelBench(Records):
    """A core on the real engine."""

    def __init__(self, engine: ModelEngine, **config: object) -> None:
        super().__init__(N=2048, r=4, c=32, **config)
        engine.reset()
        self.engine = engine
        self.core.regain_worker(engine.hello(), 0)
        self.sent: deque[BatchPlan] = deque()

    def answer(self) -> None:
        """See Bench; every step takes as long, so drafts are cheap."""
        result = self.engine.execute(self.sent.popleft())
        self.take(self.core.apply(replace(result, forward_ns=10_000), self.now_ns))

    def stories(self) -> list[object]:
        """What clients see of four requests that run together, and of the same a second time."""
        names = [f"r{number}" for number in range(2 * len(KINDS))]
        for name in names:
            number = int(name[1:]) % len(KINDS)
            prompt, sampling = random_tokens(20 + number, seed=number), KINDS[number]
            self.submit(name, prompt, NUM_TOKENS, sampling=sampling, ignore_eos=True)
            if number == len(KINDS) - 1:
                self.run()
        return [
            [self.tokens[name], self.chosen[name], self.top_ids[name], self.top_logprobs[name]]
            for name in names
        ]


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("depth", [1, 2])
def test_same_bits(engine: ModelEngine, page_size: int, depth: int) -> None:
    plain = ModelBench(engine, p=page_size, depth=depth, speculation="off")
    wanted = plain.stories()
    assert plain.core.counters()["drafted_tokens"] == 0
    guessing = ModelBench(engine, p=page_size, depth=depth)
    assert guessing.stories() == wanted
    counters = guessing.core.counters()
    assert counters["accepted_tokens"] > 100
    assert counters["accepted_tokens"] < counters["drafted_tokens"]
