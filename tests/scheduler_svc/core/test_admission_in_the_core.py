"""Each admission estimate drives the scheduler: group C of the field cases under all of them."""

import random

import pytest

from scheduler_svc.core.admission import ADMISSION_ESTIMATES
from scheduler_svc.core.messages import Ending, PinLevel
from scheduler_svc.core.output_lengths import LEAST_LENGTHS
from tests.scheduler_svc.core.harness import OK_ENDINGS, Bench
from tests.scheduler_svc.core.test_prefix_cache import letters

ESTIMATES = pytest.mark.parametrize("estimate", ADMISSION_ESTIMATES)
PAGES = pytest.mark.parametrize("p", [1, 4, 16])
DEPTHS = pytest.mark.parametrize("depth", [1, 2])


def submit_all(bench, number, num_prompt, max_tokens, **fields):
    for i in range(number):
        bench.submit(f"x{i}", letters(num_prompt, seed=i), max_tokens, **fields)


def check_answers(bench, number, num_prompt, max_tokens):
    for i in range(number):
        wanted = bench.reference(letters(num_prompt, seed=i), max_tokens)
        assert bench.tokens[f"x{i}"] == wanted, i


def most_running(bench):
    """Runs to the end; how many ran at once."""
    most = 0
    while bench.step():
        most = max(most, bench.core.num_running)
    bench.run()
    return most


def retractions(bench):
    return bench.core.counters()["retractions"]


@DEPTHS
@PAGES
@ESTIMATES
def test_a_momentary_shortage_is_no_error(estimate, p, depth):  # field case 31
    bench = Bench(N=64, p=p, r=8, depth=depth, admission_estimate=estimate)
    submit_all(bench, 16, 13, 9)
    bench.run()
    check_answers(bench, 16, 13, 9)


@ESTIMATES
def test_page_rounding_is_part_of_the_need(estimate):  # field case 32
    bench = Bench(N=64, p=16, r=8, admission_estimate=estimate)
    submit_all(bench, 5, 17, 9)
    assert most_running(bench) == 2
    assert not retractions(bench)
    check_answers(bench, 5, 17, 9)


@pytest.mark.parametrize("r", [1, 2])
@ESTIMATES
def test_rows_run_out_before_slots_do(estimate, r):  # field case 33
    bench = Bench(N=2048, r=r, admission_estimate=estimate)
    submit_all(bench, 12, 6, 4)
    assert most_running(bench) == r
    check_answers(bench, 12, 6, 4)


@PAGES
@ESTIMATES
def test_what_never_fits_blocks_nobody(estimate, p):  # field case 34
    bench = Bench(N=64, p=p, L=256, admission_estimate=estimate)
    bench.submit("huge", letters(100), 5)
    assert bench.endings["huge"].ending is Ending.REJECTED_TOO_LARGE
    assert bench.ask("small", letters(5)) == bench.reference(letters(5))
    for n, ending in ((63, Ending.LENGTH), (64, Ending.LENGTH), (65, Ending.REJECTED_TOO_LARGE)):
        bench.submit(f"n{n}", letters(n, seed=n), 1)
        bench.run()
        assert bench.endings[f"n{n}"].ending is ending


@DEPTHS
@PAGES
@ESTIMATES
def test_alone_and_out_of_room_ends_with_what_there_is(estimate, p, depth):  # field case 35
    bench = Bench(N=32, p=p, depth=depth, admission_estimate=estimate)
    bench.submit("x", letters(28), 20)
    bench.submit("next", letters(6, seed=1), 3)
    bench.run(limit=200)
    assert bench.endings["x"].ending is Ending.POOL_FULL
    assert bench.tokens["x"] == bench.reference(letters(28), 20)[:5]
    assert bench.tokens["next"] == bench.reference(letters(6, seed=1), 3)


@DEPTHS
@ESTIMATES
def test_nobody_waits_before_an_empty_engine(estimate, depth):  # field case 36
    rng = random.Random(36)
    bench = Bench(N=64, p=4, r=6, depth=depth, admission_estimate=estimate)
    for i in range(60):
        bench.submit(f"x{i}", letters(rng.randint(1, 40), seed=i % 7), rng.randint(1, 40))
        if rng.random() < 0.3 and f"x{i}" not in bench.endings:
            bench.cancel(f"x{i}")
        if rng.random() < 0.6:
            bench.step()
        idle = not bench.core.num_running and not bench.core.num_in_flight
        if idle and bench.core.num_waiting:
            assert bench.schedule(), "somebody waits and nobody runs"
    bench.run()
    for i in range(5):
        assert bench.ask(f"fresh{i}", letters(5, seed=i)) == bench.reference(letters(5, seed=i))


@ESTIMATES
def test_reuse_never_lets_a_step_exceed_its_budget(estimate):  # field case 37
    bench = Bench(N=512, c=32, r=10, max_batch_tokens=32, admission_estimate=estimate)
    stem = letters(60)
    bench.ask("warm", stem)
    for i in range(10):
        bench.submit(f"x{i}", stem + letters(7, seed=i))
    bench.run()
    assert max(sum(plan.extend_lens) for plan in bench.plans) <= 32
    for i in range(10):
        assert bench.tokens[f"x{i}"] == bench.reference(stem + letters(7, seed=i))


# --- worst_case keeps its word ----------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@DEPTHS
@PAGES
def test_worst_case_never_cuts_back(p, depth, seed):
    """Prefixes shared and evicted, early ends, cancels, preheats and pins; never a retraction."""
    rng = random.Random(seed)
    bench = Bench(
        N=160, p=p, r=6, depth=depth, c=rng.choice([4, 8, 32]), admission_estimate="worst_case"
    )
    stem, wanted = letters(40), {}
    for i in range(50):
        name = f"x{i}"
        prompt = stem[: rng.choice([0, 8, 40])] + letters(rng.randint(1, 30), seed=rng.randrange(9))
        if rng.random() < 0.15:
            pin = rng.choice([PinLevel.NONE, PinLevel.SOFT, PinLevel.HARD])
            ttl_ns = rng.choice([0, 5_000])
            bench.submit(name, prompt, 0, preheat=True, pin=pin, pin_ttl_ns=ttl_ns)
        else:
            most = rng.randint(1, 60)
            stops = (rng.randrange(97, 123),) if rng.random() < 0.3 else ()
            wanted[name] = bench.reference(prompt, most)
            bench.submit(name, prompt, most, stop_token_ids=stops, no_store=rng.random() < 0.1)
        for _ in range(rng.randrange(4)):
            bench.step()
        if rng.random() < 0.1 and name not in bench.endings:
            bench.cancel(name)
        assert not retractions(bench)
    bench.run()
    assert not retractions(bench)
    for name, tokens in wanted.items():
        assert bench.tokens[name] == tokens[: len(bench.tokens[name])]
        allowed = {*OK_ENDINGS, Ending.CANCELLED, Ending.POOL_FULL}
        assert bench.endings[name].ending in allowed


def test_the_others_admit_more_and_pay_for_it():
    """Four of 20 + 60 tokens in 200 slots: two fit for certain, and they go two by two."""
    ran, cut = {}, {}
    for estimate in ADMISSION_ESTIMATES:
        bench = Bench(N=200, r=8, admission_estimate=estimate)
        submit_all(bench, 4, 20, 60)
        ran[estimate], cut[estimate] = most_running(bench), retractions(bench)
        check_answers(bench, 4, 20, 60)
    assert ran["worst_case"] == 2
    assert ran["ratio"] == 4
    assert cut["worst_case"] == 0
    assert cut["ratio"] > 0


def test_peak_counts_on_those_that_end_first():
    """One is nearly done when the other comes: worst_case adds both needs up, peak does not."""
    waited = {}
    for estimate in ("worst_case", "peak"):
        bench = Bench(N=100, r=4, admission_estimate=estimate, high_watermark=1.0)
        bench.submit("ends soon", letters(40), 20)
        while len(bench.tokens["ends soon"]) < 10:
            bench.step()
        bench.submit("begins", letters(20, seed=1), 40)
        num_plans = len(bench.plans)
        while "begins" not in bench.started:
            bench.step()
        waited[estimate] = len(bench.plans) - num_plans
        bench.run()
        assert not retractions(bench)
    assert waited["peak"] <= 1 < waited["worst_case"]


def test_ratio_holds_back_more_after_it_was_wrong():
    bench = Bench(N=128, r=16, admission_estimate="ratio", decode_reserve=0.1)
    submit_all(bench, 12, 10, 60)
    before = bench.core.state.estimate.ratio
    while not retractions(bench):
        bench.step()
    bench.step()
    assert bench.core.state.estimate.ratio > before + 0.05
    bench.run()
    check_answers(bench, 12, 10, 60)
    for _ in range(300):
        bench.ask(f"y{len(bench.endings)}", letters(4), 2)
    assert bench.core.state.estimate.ratio == pytest.approx(0.1, abs=0.001)


def test_quantile_learns_how_long_answers_get():
    """All ask for 200 tokens and end after 5: what was learned lets more of them run at once."""
    admitted = {}
    for known in (False, True):
        bench = Bench(N=256, r=16, L=400, admission_estimate="quantile", decode_reserve=1.0)
        prompts = [letters(10, seed=i) for i in range(16)]
        for i in range(LEAST_LENGTHS + 16 if known else 0):
            stop = bench.reference(prompts[i % 16], 5)[-1]
            bench.ask(f"learn{i}", prompts[i % 16], 200, stop_token_ids=(stop,))
        bench.core.flush()
        for i, prompt in enumerate(prompts):
            stop = bench.reference(prompt, 5)[-1]
            bench.submit(f"x{i}", prompt, 200, stop_token_ids=(stop,))
        for _ in range(4):
            bench.step()
        admitted[known] = sum(f"x{i}" in bench.started for i in range(16))
        bench.run()
        assert {bench.endings[f"x{i}"].ending for i in range(16)} == {Ending.STOP}
    assert admitted[False] <= 2
    assert admitted[True] >= 8


@ESTIMATES
def test_headroom_below_the_high_watermark_is_left_alone(estimate):
    bench = Bench(N=100, r=20, admission_estimate=estimate, high_watermark=0.5, low_watermark=0.5)
    submit_all(bench, 10, 10, 1)
    used = 0
    while bench.step():
        books = bench.core.slot_books()
        if bench.core.num_running > 1:
            used = max(used, books.private + books.locked)
    assert 40 < used <= 50
    assert not retractions(bench)
