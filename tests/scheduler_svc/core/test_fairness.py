"""Group E of the field cases in the whole core: who starts when, and who waits for whom."""

import pytest

from scheduler_svc.core.waiting_order import WAITING_ORDERS
from tests.scheduler_svc.core.harness import Bench
from tests.scheduler_svc.core.test_prefix_cache import letters
from tests.scheduler_svc.core.timed_engine import MS, use_timed_engine

ORDERS = pytest.mark.parametrize("order", WAITING_ORDERS)
FAIR = [name for name, order in WAITING_ORDERS.items() if order.is_fair]
DEPTHS = pytest.mark.parametrize("depth", [1, 2])
SECOND = 1_000_000_000


# --- 46: cold requests under longest prefix first ---------------------------------------------


def admissions_before_cold(order, depth, bound):
    """A feeder keeps six hot requests waiting; how many start before the cold one does."""
    bench = Bench(N=512, r=2, c=16, depth=depth, waiting_order=order, most_passes=bound)
    stem, num_hot = letters(40), 0
    bench.ask("warm", stem, 1, tenant="hot")
    bench.submit("cold", letters(10, seed=99), 3, tenant="cold")
    while "cold" not in bench.started:
        while bench.core.num_waiting < 7:
            hot = [*stem, 200 + num_hot % 50, *letters(2, seed=num_hot)]
            bench.submit(f"hot{num_hot}", hot, 4, tenant="hot", priority=1)
            num_hot += 1
        bench.step()
        if num_hot > 5 * bound:
            return None
    bench.run()
    assert bench.tokens["cold"] == bench.reference(letters(10, seed=99), 3)
    return bench.started.index("cold") - 1  # the warm one apart


@DEPTHS
@pytest.mark.parametrize("order", FAIR)
def test_a_cold_request_starts_within_its_bound(order, depth):  # field case 46
    assert admissions_before_cold(order, depth, 20) <= 20


@pytest.mark.parametrize("order", ["lpm", "adaptive", "dfs_weight"])
def test_hot_requests_come_first_while_the_cold_one_is_young(order):  # field case 46
    assert admissions_before_cold(order, 1, 20) >= 10


def test_a_bound_can_be_widened_while_they_wait():  # field case 46
    bounds = {bound: admissions_before_cold("lpm", 1, bound) for bound in (5, 20, 60)}
    assert bounds[5] < bounds[20] < bounds[60]
    assert all(found <= bound for bound, found in bounds.items())


def test_orders_that_claim_no_fairness_are_called_so():  # field case 46
    assert admissions_before_cold("priority", 1, 20) is None
    assert {name for name in WAITING_ORDERS if name not in FAIR} == {"priority", "lof"}


def test_age_lifts_a_cold_request_under_adaptive():
    """Seconds weigh as tokens do: after one that outweighs the prefix, it is next."""
    started = {}
    for weight_age in (0.0, 50.0):
        bench = Bench(N=512, r=1, c=16, waiting_order="adaptive", weight_age=weight_age)
        stem = letters(40)
        bench.ask("warm", stem, 1)
        bench.submit("busy", letters(5, seed=1), 20)
        bench.step()
        bench.submit("cold", letters(10, seed=99), 1)
        bench.now_ns += 2 * SECOND  # 2 * 50 outweigh 40 cached and 10 * 0.5 to compute
        for i in range(3):
            bench.submit(f"hot{i}", [*stem, 200 + i], 1)
        bench.run()
        started[weight_age] = bench.started.index("cold") - 2
    assert started == {0.0: 3, 50.0: 0}


# --- 47: one long prompt and running streams --------------------------------------------------


@DEPTHS
@ORDERS
def test_streams_go_on_while_long_prompts_are_computed(order, depth):  # field case 47
    bench = Bench(N=1024, c=8, r=6, L=600, depth=depth, waiting_order=order, max_batch_tokens=16)
    use_timed_engine(bench, base_ns=MS, per_row_ns=MS // 10, per_token_ns=MS)
    bench.submit("stream", letters(5), 60)
    while len(bench.tokens["stream"]) < 10:
        bench.step()
    for i in range(3):
        bench.submit(f"long{i}", letters(200, seed=i + 1), 2, workload="longform")
    clock_ns, last_ns, gaps = 0, 0, []
    while "stream" not in bench.endings:
        before = len(bench.tokens["stream"])
        bench.step()
        clock_ns += bench.engine.last_ns
        if len(bench.tokens["stream"]) > before:
            gaps.append(clock_ns - last_ns)
            last_ns = clock_ns
    chunk_step_ns = MS + MS // 10 + 16 * MS
    assert max(gaps) <= 3 * chunk_step_ns
    assert max(gaps) <= chunk_step_ns, "in fact one step"
    assert bench.tokens["stream"] == bench.reference(letters(5), 60)
    bench.run()
    for i in range(3):
        assert bench.tokens[f"long{i}"] == bench.reference(letters(200, seed=i + 1), 2)


# --- 49: short ones behind a long one ---------------------------------------------------------


@DEPTHS
@ORDERS
def test_short_prompts_pass_a_long_one(order, depth):  # field case 49
    bench = Bench(N=1024, c=16, r=4, L=600, depth=depth, waiting_order=order)
    bench.submit("long", letters(400), 5)
    for i in range(10):
        bench.submit(f"short{i}", [200 + i, *letters(4, seed=i)], 5)
    first_tokens = {}
    while bench.step():
        for name, tokens in bench.tokens.items():
            if tokens:
                first_tokens.setdefault(name, len(bench.plans))
    shorts = sorted(first_tokens[f"short{i}"] for i in range(10))
    # Three rows beside the long one: five steps of four answers, whoever comes first.
    assert shorts[5] <= 8 + 5
    assert shorts[0] <= 2 + depth
    assert bench.tokens["long"] == bench.reference(letters(400), 5)


@pytest.mark.parametrize("order", FAIR)
def test_a_long_prompt_advances_while_short_ones_keep_coming(order):  # field case 49
    bench = Bench(
        N=1024, c=16, r=4, L=600, waiting_order=order, most_passes=20, max_batch_tokens=24
    )
    bench.submit("long", letters(400), 1)
    num_short = 0
    while "long" not in bench.endings:
        while bench.core.num_waiting < 6:
            short = [200 + num_short % 50, *letters(4, seed=num_short)]
            bench.submit(f"short{num_short}", short, 3)
            num_short += 1
        bench.step()
        assert len(bench.plans) < 120, "25 chunks, and 20 passes before the first"
    bench.run()


# --- 50: a policy that silently equals another ------------------------------------------------

# (cached of the stem, own tokens, max_tokens, priority, tenant)
SIX = {
    "a": (0, 100, 20, 1, "z"),
    "b": (20, 10, 80, 0, "z"),
    "c": (60, 40, 10, 2, "y"),
    "d": (20, 40, 40, 5, "x"),
    "e": (45, 5, 5, 0, "y"),
    "f": (0, 12, 60, 3, "z"),
}


def start_order(order, *, set_late=False):
    """In which order six requests start that differ in all that any order looks at."""
    fields = {"public_domains": ("all",), "policy_seed": 3, "weight_age": 0.0}
    fields["waiting_order"] = "fcfs" if set_late else order
    bench, stem = Bench(N=2048, c=128, r=1, **fields), letters(60)
    for i, (tenant, num_tokens) in enumerate([("x", 10), ("y", 40), ("z", 200)]):
        prompt = [*stem, 200 + i] if tenant == "x" else letters(num_tokens, seed=80 + i)
        bench.ask(f"before-{tenant}", prompt, 1, tenant=tenant, cache_domain="all")
    bench.submit("busy", letters(6, seed=60), 8, cache_domain="all")
    bench.step()
    for i, (name, (shared, own, most, priority, tenant)) in enumerate(SIX.items()):
        bench.now_ns += 1000 * MS
        prompt = [*stem[:shared], 210 + i, *letters(own - 1, seed=i)]
        fields = {"priority": priority, "tenant": tenant, "cache_domain": "all"}
        bench.submit(name, prompt, most, **fields)
    if set_late:
        bench.core.set_policy({"waiting_order": order})
    bench.run()
    return "".join(name for name in bench.started if name in SIX)


START_ORDERS = {
    "adaptive": "ecbdfa",  # cached - uncached / 2: 42.5, 40, 15, 0, -6, -50
    "fcfs": "abcdef",
    "lpm": "cebdaf",  # cached: 60, 45, 20, 20, 0, 0
    "hrrn": "ecbadf",  # seconds of age / tokens needed: 1/10, 3/50, 4/90, 5/120, 2/80, 0/72
    "dfs_weight": "bcedaf",  # b is first on the stem and forks it; then the heavier fork first
    "lof": "bfdace",
    "priority": "dfcabe",
    "random": "bdafec",
    "vtc": "cdeabf",  # y has 40, x 61 and z 200; c brings y above x, and d brings x above y
}


@ORDERS
def test_each_order_starts_them_in_its_own(order):  # field case 50
    assert start_order(order) == START_ORDERS[order]


@ORDERS
def test_a_changed_order_applies_to_those_that_wait(order):  # field case 50
    assert start_order(order, set_late=True) == START_ORDERS[order]


def test_no_order_equals_another():  # field case 50
    assert START_ORDERS.keys() == WAITING_ORDERS.keys()
    assert len(set(START_ORDERS.values())) == len(START_ORDERS)
