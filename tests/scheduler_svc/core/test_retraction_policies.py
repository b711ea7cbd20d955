"""Whom each retraction policy cuts back, of requests made by hand."""

from itertools import combinations
from math import inf

import pytest

from scheduler_svc.core.retraction import (
    MOST_RETRACTIONS,
    RETRACTION_POLICIES,
    choose_victim,
    victims_in_order,
)
from tests.scheduler_svc.core.plain import plain_request

NAMES = pytest.mark.parametrize("name", RETRACTION_POLICIES)


class Facts:
    """What a policy may know; tables by arrival and by tenant."""

    def __init__(self, *, lose=None, excess=None, finish=None, seed=1, step_id=100):
        self.now_ns = 1000
        self.step_id = step_id
        self.seed = seed
        self.lose = lose or {}
        self.excess = excess or {}
        self.finish = finish or {}

    def tokens_to_lose(self, request):
        return self.lose.get(request.arrival, 0)

    def tenant_excess(self, tenant):
        return self.excess.get(tenant, 0.0)

    def time_to_finish_ns(self, request):
        return self.finish.get(request.arrival, 0)


def order(name, running, facts=None):
    facts = facts or Facts()
    return [
        request.arrival
        for request, _ in victims_in_order(RETRACTION_POLICIES[name], running, facts)
    ]


def crowd():
    """Eight requests; each is what one policy looks for, and the rest are in its way."""
    running = [
        plain_request(0, outputs=40, tenant="a", priority=5, deadline_ns=2000),
        plain_request(1, outputs=35, tenant="b", priority=5, deadline_ns=2000),
        plain_request(2, outputs=30, tenant="a", priority=5, deadline_ns=2000),
        plain_request(3, outputs=25, tenant="a", priority=1, deadline_ns=2000),
        plain_request(4, outputs=45, tenant="a", priority=5, deadline_ns=2000),
        plain_request(5, outputs=20, tenant="a", priority=5, deadline_ns=9000),
        plain_request(6, outputs=5, tenant="a", priority=5, deadline_ns=2000),
        plain_request(7, outputs=33, tenant="a", priority=5, deadline_ns=2000),
    ]
    for request in running:
        request.last_step_id = 99 - (request.arrival == 2)
        request.admitted_tick = 100 + request.arrival
    lose = dict.fromkeys(range(8), 50) | {4: 1}
    finish = dict.fromkeys(range(8), 100)
    return running, Facts(lose=lose, finish=finish, excess={"a": -10.0, "b": 20.0})


VICTIMS = {
    "fifo": 0,
    "tenant": 1,
    "lru": 2,
    "priority": 3,
    "cost": 4,
    "deadline": 5,
    "progress": 6,
    "lifo": 7,
}


@pytest.mark.parametrize(("name", "victim"), VICTIMS.items())
def test_victim_of_each_policy(name, victim):
    running, facts = crowd()
    assert choose_victim(RETRACTION_POLICIES[name], running, facts).arrival == victim
    assert order(name, running[::-1], facts)[0] == victim, "in whatever order they are given"


def test_no_policy_silently_equals_another():
    running, facts = crowd()
    orders = {name: order(name, running, facts) for name in RETRACTION_POLICIES}
    assert set(VICTIMS) | {"random"} == set(orders)
    for one, other in combinations(orders, 2):
        assert orders[one] != orders[other], (one, other)


def test_cost_is_what_is_recomputed_per_slot_freed():
    running = [
        plain_request(0, outputs=10, max_tokens=110),  # 100 / (100 + 100)
        plain_request(1, outputs=10, max_tokens=5000),  # 300 / (300 + 1024)
        plain_request(2, outputs=10, max_tokens=30),  # 20 / (20 + 20), and newer
        plain_request(3, outputs=10, max_tokens=10, pending=0),  # frees nothing
    ]
    facts = Facts(lose={0: 100, 1: 300, 2: 20})
    scores = {
        r.arrival: s for r, s in victims_in_order(RETRACTION_POLICIES["cost"], running, facts)
    }
    assert scores[0][2] == scores[2][2] == 0.5
    assert scores[1][2] == 300 / 1324
    assert scores[3][2] == inf
    assert list(scores) == [1, 2, 0, 3]


def test_deadline_is_about_slack_and_no_deadline_is_all_the_slack():
    running = [
        plain_request(0, deadline_ns=5000),  # 5000 - 1000 - 3900
        plain_request(1, deadline_ns=3000),  # 3000 - 1000 - 100
        plain_request(2),
        plain_request(3),
    ]
    facts = Facts(finish={0: 3900, 1: 100})
    assert order("deadline", running, facts) == [3, 2, 1, 0]


def test_tenant_over_its_share_pays_and_then_progress_decides():
    running = [
        plain_request(0, outputs=1, tenant="poor"),
        plain_request(1, outputs=3, tenant="rich"),
        plain_request(2, outputs=5, tenant="rich"),
        plain_request(3, outputs=5, tenant="rich"),
    ]
    facts = Facts(excess={"poor": -100.0, "rich": 50.0})
    assert order("tenant", running, facts) == [1, 3, 2, 0]
    assert order("progress", running, facts) == [0, 1, 3, 2]


def test_progress_counts_tokens_on_their_way():
    running = [plain_request(0, outputs=4, pending=2), plain_request(1, outputs=5)]
    assert order("progress", running) == [1, 0]


def test_lru_takes_the_first_admitted_of_equals():
    running = [plain_request(i) for i in range(3)]
    for request, last, tick in zip(running, (7, 7, 9), (20, 10, 1), strict=True):
        request.last_step_id, request.admitted_tick = last, tick
    assert order("lru", running) == [1, 0, 2]


def test_random_depends_on_seed_and_step_and_on_nothing_else():
    running = [plain_request(i) for i in range(20)]
    first = order("random", running, Facts(seed=1, step_id=5))
    assert first == order("random", running[::-1], Facts(seed=1, step_id=5, lose={3: 9}))
    assert first != order("random", running, Facts(seed=2, step_id=5))
    assert first != order("random", running, Facts(seed=1, step_id=6))
    assert sorted(first) == list(range(20)) != first


def test_random_spares_nobody():
    running = [plain_request(i) for i in range(4)]
    hits = [order("random", running, Facts(step_id=step))[0] for step in range(400)]
    assert all(60 < hits.count(arrival) < 140 for arrival in range(4))


@NAMES
def test_preheats_go_first(name):
    running, facts = crowd()
    preheat = plain_request(8, max_tokens=0, preheat=True, priority=9, retractions=99)
    preheat.last_step_id = 1000
    facts.lose[8] = 10_000
    assert order(name, [*running, preheat], facts)[0] == 8


@NAMES
def test_repeats_are_bounded(name):
    running, facts = crowd()
    victim = choose_victim(RETRACTION_POLICIES[name], running, facts)
    victim.num_retractions = MOST_RETRACTIONS - 1
    assert choose_victim(RETRACTION_POLICIES[name], running, facts) is victim
    victim.num_retractions = MOST_RETRACTIONS
    assert order(name, running, facts)[-1] == victim.arrival
    assert choose_victim(RETRACTION_POLICIES[name], [victim], facts) is victim


@NAMES
def test_no_two_requests_tie(name):
    running = [plain_request(i) for i in range(12)]
    scores = [score for _, score in victims_in_order(RETRACTION_POLICIES[name], running, Facts())]
    assert len(set(scores)) == 12
    assert all(len(score) == len(scores[0]) for score in scores)
    assert order(name, running) == order(name, running[::-1])


@NAMES
def test_a_paragraph_says_what_it_suits(name):
    paragraph = RETRACTION_POLICIES[name].__doc__
    assert "suits" in paragraph.lower()
    assert "\n\n" not in paragraph
