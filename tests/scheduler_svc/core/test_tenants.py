"""Tenants: what is guaranteed, what is capped, what is their own, and who is served next."""

import pytest

from scheduler_svc.core.config import SchedulerConfig, TenantPolicy
from scheduler_svc.core.messages import Ending
from tests.scheduler_svc.core.harness import OK_ENDINGS, Bench
from tests.scheduler_svc.core.speculating import drafting, until_drafts
from tests.scheduler_svc.core.test_prefix_cache import letters, whole

PAGES = pytest.mark.parametrize("p", [1, 4, 16])
DEPTHS = pytest.mark.parametrize("depth", [1, 2])


def held(bench):
    return {name: view.held_slots for name, view in bench.core.tenant_books().items()}


def check_answers(bench, prompts, max_tokens):
    for name, prompt in prompts.items():
        assert bench.tokens[name] == bench.reference(prompt, max_tokens), name


# --- the guaranteed share ---------------------------------------------------------------------


@DEPTHS
@pytest.mark.parametrize("p", [1, 4])
def test_a_tenant_below_its_share_gets_it_from_those_above(p, depth):
    tenants = {"owner": TenantPolicy(guaranteed_share=0.5)}
    bench = Bench(N=128, p=p, r=8, depth=depth, tenants=tenants, decode_reserve=0.0)
    prompts = {f"flood{i}": letters(16, seed=i) for i in range(12)}
    for name, prompt in prompts.items():
        bench.submit(name, prompt, 40, tenant="crowd")
    while held(bench).get("crowd", 0) < 100:
        bench.step()
    assert not bench.core.counters()["retractions"]
    prompts["own"] = letters(32, seed=50)
    bench.submit("own", prompts["own"], 40, tenant="owner")
    num_plans = len(bench.plans)
    while "own" not in bench.started:
        bench.step()
    assert len(bench.plans) - num_plans <= 2 + depth, "it waits for plans in flight, no longer"
    books = bench.core.tenant_books()
    assert (books["crowd"].retractions, books["owner"].retractions) != (0, 0)
    assert books["owner"].retractions == 0
    bench.run()
    check_answers(bench, prompts, 40)
    assert bench.core.tenant_books()["owner"].retractions == 0


def test_who_is_cut_back_with_its_token_planned_still_learns_its_new_slots():
    tenants = {"owner": TenantPolicy(guaranteed_share=0.5)}
    bench = Bench(N=24, p=4, depth=1, tenants=tenants, decode_reserve=0.0, high_watermark=1.0)
    prompts = {"x": letters(8), "y": letters(8)}
    for name, prompt in prompts.items():
        bench.submit(name, prompt, 6, tenant="crowd")
    bench.step()  # both computed it, so one moves over to the other's slots, and its own are free
    prompts["own"] = letters(11, seed=5)
    bench.submit("own", prompts["own"], 6, tenant="owner")
    bench.schedule()
    assert bench.core.counters()["retractions"] == 1
    (remap,) = bench.plans[-1].remaps
    assert remap.row in bench.plans[-1].rows
    bench.run()
    check_answers(bench, prompts, 6)


@DEPTHS
def test_room_that_comes_from_all_that_ran_is_taken_and_not_despaired_of(depth):
    tenants = {"owner": TenantPolicy(guaranteed_share=0.5)}
    bench = drafting(max_tokens=110, N=128, p=4, depth=depth, tenants=tenants, decode_reserve=0.0)
    while len(bench.tokens["x"]) < 70:
        bench.step()
    until_drafts(bench)
    bench.answer()  # nothing is in flight, and the only stream waits for its drafts
    bench.submit("own", letters(60, seed=5), 3, tenant="owner")
    bench.run()
    assert bench.core.counters()["retractions"] == 1
    assert bench.tokens["own"] == bench.reference(letters(60, seed=5), 3)
    assert bench.tokens["x"] == bench.reference(letters(12), 110)


def test_without_a_guarantee_nobody_is_cut_back_for_it():
    bench = Bench(N=128, r=8, admission_estimate="worst_case")
    for i in range(4):
        bench.submit(f"flood{i}", letters(16, seed=i), 10, tenant="crowd")
    for _ in range(5):
        bench.step()
    bench.submit("own", letters(32, seed=50), 40, tenant="owner")
    bench.run()
    assert not bench.core.counters()["retractions"]


def test_room_beyond_the_share_is_not_taken_from_others():
    tenants = {"owner": TenantPolicy(guaranteed_share=0.25)}
    bench = Bench(N=128, r=8, tenants=tenants, decode_reserve=0.0)
    for i in range(7):
        bench.submit(f"flood{i}", letters(16, seed=i), 5, tenant="crowd")
    bench.step()
    bench.submit("own", letters(60, seed=50), 5, tenant="owner")  # 60 of 32 guaranteed
    bench.step()
    assert not bench.core.counters()["retractions"]
    bench.run()
    assert bench.endings["own"].ending in OK_ENDINGS


@pytest.mark.parametrize("order", ["fcfs", "adaptive", "lpm", "vtc", "lof"])
def test_below_its_share_a_tenant_goes_first_under_any_order(order):
    tenants = {"owner": TenantPolicy(guaranteed_share=0.5)}
    bench = Bench(N=512, r=1, tenants=tenants, waiting_order=order)
    bench.submit("busy", letters(5), 20, tenant="crowd")
    bench.step()
    for i in range(5):
        bench.submit(f"flood{i}", letters(5, seed=i), 9, tenant="crowd")
    bench.submit("own", letters(5, seed=50), 5, tenant="owner")
    bench.run()
    assert bench.started[1] == "own"


# --- the cap ----------------------------------------------------------------------------------


@DEPTHS
@PAGES
def test_a_cap_holds_at_admission_and_while_they_grow(p, depth):
    tenants = {"small": TenantPolicy(most_share=0.25)}
    bench = Bench(N=256, p=p, r=8, depth=depth, tenants=tenants, decode_reserve=0.0)
    prompts = {f"x{i}": letters(10, seed=i) for i in range(6)}
    for name, prompt in prompts.items():
        bench.submit(name, prompt, 30, tenant="small")
    bench.submit("other", letters(10, seed=60), 60)
    most = 0
    while bench.step():
        most = max(most, held(bench).get("small", 0))
    assert 32 <= most <= 64, "a quarter of the pool, and that it uses"
    check_answers(bench, prompts, 30)
    books = bench.core.tenant_books()
    assert books[""].retractions == 0, "others do not pay for it"
    assert books["small"].retractions <= 2 * 6, "who was cut back stays away while it is capped"


def test_capped_requests_hold_up_nobody_else():
    tenants = {"small": TenantPolicy(most_share=0.25)}
    bench = Bench(N=128, r=8, tenants=tenants, waiting_order="fcfs")
    for i in range(4):
        bench.submit(f"x{i}", letters(20, seed=i), 10, tenant="small")
    bench.submit("other", letters(20, seed=9), 3)
    bench.step()
    assert bench.started == ["x0", "other"]
    bench.run()


@PAGES
def test_larger_than_its_tenant_may_be_is_refused_or_ended_with_the_numbers(p):
    tenants = {"small": TenantPolicy(most_share=0.25)}
    bench = Bench(N=128, p=p, tenants=tenants)
    bench.submit("huge", letters(33), 1, tenant="small")
    refusal = bench.endings["huge"]
    assert refusal.ending is Ending.REJECTED_TOO_LARGE
    assert "33" in refusal.message
    assert "32" in refusal.message
    said = bench.ask("grows", letters(20), 40, tenant="small")
    assert bench.endings["grows"].ending is Ending.POOL_FULL
    assert "'small'" in bench.endings["grows"].message
    assert "32" in bench.endings["grows"].message
    assert 12 <= len(said) <= 14, "32 slots, a token more, and one in flight"
    assert said == bench.reference(letters(20), 40)[: len(said)]
    assert len(bench.ask("fits", letters(20, seed=3), 12, tenant="small")) == 12


def test_what_a_tenant_finds_in_the_cache_is_not_charged():
    tenants = {"small": TenantPolicy(most_share=0.25)}
    bench, stem = Bench(N=256, tenants=tenants, c=64), letters(50)
    bench.ask("warm", stem, 1, tenant="small")
    for i in range(3):
        bench.submit(f"x{i}", stem + letters(5, seed=i), 5, tenant="small")
    bench.step()
    assert bench.core.num_running == 3, "150 tokens of context, and 64 slots allowed"
    bench.run()


# --- isolation --------------------------------------------------------------------------------


@PAGES
def test_nobody_can_tell_what_another_tenant_asked(p):  # field case 14
    bench, prompt = Bench(N=512, p=p), letters(64)
    bench.ask("a", prompt, 1, tenant="a")
    for name, tenant, domain in [
        ("b", "b", ""),
        ("nobody", "", ""),
        ("named", "c", "a"),  # a domain spelled like a tenant is not that tenant's
        ("other domain", "a", "x"),
    ]:
        bench.ask(name, prompt, 1, tenant=tenant, cache_domain=domain)
        assert bench.cached[name] == 0, name
    bench.ask("again", prompt, 1, tenant="a")
    assert bench.cached["again"] == whole(63, p)


@PAGES
def test_a_domain_is_shared_only_where_the_operator_says_so(p):
    bench, prompt = Bench(N=512, p=p, public_domains=("docs",)), letters(64)
    bench.ask("a", prompt, 1, tenant="a", cache_domain="docs")
    bench.ask("b", prompt, 1, tenant="b", cache_domain="docs")
    bench.ask("private", prompt, 1, tenant="b", cache_domain="docs2")
    bench.ask("own", prompt, 1, tenant="b")
    cached = [bench.cached[name] for name in ("a", "b", "private", "own")]
    assert cached == [0, whole(63, p), 0, 0]


def test_twins_of_two_tenants_do_not_wait_for_each_other():
    bench, prompt = Bench(N=512, c=8), letters(64)
    bench.submit("a", prompt, 3, tenant="a")
    bench.schedule()
    bench.submit("b", prompt, 3, tenant="b")
    bench.schedule()
    assert bench.core.num_waiting == 0, "waiting would tell b what a computes"
    bench.run()


# --- the fair order ---------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_vtc_serves_tokens_by_weight(weight):
    tenants = {"heavy": TenantPolicy(weight=weight)}
    bench = Bench(N=1024, r=2, waiting_order="vtc", tenants=tenants, most_passes=10**6)
    for i in range(60):
        for tenant in ("heavy", "light"):
            bench.submit(f"{tenant}{i}", letters(20, seed=i), 5, tenant=tenant, no_store=True)
    for _ in range(150):
        bench.step()
    books = bench.core.tenant_books()
    assert books["heavy"].waiting > 0
    served = {t: books[t].computed_tokens for t in ("heavy", "light")}
    assert served["heavy"] / served["light"] == pytest.approx(weight, rel=0.2)


def test_vtc_does_not_charge_what_was_cached():
    bench = Bench(N=2048, r=1, waiting_order="vtc", most_passes=10**6)
    stem = letters(100)
    bench.ask("warm", stem, 1, tenant="sharer")
    bench.ask("warm too", letters(100, seed=1), 1, tenant="other")
    for i in range(20):
        bench.submit(f"s{i}", [*stem, 200 + i, 1], 1, tenant="sharer")
        bench.submit(f"o{i}", [200 + i, *letters(101, seed=i)], 1, tenant="other")
    for _ in range(60):
        bench.step()
    books = bench.core.tenant_books()
    assert books["sharer"].waiting == 0, "its requests cost 2 tokens each"
    assert books["other"].waiting > 10


def test_a_flood_delays_only_its_own_tenant():
    waits = []
    for flood in (0, 200):
        bench = Bench(N=1024, r=2, waiting_order="vtc", most_passes=10**6)
        for i in range(flood):
            bench.submit(f"flood{i}", letters(10, seed=i), 5, tenant="flood", no_store=True)
        for _ in range(30):
            bench.step()
        start = len(bench.plans)
        bench.submit("quiet", letters(10, seed=999), 5, tenant="quiet")
        while "quiet" not in bench.endings:
            bench.step()
        waits.append(len(bench.plans) - start)
    assert waits[1] <= waits[0] + 8, "one answer of those that run, not two hundred"


def test_a_tenant_that_was_away_has_no_credit():
    bench = Bench(N=1024, r=1, waiting_order="vtc", most_passes=10**6)
    for i in range(20):
        bench.submit(f"b{i}", letters(20, seed=i), 5, tenant="busy", no_store=True)
    for _ in range(60):
        bench.step()
    assert bench.core.num_waiting > 5
    for i in range(6):
        bench.submit(f"n{i}", letters(20, seed=i), 5, tenant="new", no_store=True)
    bench.started.clear()
    while len(bench.started) < 7:
        bench.step()
    served = [name[0] for name in bench.started[1:]]
    assert served.count("n") <= 4, "it takes turns; it does not get all it never asked for"


# --- configuration ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policies", "problem"),
    [
        ({"a": TenantPolicy(guaranteed_share=0.6), "b": TenantPolicy(guaranteed_share=0.6)}, "sum"),
        ({"a": TenantPolicy(guaranteed_share=0.6, most_share=0.5)}, "a: guaranteed_share"),
        ({"a": TenantPolicy(most_share=1.5)}, "a: most_share"),
        ({"a": TenantPolicy(pin_share=-0.1)}, "a: pin_share"),
        ({"a": TenantPolicy(weight=0.0)}, "a: weight"),
        ({"a": TenantPolicy(weight=float("nan"))}, "a: weight"),
    ],
)
def test_shares_that_cannot_be_are_refused_by_name(policies, problem):
    with pytest.raises(ValueError, match=f"^tenants: .*{problem}"):
        SchedulerConfig(tenants=policies)
