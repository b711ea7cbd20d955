"""Who is a candidate: returned before fresh before preheats; twins and capped tenants are none."""

import pytest

from scheduler_svc.core.request import State
from scheduler_svc.core.waiting_order import WAITING_ORDERS, Standing
from scheduler_svc.core.waiting_queue import WaitingCounts, WaitingQueue
from tests.scheduler_svc.core.waiting_facts import Arrivals, FakeConfig, FakeFacts, names

ORDERS = pytest.mark.parametrize("order", list(WAITING_ORDERS))


class Bench:
    """A queue, its facts, and short ways to fill it."""

    def __init__(self, order="fcfs", *tenants):
        self.facts = FakeFacts(config=FakeConfig(tenants=dict.fromkeys(tenants)))
        self.arrivals = Arrivals(self.facts)
        self.queue = WaitingQueue(WAITING_ORDERS[order])

    def make(self, name, **fields):
        return self.arrivals.request(name, 10, 0 if fields.get("preheat") else 10, **fields)

    def add(self, *wanted, **fields):
        made = [self.make(name, **fields) for name in wanted]
        for request in made:
            self.queue.add(request)
        return made if len(made) > 1 else made[0]

    @property
    def shown(self):
        return names(self.queue.candidates(self.facts))


@ORDERS
def test_returned_come_first_by_arrival(order):
    bench = Bench(order)
    early, late = bench.make("early"), bench.make("late")
    bench.add("fresh", priority=9)
    bench.facts.cached["fresh"] = 10
    bench.queue.add_returning([late, early])
    assert bench.shown == ["early", "late", "fresh"]
    assert [bench.queue.rank(request, bench.facts) for request in (early, late)] == [1, 2]
    bench.queue.remove(early)
    assert bench.shown == ["late", "fresh"]
    assert bench.queue.num_fresh == 1
    assert len(bench.queue) == 2


def test_preheats_come_up_only_when_nobody_else_can():
    bench = Bench("fcfs", "x")
    warm = bench.add("warm", preheat=True)
    twin = bench.add("twin")
    assert bench.shown == ["twin"]
    assert bench.queue.rank(warm, bench.facts) == 2
    bench.queue.hold(twin, "leader")
    assert bench.shown == ["warm"]
    bench.add("capped", tenant="x")
    assert bench.shown == ["capped"]
    bench.facts.standings["x"] = Standing.CAPPED
    assert bench.shown == ["warm"]
    back = bench.make("back")
    bench.queue.add_returning([back])
    assert bench.shown == ["back"]
    bench.queue.remove(back)
    bench.queue.remove(warm)
    assert bench.shown == []
    assert (bench.queue.num_preheats, bench.queue.num_fresh, len(bench.queue)) == (0, 2, 2)


def test_a_preheat_that_was_cut_back_is_a_preheat_again():
    bench = Bench()
    warm = bench.make("warm", preheat=True)
    bench.queue.add_returning([warm])
    bench.add("fresh")
    assert bench.shown == ["fresh"]
    assert bench.queue.num_preheats == 1


@ORDERS
def test_held_requests_wait_for_their_leader(order):
    bench = Bench(order)
    _, twin, other, third = bench.add("first", "twin", "other", "third")
    before = bench.shown
    bench.queue.hold(twin, "first")
    bench.queue.hold(third, "other")
    assert bench.shown == [name for name in before if name not in ("twin", "third")]
    assert bench.queue.leader_of(twin) == "first"
    assert bench.queue.leader_of(other) is None
    assert (len(bench.queue), bench.queue.num_fresh) == (4, 4)
    assert twin in bench.queue.requests()
    assert bench.queue.rank(twin, bench.facts) == 3, "behind those that may be admitted"
    bench.queue.release_held("first")
    bench.queue.release_held("nobody")
    assert bench.shown == [name for name in before if name != "third"]
    bench.queue.hold(twin, "other")
    bench.queue.remove(third)
    assert bench.queue.leader_of(third) is None
    bench.queue.release_held("other")
    assert bench.shown == [name for name in before if name != "third"]
    assert bench.queue._held == bench.queue._leaders == {}


@ORDERS
def test_held_requests_stay_held_when_the_order_is_set(order):
    bench = Bench("fcfs")
    _, twin = bench.add("first", "twin")
    bench.queue.hold(twin, "first")
    bench.queue.set_order(WAITING_ORDERS[order], bench.facts)
    assert bench.shown == ["first"]
    bench.queue.release_held("first")
    assert sorted(bench.shown) == ["first", "twin"]


def test_released_requests_stand_where_they_arrived():
    bench = Bench("fcfs")
    one, two, three = bench.add("one", "two", "three")
    for request in (three, one, two):
        bench.queue.hold(request, "leader")
    bench.add("four")
    assert bench.shown == ["four"]
    bench.queue.release_held("leader")
    assert bench.shown == ["one", "two", "three", "four"]


@ORDERS
def test_candidates_may_be_taken_or_held_between_two(order):
    bench = Bench(order)
    requests = bench.add(*"abcdef")
    before, seen = bench.shown, []
    for number, request in enumerate(bench.queue.candidates(bench.facts)):
        seen.append(request.request_id)
        if number % 3 == 0:
            bench.queue.remove(request)
        elif number % 3 == 1:
            bench.queue.hold(request, "leader")
    assert seen == before, "each came up once"
    assert len(requests) == len(bench.queue) + 2
    assert bench.shown == [before[2], before[5]], "whoever was left alone comes up again"
    bench.queue.release_held("leader")
    assert bench.shown == [before[number] for number in (1, 2, 4, 5)]


@ORDERS
def test_a_look_that_was_given_up_leaves_no_trace(order):
    bench = Bench(order)
    bench.add(*"abcdef")
    before = bench.shown
    look = bench.queue.candidates(bench.facts)
    assert [next(look).request_id for _ in range(3)] == before[:3]
    assert bench.shown == before


def test_a_candidate_that_ends_while_set_aside_is_gone():
    bench = Bench()
    bench.add(*"abc")
    look = bench.queue.candidates(bench.facts)
    first = next(look)
    next(look)
    bench.queue.remove(first)
    look.close()
    assert bench.shown == ["b", "c"]


@ORDERS
def test_tenants_below_their_share_go_first_and_capped_ones_block_nobody(order):
    bench = Bench(order, "poor", "full")
    bench.add("full1", "full2", tenant="full")
    bench.add("other", tenant="unknown")
    bench.add("poor1", "poor2", tenant="poor")
    bench.facts.standings = {"poor": Standing.ENTITLED, "full": Standing.CAPPED}
    assert sorted(bench.shown[:2]) == ["poor1", "poor2"]
    assert bench.shown[2:] == ["other"]
    capped = next(r for r in bench.queue.requests() if r.request_id == "full1")
    assert bench.queue.rank(capped, bench.facts) >= 4


def test_standing_is_asked_for_anew_with_every_candidate():
    bench = Bench("fcfs", "x")
    bench.add("x1", "x2", "x3", tenant="x")
    bench.add("y1", tenant="y")
    seen = []
    for request in bench.queue.candidates(bench.facts):
        seen.append(request.request_id)
        bench.queue.remove(request)
        if len(seen) == 2:
            bench.facts.standings["x"] = Standing.CAPPED
    assert seen == ["x1", "x2", "y1"]


def test_returned_requests_of_a_capped_tenant_wait_as_well():
    bench = Bench("fcfs", "x")
    bench.queue.add_returning([bench.make("back", tenant="x")])
    bench.add("fresh")
    bench.facts.standings["x"] = Standing.CAPPED
    assert bench.shown == ["fresh"]


@ORDERS
def test_an_overdue_request_goes_before_entitled_ones_unless_it_is_capped(order):
    bench = Bench(order, "poor", "full")
    bench.facts.config.most_passes = 10
    bench.add("stuck", tenant="full")
    bench.add("old", tenant="full")
    bench.facts.num_admitted = 50
    bench.add("poor", tenant="poor")
    bench.facts.standings = {"poor": Standing.ENTITLED}
    bounds_passes = WAITING_ORDERS[order].bounds_passes
    assert (bench.shown[0] == "stuck") == bounds_passes
    bench.facts.standings["full"] = Standing.CAPPED
    assert bench.shown == ["poor"]


def test_counts_name_every_request_once():
    bench = Bench("lpm", "x", "y")
    for tenant in ("x", "y", "other"):
        bench.queue.add_returning([bench.make(f"{tenant}-back", tenant=tenant)])
        fresh, twin = bench.add(f"{tenant}-1", f"{tenant}-2", tenant=tenant)
        bench.queue.hold(twin, fresh.request_id)
        bench.add(f"{tenant}-warm", tenant=tenant, preheat=True)
    assert bench.queue.counts(bench.facts) == WaitingCounts(3, 3, 3, 3, 0)
    bench.facts.standings["x"] = Standing.CAPPED
    assert bench.queue.counts(bench.facts) == WaitingCounts(2, 2, 3, 2, 3)
    assert sum(bench.queue.counts(bench.facts)) == len(bench.queue) == 12
    for request in bench.queue.requests():
        assert request.state is State.WAITING
        assert bench.queue.num_waiting_of(request.submission.tenant) >= 1
        bench.queue.remove(request)
    assert bench.queue.counts(bench.facts) == WaitingCounts(0, 0, 0, 0, 0)
    assert bench.queue._tallies == {}


def test_shorter_prompts_are_sought_among_the_oldest_only():
    bench = Bench()
    back, warm = bench.make("back"), bench.make("warm", preheat=True)
    first, twin, _, _ = bench.add("first", "twin", "second", "third")
    bench.queue.add_returning([back, warm])
    assert bench.queue.num_candidates == 5
    bench.queue.hold(twin, "first")
    assert bench.queue.num_candidates == 4
    longer = 1 + first.num_tokens
    assert names(bench.queue.shorter_prompts(longer, 9)) == ["back", "first", "second", "third"]
    assert names(bench.queue.shorter_prompts(longer, 4)) == ["back", "first", "second"], (
        "however many twins wait, no more are looked at"
    )
    assert not names(bench.queue.shorter_prompts(first.num_tokens, 9))


def test_tenants_that_wait_are_known():
    bench = Bench()
    first = bench.add("x1", tenant="x")
    bench.add("y1", tenant="y")
    bench.add("x2", tenant="x")
    assert bench.queue.waiting_tenants() == ["x", "y"]
    assert [bench.queue.num_waiting_of(tenant) for tenant in "xyz"] == [2, 1, 0]
    bench.queue.remove(first)
    assert bench.queue.num_waiting_of("x") == 1


def test_a_request_of_the_same_id_is_not_taken_for_another():
    bench = Bench()
    bench.add("x")
    other = bench.make("x")
    bench.queue.add_returning([other])
    bench.queue.remove(other)
    assert bench.shown == ["x"]
