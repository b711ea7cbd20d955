"""Twins: who could share what another computes waits for it, no longer, and not for nothing."""

import pytest

from scheduler_svc.core.messages import Ending
from scheduler_svc.core.twins import LEAST_TWIN_TOKENS
from scheduler_svc.core.waiting_order import WAITING_ORDERS
from tests.scheduler_svc.core.harness import Bench
from tests.scheduler_svc.core.test_prefix_cache import letters, whole

DEPTHS = pytest.mark.parametrize("depth", [1, 2])
PAGES = pytest.mark.parametrize("p", [1, 4, 16])
STEM = letters(64)
C = 32
"""Chunks: so that no less than LEAST_TWIN_TOKENS of the stem are left before the last of it."""


def asks(number, stem=STEM, own=4):
    """A prompt of its own that begins with the stem."""
    return [*stem, 200 + number, *letters(own - 1, seed=number)]


def leader_of(bench, name):
    return bench.core.state.waiting.leader_of(bench.core.state.live[name])


def submit_all(bench, number, max_tokens=5, **fields):
    for i in range(number):
        bench.submit(f"x{i}", asks(i), max_tokens, **fields)


def check_answers(bench, number, max_tokens=5):
    for i in range(number):
        assert bench.tokens[f"x{i}"] == bench.reference(asks(i), max_tokens), i


def prefilled(bench):
    """Tokens computed but for one a token of output after the first of each, and wrong guesses."""
    counters = bench.core.counters()
    wrong = counters["drafted_tokens"] - counters["accepted_tokens"]
    return counters["computed_tokens"] - wrong - counters["generated_tokens"] + len(bench.endings)


@DEPTHS
@PAGES
@pytest.mark.parametrize("order", WAITING_ORDERS)
def test_a_stem_is_computed_once(order, p, depth):
    bench = Bench(N=1024, c=C, p=p, r=6, depth=depth, waiting_order=order)
    submit_all(bench, 5)
    bench.run()
    check_answers(bench, 5)
    shared = whole(64, p)
    assert prefilled(bench) == 68 + 4 * (68 - shared)
    assert sorted(bench.cached.values()) == [0] + [shared] * 4


def test_those_behind_twins_are_not_held_up():
    bench = Bench(N=1024, c=C, r=4, waiting_order="fcfs")
    submit_all(bench, 3)
    bench.submit("other", letters(20, seed=9), 3)
    bench.schedule()
    assert [leader_of(bench, f"x{i}") for i in (1, 2)] == ["x0", "x0"]
    assert bench.started == ["x0", "other"]
    bench.run()


def test_followers_wait_for_the_prompt_and_not_for_the_answer():
    bench = Bench(N=1024, c=C, r=4)
    submit_all(bench, 2, max_tokens=100)
    while not bench.tokens["x0"]:
        bench.step()
    bench.step()
    assert "x1" in bench.started
    assert len(bench.tokens["x0"]) <= 3
    bench.run()


def test_the_first_token_comes_no_later_than_without_waiting():
    alone = Bench(N=1024, c=C, r=4)
    alone.submit("x1", asks(1), 1)
    alone.run()
    bench = Bench(N=1024, c=C, r=4)
    submit_all(bench, 2, max_tokens=1)
    bench.run()
    assert len(bench.plans) <= len(alone.plans) + 3


@pytest.mark.parametrize("shared", [0, LEAST_TWIN_TOKENS - 1])
def test_little_is_computed_twice_rather_than_waited_for(shared):
    bench = Bench(N=1024, c=C, r=4)
    for i in range(2):
        bench.submit(f"x{i}", asks(i, letters(shared), own=60))
    bench.schedule()
    assert bench.started == ["x0", "x1"]
    bench.run()


def test_what_the_tree_holds_already_is_not_waited_for():
    bench = Bench(N=1024, c=8, r=4)
    bench.ask("warm", STEM[:50], 1)
    bench.submit("x0", asks(0, own=40))
    bench.schedule()
    bench.submit("x1", asks(1))  # 14 tokens more than the tree has
    bench.schedule()
    assert "x1" in bench.started
    bench.run()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"no_store": True}, {}),  # nothing of the first is kept
        ({"cache_domain": "a"}, {"cache_domain": "b"}),
        ({"tenant": "a"}, {"tenant": "b"}),
    ],
)
def test_nobody_waits_for_what_it_will_not_find(first, second):
    bench = Bench(N=1024, c=C, r=4)
    bench.submit("x0", asks(0), **first)
    bench.submit("x1", asks(1), **second)
    bench.schedule()
    assert bench.started == ["x0", "x1"]
    bench.run()
    check_answers(bench, 2)


def test_nobody_waits_for_a_preheat_but_preheats_wait():
    bench = Bench(N=1024, c=C, r=4)
    bench.submit("warm", STEM, 0, preheat=True)
    bench.schedule()
    bench.submit("x0", asks(0))
    bench.submit("warm too", [*STEM, 7], 0, preheat=True)
    bench.step()
    assert bench.started == ["warm", "x0"]
    bench.run()
    assert bench.endings["warm too"].computed_tokens == 1
    check_answers(bench, 1)


# --- when the one they wait for does not get there -------------------------------------------


@DEPTHS
@pytest.mark.parametrize("after", [1, 3, 6])
def test_a_cancelled_leader_is_followed_by_the_next(depth, after):
    bench = Bench(N=1024, c=C, r=4, depth=depth)
    submit_all(bench, 4)
    for _ in range(after):
        bench.step()
    bench.cancel("x0")
    bench.run()
    assert bench.endings["x0"].ending is Ending.CANCELLED
    for i in range(1, 4):
        assert bench.tokens[f"x{i}"] == bench.reference(asks(i)), i
    assert prefilled(bench) <= 64 + 4 * 4 + C, "and what it computed when it ended"


@DEPTHS
def test_a_leader_that_is_cut_back_releases_its_followers(depth):
    bench = Bench(N=1024, c=C, r=4, depth=depth)
    submit_all(bench, 3)
    for _ in range(3):
        bench.step()
    bench.core.state.retract(bench.core.state.live["x0"])
    bench.run()
    check_answers(bench, 3)


@DEPTHS
def test_a_lost_worker_releases_all(depth):
    bench = Bench(N=1024, c=C, r=4, depth=depth)
    submit_all(bench, 4)
    for _ in range(3):
        bench.step()
    bench.lose_worker()
    assert [leader_of(bench, f"x{i}") for i in range(4)] == [None] * 4
    bench.run()
    check_answers(bench, 4)
    lost = 4 * depth  # tokens of outputs that the worker took with it
    assert prefilled(bench) <= 2 * (64 + 4 * 4) + lost, "they are twins under the new one too"


@DEPTHS
def test_a_flush_leaves_nobody_waiting_for_what_cannot_be_found(depth):
    bench = Bench(N=2048, c=C, r=4, depth=depth, L=1500)
    stem = letters(800)
    bench.submit("x0", [*stem, 200], 3)
    bench.step()
    bench.submit("x1", [*stem, 201], 3)
    bench.step()
    bench.core.flush()
    for _ in range(4):
        bench.step()
    assert "x1" in bench.started, "the first one's prefix can never be matched"
    bench.run()
    for i in range(2):
        assert bench.tokens[f"x{i}"] == bench.reference([*stem, 200 + i], 3)


def test_cancelled_followers_leave_nothing_behind():
    bench = Bench(N=1024, c=C, r=4)
    submit_all(bench, 3)
    bench.schedule()
    for i in (1, 2):
        assert leader_of(bench, f"x{i}") == "x0"
        bench.cancel(f"x{i}")
    assert not bench.core.state.waiting._held
    assert not bench.core.state.waiting._leaders
    bench.run()
    assert not bench.core.state.twins._leaders
    check_answers(bench, 1)


def test_a_longer_follower_leads_those_that_share_more_with_it():
    bench = Bench(N=1024, c=C, r=6)
    longer = [*STEM, *letters(64, seed=7)]
    bench.submit("short", asks(0))
    bench.submit("long", [*longer, 201])
    bench.submit("longest", [*longer, 202, 203])
    bench.run()
    assert bench.cached == {"short": 0, "long": 64, "longest": 128}
    assert bench.tokens["longest"] == bench.reference([*longer, 202, 203])


@DEPTHS
@pytest.mark.parametrize("order", WAITING_ORDERS)
def test_a_change_of_order_keeps_those_held(order, depth):
    bench = Bench(N=1024, c=C, r=2, depth=depth, waiting_order="fcfs" if order != "fcfs" else "lof")
    submit_all(bench, 6)
    bench.submit("other", letters(9, seed=3), 3)
    bench.step()
    bench.core.set_policy({"waiting_order": order})
    bench.run()
    check_answers(bench, 6)
    assert prefilled(bench) == 64 + 6 * 4 + 9
