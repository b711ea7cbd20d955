"""The index names the same next request as a plain sort, at a price that does not grow."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_svc.core.waiting_index import (
    CHECKS_PER_PICK,
    NEW_PER_STEP,
    PASSES_PER_WAITING,
    REFRESH_PER_STEP,
)
from scheduler_svc.core.waiting_order import WAITING_ORDERS, Standing
from scheduler_svc.core.waiting_queue import WaitingQueue
from tests.scheduler_svc.core.waiting_facts import (
    SECOND,
    Arrivals,
    FakeConfig,
    FakeFacts,
    names,
)

ORDERS = pytest.mark.parametrize("order", list(WAITING_ORDERS))
TENANTS = ("x", "y", "z")


@dataclass
class Model:
    """Sorts all that wait whenever it is asked."""

    order: str
    facts: FakeFacts
    ahead: dict[str, int] = field(default_factory=dict)

    def candidates(self, requests):
        kept = [r for r in requests if self.standing(r) is not Standing.CAPPED]
        overdue = sorted(filter(self.is_overdue, kept), key=self.due_key)
        others = [r for r in kept if r not in overdue]
        if WAITING_ORDERS[self.order].goes_by_arrival(self.facts):
            others.sort(key=lambda r: (self.standing(r), r.arrival))
        elif self.order == "dfs_weight":
            others = self.walk(others, 0)
        else:
            others = self.merge(others)
        return [*overdue, *others]

    def merge(self, requests):
        """The best of the firsts of all lanes, again and again."""
        order, merged, lanes = WAITING_ORDERS[self.order], [], {}
        for request in requests:
            tenant = request.submission.tenant
            share = tenant if tenant in self.facts.config.tenants else None
            key = order.key(request, self.facts)
            lane = (share, order.lane(request, self.facts))
            lanes.setdefault(lane, []).append((key, request.arrival, request))
        queues = {lane: sorted(members) for lane, members in lanes.items()}
        while queues:
            firsts = {self.first_key(*queue): queue[0] for queue in queues.items()}
            lane = firsts[min(firsts)]
            merged.append(queues[lane].pop(0)[2])
            if not queues[lane]:
                del queues[lane]
        return merged

    def first_key(self, lane, members):
        key, arrival, request = members[0]
        rank = WAITING_ORDERS[self.order].rank(lane[1], key, len(members), self.facts)
        return self.standing(request), rank, key, arrival

    def is_overdue(self, request):
        most = self.facts.config.most_passes + PASSES_PER_WAITING * self.ahead[request.request_id]
        bounds_passes = WAITING_ORDERS[self.order].bounds_passes
        return bounds_passes and self.facts.num_passes(request) >= most

    def due_key(self, request):
        ahead = self.ahead[request.request_id]
        return request.num_admitted_before + PASSES_PER_WAITING * ahead, request.arrival

    def standing(self, request):
        tenant = request.submission.tenant
        named = tenant in self.facts.config.tenants
        return self.facts.standing(tenant) if named else Standing.ORDINARY

    def walk(self, requests, depth):
        """Depth first below a node that all of them match, heaviest branch first."""
        branches = {}
        for request in requests:
            path = self.facts.match_path(request)
            branches.setdefault(path[depth] if len(path) > depth else None, []).append(request)
        own = branches.pop(None, [])
        by_weight = sorted(branches.items(), key=lambda branch: (-len(branch[1]), branch[0]))
        walked = [r for _, members in by_weight for r in self.walk(members, depth + 1)]
        return [*walked, *own]


class Play:
    """Does what it is told to a queue and to a list, and compares them."""

    MOST = min(REFRESH_PER_STEP, NEW_PER_STEP)
    """So many are kept right in one step; more would be right a little later."""

    def __init__(self, order, most_passes, tenants):
        config = FakeConfig(most_passes=most_passes, tenants=dict.fromkeys(tenants))
        self.facts = FakeFacts(config=config)
        self.arrivals = Arrivals(self.facts)
        self.queue = WaitingQueue(WAITING_ORDERS[order])
        self.model = Model(order, self.facts)
        self.free, self.held = [], []

    def add(self, n):
        if len(self.free) + len(self.held) >= self.MOST:
            return
        name = f"r{self.arrivals.num}"
        self.change_facts(name, n)
        request = self.arrivals.request(
            name, 30 + n, 1 + n % 7, priority=n % 3, tenant=TENANTS[n // 3 % 3]
        )
        self.model.ahead[name] = len(self.free) + len(self.held)
        self.queue.add(request)
        self.free.append(request)

    def admit(self, n):
        if request := next(self.queue.candidates(self.facts), None):
            self.facts.admit(self.queue, request)
            self.free.remove(request)

    def cancel(self, n):
        waiting = self.queue.requests()
        if waiting:
            request = waiting[n % len(waiting)]
            self.queue.remove(request)
            (self.free if request in self.free else self.held).remove(request)

    def hold(self, n):
        if self.free:
            request = self.free.pop(n % len(self.free))
            self.queue.hold(request, f"leader{n % 2}")
            self.held.append(request)

    def release(self, n):
        leader = f"leader{n % 2}"
        back = [r for r in self.held if self.queue.leader_of(r) == leader]
        self.queue.release_held(leader)
        self.held = [r for r in self.held if r not in back]
        self.free = sorted([*self.free, *back], key=lambda r: r.arrival)

    def change(self, n):
        if self.free:
            self.change_facts(self.free[n % len(self.free)].request_id, n // 7)

    def change_facts(self, name, n):
        self.facts.cached[name] = n % 5 * 6
        self.facts.paths[name] = ((), (1,), (1, 3), (2,), (1, 4), (2, 5, 6))[n % 6]

    def move_tenant(self, n):
        self.facts.standings[TENANTS[n % 3]] = Standing(n // 3 % 3)

    def pass_time(self, n):
        self.facts.now_ns += n * SECOND

    def fit(self, n):
        self.facts.everything_fits = n % 4 == 0

    def look(self, n):
        """Every candidate, none taken."""
        shown = list(self.queue.candidates(self.facts))
        assert names(shown) == names(self.model.candidates(self.free))
        for place, request in enumerate(shown, start=1):
            assert self.queue.rank(request, self.facts) == place
        assert len(self.queue) == self.queue.num_fresh == len(self.free) + len(self.held)
        counts = self.queue.counts(self.facts)
        assert sum(counts) == len(self.queue)
        assert (counts.held, counts.fresh) == (len(self.held), len(shown))


MOVES = ("add", "add", "add", "admit", "cancel", "hold", "release", "change", "change", "pass_time")
MOVES += ("move_tenant", "fit", "look")


@ORDERS
@pytest.mark.parametrize("tenants", [(), TENANTS, ("x",)])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    most_passes=st.sampled_from([1, 5, 1000]),
    moves=st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 60)), max_size=80),
)
def test_the_index_agrees_with_a_plain_sort(order, tenants, most_passes, moves):
    if order == "dfs_weight":
        # A branch that was begun is finished first, which is history: here it is never begun.
        tenants, moves = (), [move for move in moves if move[0] not in ("admit",)]
    play = Play(order, most_passes, tenants)
    for move, n in moves:
        getattr(play, move)(n)
    assert names(play.queue.candidates(play.facts)) == names(play.model.candidates(play.free))


@ORDERS
def test_random_play_for_long(order):
    """Longer than hypothesis would: outdated entries pile up and are swept."""
    rng = random.Random(5)
    play = Play(order, 1000, () if order == "dfs_weight" else TENANTS)
    for _ in range(3000):
        move = rng.choice(MOVES)
        if order != "dfs_weight" or move != "admit":
            getattr(play, move)(rng.randrange(60))
    assert names(play.queue.candidates(play.facts)) == names(play.model.candidates(play.free))


def long_queue(order, num, facts):
    """A queue that has seen all its requests once."""
    rng, arrivals = random.Random(num), Arrivals(facts)
    queue = WaitingQueue(WAITING_ORDERS[order])
    for number in range(num):
        name = f"r{number}"
        facts.cached[name] = rng.choice([0, 0, 5, 10, 15])
        facts.paths[name] = rng.choice([(), (1,), (2,), (1, 3), (2, 4, number)])
        request = arrivals.request(name, rng.choice([20, 50, 90]), tenant=f"t{number % 9}")
        queue.add(request)
    for _ in range(num // NEW_PER_STEP + 1):
        queue.take_in(facts)
    return queue


@ORDERS
@pytest.mark.parametrize("num", [100, 10_000])
def test_a_step_looks_up_a_few_requests_however_many_wait(order, num):
    facts = FakeFacts(config=FakeConfig(most_passes=10**9))
    queue, rng = long_queue(order, num, facts), random.Random(1)
    # A lane and a key of one request are at most three looks into the tree.
    most = 3 * (REFRESH_PER_STEP + CHECKS_PER_PICK)
    for _ in range(60):
        for _ in range(num // 4):  # the tree changes more than one step could follow
            facts.cached[f"r{rng.randrange(num)}"] = rng.choice([0, 5, 10, 15])
        facts.num_lookups = 0
        request = next(queue.candidates(facts))
        assert facts.num_lookups <= (most if WAITING_ORDERS[order].needs_refresh else 0)
        facts.admit(queue, request)


@ORDERS
def test_a_flood_of_newcomers_costs_a_step_no_more(order):
    facts = FakeFacts()
    arrivals, queue = Arrivals(facts), WaitingQueue(WAITING_ORDERS[order])
    for number in range(5000):
        queue.add(arrivals.request(f"r{number}"))
    request = next(queue.candidates(facts))
    assert facts.num_lookups <= 3 * (NEW_PER_STEP + REFRESH_PER_STEP + CHECKS_PER_PICK)
    facts.admit(queue, request)
    assert len(list(queue.candidates(facts))) == 4999, "all of them are candidates"


def test_newcomers_are_sorted_in_while_nobody_asks():
    facts = FakeFacts()
    queue = long_queue("lpm", 1000, facts)
    facts.num_lookups = 0
    queue.take_in(facts)
    assert facts.num_lookups == 0, "all had been"
    best = max(facts.cached.values())
    assert facts.cached[next(queue.candidates(facts)).request_id] == best


def test_released_requests_do_not_stand_behind_a_flood_of_newcomers():
    facts = FakeFacts()
    arrivals, queue = Arrivals(facts), WaitingQueue(WAITING_ORDERS["lpm"])
    old = [arrivals.request(f"old{number}") for number in range(3 * NEW_PER_STEP)]
    for request in old:
        queue.add(request)
        queue.take_in(facts)
        queue.hold(request, "leader")
    for number in range(3 * NEW_PER_STEP):
        queue.add(arrivals.request(f"r{number}"))
    queue.release_held("leader")
    assert next(queue.candidates(facts)) is old[0]


def test_a_cache_that_is_lost_at_once_stops_no_step():
    facts = FakeFacts()
    queue = long_queue("lpm", 1000, facts)
    facts.cached.clear()
    facts.num_lookups = 0
    assert next(queue.candidates(facts), None) is not None
    assert facts.num_lookups <= REFRESH_PER_STEP + CHECKS_PER_PICK


def test_tenants_of_equal_service_go_by_their_oldest_request():
    facts = FakeFacts()
    arrivals, queue = Arrivals(facts), WaitingQueue(WAITING_ORDERS["vtc"])
    oldest = arrivals.request("x1", tenant="x")
    for request in (oldest, arrivals.request("y", tenant="y"), arrivals.request("x2", tenant="x")):
        queue.add(request)
    queue.hold(oldest, "leader")
    assert names(queue.candidates(facts)) == ["y", "x2"]
    assert next(queue.candidates(facts)).request_id == "y"
    queue.release_held("leader")
    assert names(queue.candidates(facts)) == ["x1", "y", "x2"]


def test_a_change_of_the_tree_is_noticed_within_one_turn():
    facts = FakeFacts()
    queue = long_queue("lpm", 1000, facts)
    facts.cached["r777"] = 19
    steps = 0
    while next(queue.candidates(facts)).request_id != "r777":
        steps += 1
    assert steps <= 1000 // REFRESH_PER_STEP + 1


def test_what_the_tree_no_longer_holds_is_noticed_at_once():
    facts = FakeFacts()
    queue = long_queue("lpm", 1000, facts)
    best = next(queue.candidates(facts))
    facts.cached[best.request_id] = 0
    assert next(queue.candidates(facts)) is not best


@ORDERS
def test_the_same_calls_give_the_same_order(order):
    def started():
        facts, rng = FakeFacts(), random.Random(9)
        queue, order_of_start = long_queue(order, 500, facts), []
        while (request := next(queue.candidates(facts), None)) is not None:
            order_of_start.append(request.request_id)
            facts.admit(queue, request)
            facts.cached[f"r{rng.randrange(500)}"] = rng.choice([0, 5, 10, 15])
            facts.now_ns += SECOND
        return order_of_start

    assert started() == started()
