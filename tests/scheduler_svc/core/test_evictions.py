"""Each eviction policy has an order of its own; tails first and soft pins last under any."""

import pytest

from scheduler_svc.core.eviction import EVICTION_POLICIES
from scheduler_svc.core.messages import PinLevel
from tests.scheduler_svc.core.harness import Bench
from tests.scheduler_svc.core.test_prefix_cache import letters

POLICIES = pytest.mark.parametrize("policy", EVICTION_POLICIES)

LENGTHS = {"a": 12, "b": 10, "c": 30, "d": 10, "e": 20, "f": 10}
PRIORITIES = {"a": 0, "b": 2, "c": 5, "d": 1, "e": 0, "f": 0}

# Made in order of the alphabet; d is matched three times, then a and b once, and f is made last.
# So by recency: c e d a b f, and by matches: c e f, a b, d.
ORDERS = {
    "lru": "cedabf",
    "lfu": "cefabd",
    "slru": "cefdab",
    "fifo": "abcdef",
    "priority": "eafdbc",
    # Worth of a slot: 1 for f, e, c, a little more for the longer; 2 for b and a, 4 for d.
    "cost": "fecbad",
}


def prompt_of(name):
    return [ord(name), *letters(LENGTHS[name] - 1)]


def six_prefixes(bench):
    def make(name):
        bench.ask(name, prompt_of(name), 1, priority=PRIORITIES[name])

    def match(name, times=1):
        for _ in range(times):
            bench.ask(f"again{len(bench.endings)}", [*prompt_of(name), 33], 1, no_store=True)

    for name in "abcde":
        make(name)
    match("d", 3)
    match("a")
    match("b")
    make("f")


def cached(bench):
    """Which of the six are there still, with how many tokens."""
    views, left_out = bench.core.dump_tree(1000)
    assert not left_out
    names, found = [], {}
    for view in views:
        is_stem = view.parent >= 0 and views[view.parent].parent < 0
        names.append(chr(view.token_ids[0]) if is_stem else names[view.parent] if names else "")
        if names[-1]:
            found[names[-1]] = found.get(names[-1], 0) + len(view.token_ids)
    return found


def order_of_eviction(bench):
    """Asks for some slots more each time, fewer than any of them has, and notes who is gone."""
    gone, total = "", bench.core.slot_books().total
    for needed in range(total % 8, total + 1, 8):
        bench.ask(f"need{needed}", [255, *letters(needed - 1)], 1, no_store=True)
        gone += "".join(name for name in LENGTHS if name not in cached(bench) and name not in gone)
    return gone


@pytest.mark.parametrize("c", [8, 64])  # a prompt of several chunks is several nodes
@POLICIES
def test_each_policy_has_an_order_of_its_own(policy, c):
    bench = Bench(N=sum(LENGTHS.values()) + 1, c=c, L=200, eviction_policy=policy)
    six_prefixes(bench)
    assert cached(bench) == LENGTHS
    assert order_of_eviction(bench) == ORDERS[policy]


def test_no_policy_equals_another():
    assert ORDERS.keys() == EVICTION_POLICIES.keys()
    assert len(set(ORDERS.values())) == len(ORDERS)


@POLICIES
def test_a_policy_holds_from_the_moment_it_is_set(policy):
    other = "lru" if policy != "lru" else "fifo"
    bench = Bench(N=sum(LENGTHS.values()) + 1, L=200, eviction_policy=other)
    six_prefixes(bench)
    bench.core.set_policy({"eviction_policy": policy})
    assert order_of_eviction(bench) == ORDERS[policy]


@POLICIES
@pytest.mark.parametrize("p", [1, 4, 16])
def test_leaves_are_trimmed_from_their_tails(policy, p):
    bench, prompt = Bench(N=128, p=p, eviction_policy=policy), letters(96)
    bench.ask("long", prompt, 1)
    for needed in (33, 49, 65):
        bench.ask(f"need{needed}", letters(needed, seed=needed), 1, no_store=True)
        kept = 128 - (needed + -needed % p)  # whole pages of the others
        bench.ask(f"again{needed}", [*prompt, 33], 1, no_store=True)
        assert bench.cached[f"again{needed}"] == kept


@POLICIES
def test_a_stem_stays_as_long_as_its_branches(policy):
    bench, stem = Bench(N=128, c=64, eviction_policy=policy), letters(20)
    bench.ask("stem", stem, 1)
    for i in range(3):
        bench.ask(f"branch{i}", [*stem, 200 + i, *letters(19, seed=i)], 1)
    for needed in range(50, 109, 3):
        bench.ask(f"need{needed}", letters(needed, seed=needed), 1, no_store=True)
        views, _ = bench.core.dump_tree(100)
        lengths = [len(view.token_ids) for view in views if len(view.token_ids)]
        assert sum(lengths) == min(80, 128 - needed), "exactly what is needed is freed"
        if len(lengths) > 1:
            assert lengths[0] == 20, "the stem is whole while a branch is there"


@POLICIES
def test_soft_pins_go_after_all_others(policy):
    bench = Bench(N=sum(LENGTHS.values()) + 21, L=200, eviction_policy=policy)
    pinned = [120, *letters(19)]  # oldest, never matched, of the lowest priority
    bench.ask("pin", pinned, 0, preheat=True, pin=PinLevel.SOFT, priority=-1)
    six_prefixes(bench)
    gone = ""
    total = sum(LENGTHS.values()) + 1
    for needed in range(total % 8, total + 1, 8):
        bench.ask(f"need{needed}", [255, *letters(needed - 1)], 1, no_store=True)
        assert cached(bench)["x"] == 20
        gone += "".join(name for name in LENGTHS if name not in cached(bench) and name not in gone)
    assert gone == ORDERS[policy]
    bench.ask("all", [255, *letters(needed + 4)], 1, no_store=True)
    assert cached(bench) == {"x": 15}, "and then from the tail, as any other"


@pytest.mark.parametrize(("policy", "stays"), [("cost", False), ("lfu", True)])
def test_cost_forgets_what_was_popular_once_and_lfu_does_not(policy, stays):
    bench, popular = Bench(N=64, eviction_policy=policy), [120, *letters(15)]
    bench.ask("popular", popular, 1)
    for i in range(4):
        bench.ask(f"again{i}", [*popular, 33], 1, no_store=True)
    for i in range(60):
        prompt = [200 + i % 50, *letters(14, seed=i)]
        bench.ask(f"new{i}", prompt, 1)
        bench.ask(f"used{i}", [*prompt, 33], 1, no_store=True)
    assert (cached(bench).get("x", 0) == 16) is stays


def test_a_prefix_has_the_highest_priority_of_those_that_use_it():
    bench = Bench(N=64, c=64, eviction_policy="priority")
    for name, priority in (("a", 0), ("b", 1)):
        bench.ask(name, [ord(name), *letters(19)], 1, priority=priority)
    bench.ask("uses a", [ord("a"), *letters(19), 33], 1, priority=2, no_store=True)
    bench.ask("uses b", [ord("b"), *letters(19), 33], 1, priority=0, no_store=True)
    bench.ask("needs", [255, *letters(43)], 1, no_store=True)
    assert cached(bench) == {"a": 20}


@POLICIES
def test_answers_do_not_depend_on_what_is_evicted(policy):
    bench, stem = Bench(N=96, r=4, eviction_policy=policy), letters(24)
    prompts = {}
    for i in range(40):
        prompts[f"x{i}"] = stem[: 8 * (i % 4)] + letters(9 + i % 5, seed=i % 11)
        bench.submit(f"x{i}", prompts[f"x{i}"], 6, priority=i % 3)
        bench.step()
    bench.run()
    for name, prompt in prompts.items():
        assert bench.tokens[name] == bench.reference(prompt, 6)
    assert bench.core.counters()["evicted_tokens"] > 0
