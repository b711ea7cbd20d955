"""Field cases of group D: cut back and resumed, with the same tokens and no thrash."""

import random

import pytest

from gpu_worker.fake_engine import FakeModel
from protos.plan import SamplingParams
from scheduler_svc.core.messages import Ending, PinLevel
from scheduler_svc.core.retraction import RETRACTION_POLICIES, victims_in_order
from tests.scheduler_svc.core.harness import Bench
from tests.scheduler_svc.core.test_prefix_cache import letters
from tests.scheduler_svc.core.test_retraction_policies import Facts

TO_THE_LAST = {"high_watermark": 1.0, "low_watermark": 1.0}
"""Nobody is cut back while a page can be had."""
DEPTHS = pytest.mark.parametrize("depth", [1, 2])
SAMPLING = pytest.mark.parametrize(
    "sampling", [SamplingParams(), SamplingParams(temperature=1.0, seed=7)]
)


@DEPTHS
def test_throughput_recovers_after_a_storm(depth):  # field case 38
    bench = Bench(N=160, c=8, r=8, depth=depth)

    def four_streams(tag):
        start = len(bench.plans)
        for i in range(4):
            bench.submit(f"{tag}{i}", letters(8, seed=i), 20)
        bench.run()
        return len(bench.plans) - start

    before = four_streams("before")
    for i in range(4):
        bench.submit(f"grow{i}", letters(10, seed=20 + i), 60)
    for _ in range(20):
        bench.step()
    bench.submit("big", letters(70, seed=30), 10)
    bench.run()
    assert bench.core.counters()["retractions"] > 0
    bench.core.flush()
    assert four_streams("after") <= before / 0.8


@DEPTHS
@SAMPLING
def test_no_thrash_between_two_that_do_not_fit_together(depth, sampling):  # field case 39
    bench = Bench(N=64, r=4, depth=depth, decode_reserve=0.0)
    prompts = {"a": letters(20, seed=1), "b": letters(20, seed=2)}
    for name, prompt in prompts.items():
        bench.submit(name, prompt, 30, sampling=sampling)
    bench.run()
    for name, prompt in prompts.items():
        assert bench.tokens[name] == bench.reference(prompt, 30, sampling=sampling)
    assert 1 <= bench.core.counters()["retractions"] <= 4
    assert len(bench.plans) <= 2 * (6 + 60)


@DEPTHS
def test_victim_waits_for_its_whole_need(depth):  # field case 39
    bench = Bench(N=64, r=8, depth=depth, decode_reserve=0.0)
    for name, seed in (("a", 1), ("b", 2)):
        bench.submit(name, letters(16, seed=seed), 40)
    for i in range(6):  # each one's end makes a little room, not enough for a victim
        bench.submit(f"c{i}", letters(2, seed=10 + i), 3 + 3 * i)
    bench.run()
    assert bench.core.counters()["retractions"] == 2
    for name, seed in (("a", 1), ("b", 2)):
        assert bench.tokens[name] == bench.reference(letters(16, seed=seed), 40)


@DEPTHS
def test_pages_that_are_coming_back_are_waited_for(depth):
    bench = Bench(N=128, r=8, depth=depth, decode_reserve=0.0, **TO_THE_LAST)
    for i in range(8):
        bench.submit(f"x{i}", letters(10, seed=i), 12 + i)
    bench.run()
    assert bench.core.counters()["retractions"] == 2, "one victim after the other, not all at once"


@DEPTHS
def test_prompts_that_come_back_count_as_room(depth):
    bench = Bench(
        N=8 * 64,
        p=16,
        c=64,
        r=8,
        L=512,
        depth=depth,
        decode_reserve=0.0,
        max_batch_tokens=1024,
        **TO_THE_LAST,
    )
    for i in range(8):
        bench.submit(f"x{i}", letters(48, seed=i), 40)
    bench.run()
    assert bench.core.counters()["retractions"] <= 3
    for i in range(8):
        assert bench.tokens[f"x{i}"] == bench.reference(letters(48, seed=i), 40)


def test_resuming_without_max_tokens_does_not_drain_the_pool():
    # Nobody names max_tokens; real answers have about 150 tokens.
    bench = Bench(
        N=2000,
        r=32,
        L=4096,
        c=64,
        model=FakeModel(eos_every=150),
        max_batch_tokens=256,
        decode_reserve=0.05,
    )
    for i in range(100):
        bench.submit(f"x{i}", letters(20, seed=i), 4000)
    alone = 0
    while bench.step():
        alone += bench.core.num_running <= 2
    assert bench.core.counters()["retractions"] > 0
    assert alone < len(bench.plans) / 4, "half of the steps once served two or fewer"


@DEPTHS
@SAMPLING
@pytest.mark.parametrize("times", [1, 2])
def test_resumes_prompt_and_output(depth, sampling, times):  # field cases 40, 41
    bench = Bench(N=64, r=4, depth=depth)
    prompt = letters(3)
    bench.submit("a", prompt, 40, sampling=sampling)
    for round_number in range(times):
        while len(bench.tokens["a"]) < 15 * (round_number + 1):
            bench.step()
        bench.core.state.retract(bench.core.state.running["a"])
        assert bench.core.num_running == 0
    bench.run()
    assert bench.tokens["a"] == bench.reference(prompt, 40, sampling=sampling)
    assert bench.endings["a"].ending is Ending.LENGTH
    assert bench.core.counters()["retractions"] == times
    assert bench.cached["a"] == 0, "cached tokens are those of the first admission"


@DEPTHS
def test_retraction_keeps_the_head_and_frees_only_the_deficit(depth):
    bench = Bench(N=60, r=2, depth=depth, decode_reserve=0.0)
    a, b = letters(10, seed=1), letters(10, seed=2)
    bench.submit("a", a, 40)
    for _ in range(6):
        bench.step()
    bench.submit("b", b, 40)
    while not bench.core.counters()["retractions"]:
        bench.step()
    while bench.core.state.leaving:
        bench.step()
    kept = bench.core.state.kv.match_key(bench.core.state.live["b"])
    assert bench.core.state.tree.peek(kept) >= 15, "most of the victim is still warm"
    while "a" not in bench.endings:
        bench.step()
    bench.run()
    assert bench.tokens["a"] == bench.reference(a, 40)
    assert bench.tokens["b"] == bench.reference(b, 40)


@pytest.mark.parametrize("round_number", range(5))
def test_retraction_with_steps_in_flight(round_number):  # field case 44
    bench, rng = Bench(N=64, r=6, depth=2), random.Random(round_number)
    for i in range(30):
        bench.submit(f"x{i}", letters(8, seed=100 * round_number + i), 20)
        if rng.random() < 0.5:
            bench.schedule()
    bench.run()
    assert bench.core.counters()["retractions"] > 0
    for i in range(30):
        wanted = bench.reference(letters(8, seed=100 * round_number + i), 20)
        assert bench.tokens[f"x{i}"] == wanted


@pytest.mark.parametrize("name", sorted(RETRACTION_POLICIES))
def test_every_policy_ends_every_request(name):
    bench = Bench(N=48, r=6, retraction_policy=name, decode_reserve=0.0)
    for i in range(12):
        bench.submit(f"x{i}", letters(5 + i, seed=i), 25)
    bench.run()
    for i in range(12):
        assert bench.tokens[f"x{i}"] == bench.reference(letters(5 + i, seed=i), 25)


def test_progress_spares_whoever_is_furthest():
    bench = Bench(N=256, r=4)
    for i in range(3):
        bench.submit(f"x{i}", letters(4, seed=i), 50)
        for _ in range(5):
            bench.step()
    victims = victims_in_order(
        RETRACTION_POLICIES["progress"], bench.core.state.running.values(), Facts()
    )
    order = [request.request_id for request, _ in victims]
    assert order == ["x2", "x1", "x0"]


def test_tax_counts_what_was_computed_twice():
    bench = Bench(N=256, r=2)
    bench.submit("a", letters(10), 20)
    for _ in range(12):
        bench.step()
    bench.core.state.retract(bench.core.state.running["a"])
    while bench.core.state.leaving:
        bench.answer()
    bench.core.flush()
    bench.run()
    counters = bench.core.counters()
    assert counters["recomputed_tokens"] > 10
    assert counters["computed_tokens"] == 29 + counters["recomputed_tokens"]


def test_victims_are_never_refused_by_the_limit_of_the_queue():
    bench = Bench(N=256, r=4, max_waiting=1)
    for i in range(4):
        bench.submit(f"x{i}", letters(5, seed=i), 30)
        bench.step()
    for request in list(bench.core.state.running.values()):
        bench.core.state.retract(request)
    while bench.core.state.leaving:
        bench.answer()
    assert bench.core.num_waiting == 4 > bench.config.max_waiting
    bench.submit("fresh", letters(5, seed=10), 5)
    bench.submit("one-too-many", letters(5, seed=11), 5)
    assert "fresh" not in bench.endings
    assert bench.endings["one-too-many"].ending is Ending.REJECTED_QUEUE_FULL
    bench.run()
    for i in range(4):
        assert bench.tokens[f"x{i}"] == bench.reference(letters(5, seed=i), 30)


def random_run(seed, **config):
    """Requests of all sorts in a small pool, played to their ends."""
    rng = random.Random(seed)
    page_size = rng.choice([1, 4, 16])
    bench = Bench(
        N=rng.choice([96, 128, 192]),
        p=page_size,
        c=rng.choice([4, 16]),
        r=rng.randint(2, 8),
        L=96,
        depth=rng.choice([1, 2]),
        model=FakeModel(eos_every=rng.choice([0, 20])),
        **config,
    )
    stem = letters(20, seed=seed)
    for i in range(8):
        own = letters(rng.randint(1, 30), seed=100 * seed + i)
        prompt = stem + own if rng.random() < 0.4 else own
        sampling = SamplingParams(temperature=1.0, seed=i) if i % 2 else SamplingParams()
        no_store = rng.random() < 0.2
        bench.submit(f"x{i}", prompt, rng.randint(1, 40), sampling=sampling, no_store=no_store)
        for _ in range(rng.randint(0, 4)):
            bench.step()
    return bench.run()


def test_worst_case_never_cuts_anybody_back():
    """And the same runs with another estimate do, so they had reason to."""
    others = 0
    for seed in range(80):
        bench = random_run(seed, admission_estimate="worst_case")
        assert bench.core.counters()["retractions"] == 0, seed
        if seed % 5 == 0:
            others += random_run(seed, decode_reserve=0.0).core.counters()["retractions"]
    assert others > 10


@DEPTHS
@pytest.mark.parametrize("page_size", [1, 4])
def test_last_one_that_cannot_grow_ends_with_its_output(depth, page_size):
    bench = Bench(N=64, p=page_size, r=2, depth=depth)
    prompt = letters(20)
    bench.submit("a", prompt, 100)
    bench.submit("b", letters(4, seed=1), 20)
    bench.run()
    ending = bench.endings["a"]
    assert ending.ending is Ending.POOL_FULL
    # All slots are in use, and the token sampled last needs none.
    assert len(bench.tokens["a"]) == 64 - 20 + 1
    assert bench.tokens["a"] == bench.reference(prompt, 100)[:45]
    assert "64 token slots" in ending.message
    assert f"{20 + 45} tokens" in ending.message
    assert bench.tokens["b"] == bench.reference(letters(4, seed=1), 20)
    assert bench.ask("c", letters(9, seed=2), 5) == bench.reference(letters(9, seed=2), 5)


def test_last_one_says_how_much_is_pinned():
    bench = Bench(N=64, r=2)
    bench.ask("pin", letters(16, seed=5), 0, preheat=True, pin=PinLevel.HARD)
    bench.submit("a", letters(20), 100)
    bench.run()
    assert bench.endings["a"].ending is Ending.POOL_FULL
    assert "16 of them pinned" in bench.endings["a"].message
    assert len(bench.tokens["a"]) == 64 - 16 - 20 + 1
