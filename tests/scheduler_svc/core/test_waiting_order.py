"""Every waiting order orders by what it says, and the fair ones bound how long anybody waits."""

import inspect

import pytest

from scheduler_svc.core.waiting_index import PASSES_PER_WAITING
from scheduler_svc.core.waiting_order import WAITING_ORDERS, LaneKind
from scheduler_svc.core.waiting_queue import WaitingQueue
from tests.scheduler_svc.core.waiting_facts import (
    SECOND,
    Arrivals,
    FakeConfig,
    FakeFacts,
    names,
    start_order,
)

ORDERS = pytest.mark.parametrize("order", list(WAITING_ORDERS))
FAIR = [name for name, order in WAITING_ORDERS.items() if order.is_fair]

START_ORDERS = {
    "adaptive": "bcdeaf",
    "fcfs": "abcdef",
    "lpm": "cebdaf",
    "hrrn": "edfcba",
    "dfs_weight": "debcaf",
    "lof": "bfdace",
    "priority": "dfcabe",
    "random": "bdfeac",
    "vtc": "dceabf",
}


def six_requests(order, facts):
    """A queue of six that differ in all that any order looks at."""
    arrivals, queue = Arrivals(facts), WaitingQueue(WAITING_ORDERS[order])
    facts.now_ns = 60 * SECOND
    facts.cached = {"b": 20, "c": 60, "d": 20, "e": 45}
    facts.paths = {"b": (1,), "c": (2,), "d": (1, 3), "e": (1, 4)}
    facts.services = {"x": 10.0, "y": 30.0, "z": 200.0}
    for name, num_prompt, max_tokens, priority, tenant in [
        ("a", 400, 20, 1, "z"),
        ("b", 30, 300, 0, "z"),
        ("c", 200, 10, 2, "y"),
        ("d", 60, 40, 5, "x"),
        ("e", 50, 5, 0, "y"),
        ("f", 12, 80, 3, "z"),
    ]:
        fields = {"priority": priority, "tenant": tenant}
        queue.add(arrivals.request(name, num_prompt, max_tokens, **fields))
    return queue


def test_no_order_equals_another():  # field case 50
    assert START_ORDERS.keys() == WAITING_ORDERS.keys()
    started = {}
    for order in WAITING_ORDERS:
        facts = FakeFacts()
        started[order] = "".join(start_order(six_requests(order, facts), facts))
    assert started == START_ORDERS
    assert len(set(started.values())) == len(WAITING_ORDERS)


@ORDERS
def test_ranks_are_the_order_in_which_they_would_start(order):
    facts = FakeFacts()
    queue = six_requests(order, facts)
    shown = names(queue.candidates(facts))
    by_rank = sorted(queue.requests(), key=lambda request: queue.rank(request, facts))
    assert names(by_rank) == shown
    assert [queue.rank(request, facts) for request in by_rank] == [1, 2, 3, 4, 5, 6]


@ORDERS
def test_asking_why_changes_nothing(order):
    facts, asked_facts = FakeFacts(), FakeFacts()
    queue, asked = six_requests(order, facts), six_requests(order, asked_facts)
    started = []
    while (request := next(asked.candidates(asked_facts), None)) is not None:
        started.append(request.request_id)
        asked_facts.admit(asked, request)
        for other in asked.requests():
            assert asked.rank(other, asked_facts) >= 1
            assert all(
                isinstance(value, int | float)
                for value in WAITING_ORDERS[order].terms(other, asked_facts).values()
            )
    assert started == start_order(queue, facts)


@ORDERS
def test_an_order_can_be_set_while_requests_wait(order):
    facts = FakeFacts()
    queue = six_requests("fcfs" if order != "fcfs" else "lof", facts)
    assert next(queue.candidates(facts), None) is not None
    queue.set_order(WAITING_ORDERS[order], facts)
    assert "".join(start_order(queue, facts)) == START_ORDERS[order]


@ORDERS
def test_orders_say_what_they_are_for(order):
    text = inspect.cleandoc(WAITING_ORDERS[order].__doc__ or "")
    assert "\n\n" not in text
    assert "suits" in text.lower()
    assert WAITING_ORDERS[order].terms(Arrivals(FakeFacts()).request("x"), FakeFacts()), (
        "an order that sorts by nothing"
    )


@pytest.mark.parametrize("order", FAIR)
def test_a_cold_request_starts_within_its_bound(order):  # field case 46
    facts = FakeFacts(config=FakeConfig(most_passes=20, policy_seed=3))
    arrivals, queue = Arrivals(facts), WaitingQueue(WAITING_ORDERS[order])
    cold = arrivals.request("cold", 1000, 1000, tenant="quiet")
    queue.add(cold)
    started, num_hot = [], 0
    while "cold" not in started:
        while queue.num_fresh < 7:
            num_hot += 1
            hot = f"hot{num_hot}"
            facts.cached[hot], facts.paths[hot] = 40, (1,)
            queue.add(arrivals.request(hot, 43, 4, tenant="busy", at_ns=num_hot))
        request = next(queue.candidates(facts))
        started.append(request.request_id)
        facts.admit(queue, request)
    assert len(started) <= 20 + 1
    if order in ("adaptive", "lpm", "dfs_weight", "hrrn"):
        assert len(started) == 20 + 1, "hot ones come first while the cold one is young"


@pytest.mark.parametrize("order", ["lof", "priority"])
def test_orders_that_claim_no_fairness_have_no_bound(order):
    facts = FakeFacts(config=FakeConfig(most_passes=5))
    arrivals, queue = Arrivals(facts), WaitingQueue(WAITING_ORDERS[order])
    queue.add(arrivals.request("last", 10, 1, priority=0))
    for number in range(50):
        queue.add(arrivals.request(f"r{number}", 10, 2, priority=1))
        request = next(queue.candidates(facts))
        facts.admit(queue, request)
        assert request.request_id != "last"


def test_a_long_queue_keeps_its_order_and_its_bound():
    """Were passes counted from arrival alone, all but the first few would be served by age."""
    num, facts = 400, FakeFacts(config=FakeConfig(most_passes=8))
    arrivals, queue = Arrivals(facts), WaitingQueue(WAITING_ORDERS["lpm"])
    waited_before = {}
    for number in range(num):
        name = f"r{number}"
        facts.cached[name] = 8 if number % 2 else 0
        waited_before[name] = number
        queue.add(arrivals.request(name))
    started = start_order(queue, facts)
    is_hot = [facts.cached[name] > 0 for name in started]
    # By age it would be a half; a quarter is what the bound takes.
    assert sum(is_hot[: num // 2]) > 0.7 * num / 2
    for turn, name in enumerate(started):
        assert turn <= 8 + PASSES_PER_WAITING * waited_before[name]


def test_adaptive_is_first_come_while_everything_fits():
    facts = FakeFacts(everything_fits=True)
    queue = six_requests("adaptive", facts)
    assert "".join(start_order(queue, facts)) == START_ORDERS["fcfs"]
    assert START_ORDERS["adaptive"] != START_ORDERS["fcfs"]


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({"weight_age": 1e6}, "a"),
        ({"weight_prefix": 100.0, "weight_age": 0.0}, "c"),
        ({"weight_prefix": 0.0, "weight_age": 0.0, "weight_cost": 1.0}, "e"),
    ],
)
def test_weights_of_adaptive_decide(changes, first):
    facts = FakeFacts()
    queue = six_requests("adaptive", facts)
    facts.config = FakeConfig(**changes)
    queue.set_order(WAITING_ORDERS["adaptive"], facts)
    assert next(queue.candidates(facts)).request_id == first


def test_the_score_that_adaptive_explains_is_the_one_it_sorts_by():
    facts = FakeFacts()
    queue = six_requests("adaptive", facts)
    scores = {
        request.request_id: WAITING_ORDERS["adaptive"].terms(request, facts)["score"]
        for request in queue.requests()
    }
    assert "".join(sorted(scores, key=lambda name: -scores[name])) == START_ORDERS["adaptive"]


def test_hrrn_lets_long_requests_gain_with_time():
    facts = FakeFacts(config=FakeConfig(most_passes=10_000))
    arrivals, queue = Arrivals(facts), WaitingQueue(WAITING_ORDERS["hrrn"])
    queue.add(arrivals.request("long", 2000, 10, at_ns=0))
    turns = 0
    while True:
        # Short ones that have waited one second each: the ratio of the long one passes theirs.
        facts.now_ns += SECOND
        turns += 1
        queue.add(arrivals.request(f"s{turns}", 90, 10, at_ns=facts.now_ns - SECOND))
        request = next(queue.candidates(facts))
        facts.admit(queue, request)
        if request.request_id == "long":
            break
    assert turns == 2010 // 100 + 1


def test_dfs_weight_finishes_a_branch_that_it_has_begun():
    facts = FakeFacts(config=FakeConfig(most_passes=10_000))
    arrivals, queue = Arrivals(facts), WaitingQueue(WAITING_ORDERS["dfs_weight"])
    for number in range(12):  # three branches of one weight, their members interleaved
        name = "xyz"[number % 3] + str(number)
        facts.paths[name] = (1 + number % 3, 10 + number)
        queue.add(arrivals.request(name))
    started = start_order(queue, facts)
    assert [name[0] for name in started] == list("xxxxyyyyzzzz")


def test_random_depends_on_its_seed_and_on_nothing_else():
    def started(seed):
        facts = FakeFacts(config=FakeConfig(policy_seed=seed))
        arrivals, queue = Arrivals(facts), WaitingQueue(WAITING_ORDERS["random"])
        for number in range(50):
            queue.add(arrivals.request(f"r{number}"))
        return start_order(queue, facts)

    assert started(1) == started(1)
    assert started(1) != started(2)
    assert started(1) != [f"r{number}" for number in range(50)]


def test_vtc_shares_by_tokens_whatever_a_tenant_floods():
    facts = FakeFacts()
    arrivals, queue = Arrivals(facts), WaitingQueue(WAITING_ORDERS["vtc"])
    for number in range(300):
        queue.add(arrivals.request(f"flood{number}", 100, tenant="flood"))
    for number in range(60):
        queue.add(arrivals.request(f"long{number}", 200, tenant="long"))
        queue.add(arrivals.request(f"short{number}", 50, tenant="short"))
    for _ in range(70):
        facts.admit(queue, next(queue.candidates(facts)))
        served = [facts.services.get(name, 0.0) for name in ("flood", "long", "short")]
        assert max(served) - min(served) <= 200
    assert facts.services["flood"] == 2000


def test_kinds_of_lanes_are_all_used():
    assert {order.lanes for order in WAITING_ORDERS.values()} == set(LaneKind)
