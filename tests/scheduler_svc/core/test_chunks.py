"""Field cases of group B: chunked prefill changes nothing but the timing."""

import random

import pytest

from scheduler_svc.core import invariants
from scheduler_svc.core.config import SchedulerConfig
from scheduler_svc.core.messages import Ending
from tests.scheduler_svc.core.harness import Bench
from tests.scheduler_svc.core.test_prefix_cache import letters


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("c", [1, 2, 3, 7, 8, 16, 30, 60, 61, 62, 1000])
def test_answer_does_not_depend_on_the_chunk_size(c, warm):  # field case 20
    bench, prompt = Bench(c=c), letters(61)
    if warm:
        bench.ask("warm", prompt[:17])
    assert bench.ask("x", prompt) == bench.reference(prompt)


def test_only_the_last_chunk_samples():  # field case 21
    bench = Bench(c=4)
    bench.ask("x", letters(13), 1)
    assert [list(plan.samples) for plan in bench.plans] == [[0], [0], [0], [1]]
    assert [list(plan.extend_lens) for plan in bench.plans] == [[4], [4], [4], [1]]
    assert len(bench.tokens["x"]) == 1


def test_no_token_after_an_acknowledged_cancel():  # field case 24
    rng = random.Random(24)
    bench = Bench(c=4)
    for i in range(200):
        bench.submit(f"x{i}", letters(12, seed=i))
        for _ in range(rng.randrange(4)):
            bench.schedule() if rng.random() < 0.5 else bench.step()
        bench.cancel(f"x{i}")  # the harness refuses any news after the ending
        assert bench.endings[f"x{i}"].ending is Ending.CANCELLED
        if i % 20 == 19:
            bench.run()


def test_limits_that_contradict_each_other_are_clamped():  # field case 25
    for config in ({"c": 4096, "max_batch_tokens": 2048}, {"c": 1000, "max_batch_tokens": 16}):
        bench, prompt = Bench(L=256, **config), letters(48)
        assert bench.ask("x", prompt) == bench.reference(prompt)
        assert max(sum(plan.extend_lens) for plan in bench.plans) <= config["max_batch_tokens"]
    few = Bench(r=8, c=2, max_batch_tokens=3)  # fewer tokens a step than rows
    for i in range(12):
        few.submit(f"x{i}", letters(5, seed=i))
    few.run()
    assert max(len(plan.rows) for plan in few.plans) <= 3
    with pytest.raises(ValueError, match="chunk_size"):
        SchedulerConfig(chunk_size=0)


@pytest.mark.parametrize("depth", [1, 2])
def test_half_done_prompts_survive_a_full_pool(depth):  # field case 27
    bench, rng = Bench(N=64, c=4, r=4, depth=depth), random.Random(27)
    for i in range(12):
        bench.submit(f"x{i}", letters(30, seed=i))
    cancelled = [f"x{i}" for i in range(0, 12, 3)]
    for request_id in cancelled:
        for _ in range(rng.randrange(8)):
            bench.step()
        bench.cancel(request_id)
    bench.run()
    assert len(bench.endings) == 12
    for i in range(12):
        if f"x{i}" not in cancelled:
            assert bench.tokens[f"x{i}"] == bench.reference(letters(30, seed=i))
    assert bench.ask("later", letters(30, seed=99)) == bench.reference(letters(30, seed=99))


def test_chunks_of_a_fresh_prompt_are_no_hits():  # field case 144
    bench = Bench(c=8)
    bench.ask("x", letters(40), 1)
    assert bench.core.counters()["cached_tokens"] == 0
    assert bench.core.counters()["computed_tokens"] == 40


def test_long_prompt_never_stops_a_running_stream():  # field case 47
    bench = Bench(N=1024, c=8, r=4, L=600)
    bench.submit("stream", letters(5), 100)
    for _ in range(10):
        bench.step()
    bench.submit("long", letters(400, seed=1), 5)
    start = len(bench.plans)
    bench.run()
    stream_row = bench.plans[start - 1].rows[0]
    alive = [plan for plan in bench.plans[start : start + 50] if 400 not in plan.extend_lens]
    assert all(stream_row in plan.rows for plan in alive), "every step has the stream's token"
    assert bench.tokens["long"] == bench.reference(letters(400, seed=1))


def test_short_prompts_pass_a_long_one():  # field case 49
    bench = Bench(N=1024, c=16, r=4, L=600)
    bench.submit("long", letters(400), 1)
    for i in range(10):
        bench.submit(f"short{i}", letters(5, seed=10 + i), 1)
    ended_at = {}
    while bench.step():
        for request_id in bench.endings:
            ended_at.setdefault(request_id, len(bench.plans))
    invariants.check_idle(bench.core)
    shorts = sorted(ended_at[f"short{i}"] for i in range(10))
    assert shorts[5] <= 8 < ended_at["long"]
