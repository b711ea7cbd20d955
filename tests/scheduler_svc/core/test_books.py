"""Books against figures worked out by hand: reuse, density, turnover, tax, volatility, tenants."""

import random

import pytest

from scheduler_svc.core.books import WINDOW
from scheduler_svc.core.messages import PinLevel
from scheduler_svc.core.tenant_ledger import MOST_TENANTS, OTHERS, TenantLedger
from tests.scheduler_svc.core.harness import Bench
from tests.scheduler_svc.core.test_prefix_cache import letters, whole

PAGES = pytest.mark.parametrize("p", [1, 4, 16])
SECOND = 1_000_000_000
MS = 1_000_000


def economy(bench):
    return bench.core.economy(bench.now_ns)


# --- honest reuse -----------------------------------------------------------------------------


@PAGES
def test_hits_and_queries_give_the_exact_ratio(p):  # field case 142
    bench, stem = Bench(p=p), letters(32)
    asked = [[*stem, 200 + i, 1, 2, 3, 4] for i in range(9)] + [[255, *letters(19)]]
    for i, prompt in enumerate(asked):
        bench.ask(f"x{i}", prompt, 1)
    counters = bench.core.counters()
    assert [bench.cached[f"x{i}"] for i in range(10)] == [0] + [32] * 8 + [0]
    assert counters["cached_tokens"] == 8 * 32
    assert counters["prompt_tokens"] == 9 * 37 + 20
    assert counters["cached_tokens"] + counters["computed_tokens"] == counters["prompt_tokens"]
    assert economy(bench).reuse_rate == 8 * 32 / (9 * 37 + 20)


@PAGES
def test_a_known_mix_matches_the_count_by_hand(p):  # field case 143
    bench = Bench(N=4096, p=p, r=1, waiting_order="fcfs")
    wanted = {}
    for i in range(10):
        cold = [200 + i, *letters(32, seed=i)]
        half = [*cold[:17], 199, *letters(15, seed=i)]
        for name, prompt, cached in (
            (f"cold{i}", cold, 0),
            (f"half{i}", half, whole(17, p)),
            (f"full{i}", cold, whole(32, p)),
        ):
            bench.submit(name, prompt, 3)
            wanted[name] = cached
    bench.run()
    # r=1: each is computed before the next starts.
    assert bench.cached == wanted
    assert bench.core.counters()["cached_tokens"] == sum(wanted.values())
    assert bench.core.counters()["prompt_tokens"] == 30 * 33


@pytest.mark.parametrize("depth", [1, 2])
@PAGES
def test_every_prompt_token_is_cached_or_computed_once(p, depth):  # field case 142
    bench, rng = Bench(N=1024, p=p, r=6, depth=depth), random.Random(142)
    lengths = {}
    for i in range(40):
        prompt = letters(rng.randint(1, 60), seed=0)[: rng.randint(1, 60)]
        prompt += letters(rng.randint(1, 9), seed=i % 7)
        lengths[f"x{i}"] = len(prompt)
        bench.submit(f"x{i}", prompt, 1)
        if rng.random() < 0.5:
            bench.step()
    bench.run()
    counters = bench.core.counters()
    assert not counters["retractions"]
    assert counters["prompt_tokens"] == sum(lengths.values())
    assert counters["cached_tokens"] == sum(bench.cached.values())
    assert counters["computed_tokens"] == counters["prompt_tokens"] - counters["cached_tokens"]


def test_neither_own_chunks_nor_retraction_count_as_hits():  # field case 144
    bench = Bench(N=64, c=8, decode_reserve=0.0)
    for i in range(2):
        bench.submit(f"x{i}", letters(20, seed=i), 30)
    bench.run()
    counters = bench.core.counters()
    assert counters["retractions"] > 0
    assert counters["cached_tokens"] == 0
    assert counters["prompt_tokens"] == 40
    assert bench.cached == {"x0": 0, "x1": 0}


def test_preheats_are_no_prompts():
    bench = Bench()
    bench.ask("warm", letters(40), 0, preheat=True)
    assert economy(bench).reuse_rate == 0.0
    bench.ask("asks", letters(41), 1)
    assert economy(bench).reuse_rate == 40 / 41
    assert bench.core.counters()["preheated_tokens"] == 40


def test_gauges_fall_with_everybody_gone_and_no_traffic():  # field case 146
    bench = Bench(N=1024, r=8)
    for i in range(50):
        bench.submit(f"x{i}", letters(9, seed=i), 50, tenant="t")
    for _ in range(5):
        bench.step()
    for i in range(50):
        bench.cancel(f"x{i}")
    while bench.sent:
        bench.answer()
    books = bench.core.slot_books()
    assert (books.locked, books.private, books.in_flight) == (0, 0, 0)
    assert (bench.core.num_running, bench.core.num_waiting) == (0, 0)
    assert bench.core.counters()["cancelled"] == 50
    assert (economy(bench).density, economy(bench).context_tokens) == (0.0, 0)
    tenant = bench.core.tenant_books()["t"]
    assert (tenant.running, tenant.waiting, tenant.held_slots) == (0, 0, 0)


# --- density, turnover, tax, volatility -------------------------------------------------------


def test_sharing_makes_density_exceed_one():
    bench, stem = Bench(N=256, r=4, depth=1), letters(60)
    bench.ask("warm", stem, 0, preheat=True)
    for i in range(4):
        bench.submit(f"x{i}", stem + letters(4, seed=i), 10)
    bench.step()
    # Each sees 60 shared tokens and 4 of its own.
    assert economy(bench).context_tokens == 4 * 64
    assert economy(bench).density == 4 * 64 / (60 + 4 * 4)
    gib = 1 << 30
    bytes_a_slot = bench.engine.hello().kv_bytes_per_slot
    assert economy(bench).tokens_per_gib == 4 * 64 * gib / (256 * bytes_a_slot)
    bench.run()


def test_density_counts_whole_pages():
    bench = Bench(N=256, p=16, depth=1, c=64)
    bench.submit("x", letters(17), 9)
    bench.step()
    assert economy(bench).density == 17 / 32


def test_idle_pins_are_no_context_and_used_ones_are_slots_like_others():
    bench, stem = Bench(N=256, depth=1, c=64), letters(40)
    bench.ask("pin", stem, 0, preheat=True, pin=PinLevel.HARD)
    bench.submit("other", letters(30, seed=1), 9)
    bench.step()
    assert economy(bench).density == 1.0
    bench.submit("asks", stem + letters(2, seed=2), 9)
    bench.step()
    # 31 tokens of one, 42 of the other; all slots are somebody's.
    assert economy(bench).context_tokens == 31 + 42
    assert economy(bench).density == 1.0
    assert economy(bench).pinned_slots == 40


def test_turnover_is_slots_freed_a_second_by_the_pool():
    bench = Bench(N=100)
    bench.step()  # the first sample
    bench.ask("a", letters(60), 1, no_store=True)  # its 60 slots are freed at its end
    assert bench.core.counters()["freed_slots"] == economy(bench).freed_slots == 60
    started_ns = 1000
    bench.now_ns = started_ns + 4 * SECOND
    assert economy(bench).turnover == pytest.approx(60 / 4 / 100)
    bench.ask("b", letters(90, seed=1), 1)
    bench.ask("c", letters(50, seed=2), 1)  # evicts 40
    bench.now_ns = started_ns + 10 * SECOND
    assert economy(bench).turnover == pytest.approx((60 + 40) / 10 / 100)


def test_turnover_and_volatility_forget_what_left_the_window():
    bench = Bench(N=100)
    bench.step()
    bench.ask("a", letters(60), 1, no_store=True)
    for _ in range(WINDOW + 1):
        bench.now_ns += SECOND
        bench.schedule()
    assert economy(bench).turnover == 0.0
    assert economy(bench).volatility == 0.0
    assert economy(bench).freed_slots == 60, "a counter forgets nothing"


def test_volatility_is_the_deviation_of_what_is_used():
    bench = Bench(N=100, depth=1)
    bench.schedule()  # nothing is used
    bench.submit("x", letters(8), 200)
    bench.step()
    while (used := bench.core.slot_books()).private + used.locked < 40:
        bench.step()
    bench.now_ns = 2 * SECOND
    bench.schedule()  # 40 of 100
    assert economy(bench).volatility == pytest.approx(0.2)


@pytest.mark.parametrize("keep", ["none", "partial"])
def test_tax_is_what_is_computed_again_of_all_that_is(keep):
    bench = Bench(N=64, decode_reserve=0.0, retraction_keep=keep)
    for i in range(2):
        bench.submit(f"x{i}", letters(20, seed=i), 30)
    bench.run()
    counters = bench.core.counters()
    # Each token but the last of each is computed once; what is above was computed again.
    assert counters["recomputed_tokens"] == counters["computed_tokens"] - 2 * 49 > 0
    assert economy(bench).recompute_tax == (
        counters["recomputed_tokens"] / counters["computed_tokens"]
    )
    assert bench.core.tenant_books()[""].recomputed_tokens == counters["recomputed_tokens"]


def test_what_a_lost_worker_costs_is_tax():
    bench = Bench(N=256)
    bench.submit("x", letters(20), 30)
    while len(bench.tokens["x"]) < 10:
        bench.step()
    before = bench.core.counters()["computed_tokens"]
    bench.lose_worker()
    bench.run()
    counters = bench.core.counters()
    assert counters["recomputed_tokens"] == counters["computed_tokens"] - 49
    assert 29 <= counters["recomputed_tokens"] <= before


# --- histograms -------------------------------------------------------------------------------


def counts_of(bench, name):
    """(upper bound of a bucket, count), where there is any; None has no bound."""
    view = bench.core.histograms()[name]
    assert len(view.counts) == len(view.bounds) + 1
    assert list(view.bounds) == sorted(view.bounds)
    return {b: n for b, n in zip((*view.bounds, None), view.counts, strict=True) if n}, view.sum


@pytest.mark.parametrize("p", [1, 4])
def test_lives_of_pages_by_hand(p):
    bench, prompt = Bench(N=64, p=p, depth=1), letters(33)
    bench.ask("x", prompt, 1)  # at 0 ms: 32 tokens in whole pages
    bench.now_ns = 1000 * MS
    bench.ask("again", prompt[:33], 1)
    born, used = 0, 1000
    assert counts_of(bench, "reuse_gap_ms") == ({1024.0: 1}, used)
    bench.now_ns = 3000 * MS
    bench.ask("big", letters(63, seed=1), 1)
    evicted = bench.core.counters()["evicted_tokens"] // p
    assert evicted >= 32 / p - 1
    lives, of_lives = counts_of(bench, "block_lifetime_ms")
    idles, of_idles = counts_of(bench, "idle_before_evict_ms")
    assert sum(lives.values()) == sum(idles.values()) == evicted
    assert set(lives) == {4096.0}
    assert of_lives == (3000 - born) * evicted
    assert set(idles) <= {2048.0, 4096.0}
    assert of_idles <= (3000 - used) * evicted + 1000


def test_a_request_that_waits_for_room_uses_nothing():
    bench, stem = Bench(N=64, r=4, admission_estimate="worst_case"), letters(30)
    bench.ask("warm", stem, 1)
    bench.submit("runs", letters(10, seed=1), 20)
    bench.step()
    bench.submit("waits", stem + letters(10, seed=2), 20)
    for _ in range(8):
        bench.now_ns += 5 * MS
        bench.step()
    assert bench.core.num_waiting == 1
    assert counts_of(bench, "reuse_gap_ms") == ({}, 0.0)
    bench.run()
    assert sum(counts_of(bench, "reuse_gap_ms")[0].values()) == 1


# --- tenants ----------------------------------------------------------------------------------


def test_each_tenants_books_sum_up_to_all():
    bench = Bench(N=96, r=4, decode_reserve=0.0)
    for i in range(12):
        bench.submit(f"x{i}", letters(15, seed=i % 5), 20, tenant=f"t{i % 3}")
    most = {}
    while bench.step():
        books = bench.core.tenant_books()
        assert sum(view.running for view in books.values()) == bench.core.num_running
        assert sum(view.waiting for view in books.values()) <= bench.core.num_waiting
        for name, view in books.items():
            most[name] = max(most.get(name, 0), view.held_slots)
    counters, books = bench.core.counters(), bench.core.tenant_books()
    assert sorted(books) == ["t0", "t1", "t2"]
    for name in (
        "prompt_tokens",
        "cached_tokens",
        "generated_tokens",
        "computed_tokens",
        "recomputed_tokens",
        "retractions",
    ):
        assert sum(getattr(view, name) for view in books.values()) == counters[name], name
    assert counters["retractions"] > 0
    assert all(view.generated_tokens == 4 * 20 for view in books.values())
    assert min(most.values()) >= 15


def test_names_of_tenants_are_bounded():
    bench = Bench(N=512, r=8, max_waiting=2000)
    for i in range(1000):
        bench.submit(f"x{i}", letters(4, seed=i), 2, tenant=f"tenant {i}")
    bench.step()
    assert sum(v.waiting for v in bench.core.tenant_books().values()) == bench.core.num_waiting
    bench.run()
    books = bench.core.tenant_books()
    assert len(books) <= MOST_TENANTS + 1
    assert OTHERS in books
    assert sum(view.prompt_tokens for view in books.values()) == 4000
    assert sum(view.generated_tokens for view in books.values()) == 2000
    assert not bench.core.state.ledger._num_live
    assert not bench.core.state.waiting.waiting_tenants()


def test_what_tenants_were_served_is_forgotten_when_they_are_away():
    ledger = TenantLedger({})
    ledger.come("stays")
    ledger.serve("stays", 70)
    for i in range(40 * MOST_TENANTS):
        ledger.come(f"tenant {i}")
        ledger.serve(f"tenant {i}", 5)
        ledger.go(f"tenant {i}")
    assert len(ledger._service) <= 16 * MOST_TENANTS + 1
    assert ledger.service("stays") == 70


def test_pins_of_tenants_counted_together_are_counted():
    bench = Bench(N=1024)
    for i in range(MOST_TENANTS):
        bench.ask(f"x{i}", letters(3, seed=i), 1, tenant=f"t{i}")
    for i in range(2):
        bench.ask(
            f"pin{i}", letters(20, seed=i), 0, preheat=True, pin=PinLevel.HARD, tenant=f"n{i}"
        )
    books = bench.core.tenant_books()
    assert economy(bench).pinned_slots == 40
    assert sum(view.pinned_slots for view in books.values()) == 40
