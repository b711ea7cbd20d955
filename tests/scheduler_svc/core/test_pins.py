"""Pins: levels, time, budgets, what becomes of them, and what they cost those that run."""

import pytest

from scheduler_svc.core.config import TenantPolicy
from scheduler_svc.core.messages import Ending, PinLevel
from tests.scheduler_svc.core.harness import OK_ENDINGS, Bench
from tests.scheduler_svc.core.test_prefix_cache import letters

PAGES = pytest.mark.parametrize("p", [1, 4, 16])
LEVELS = pytest.mark.parametrize("level", [PinLevel.SOFT, PinLevel.HARD])
SECOND = 1_000_000_000


def pin(bench, name, prompt, level=PinLevel.HARD, **fields):
    """Preheats and pins; returns the receipt."""
    bench.submit(name, prompt, 0, preheat=True, pin=level, **fields)
    bench.run()
    return bench.endings[name].pin


def wash(bench, tag, num_prompts=4, length=50):
    """Traffic without shared prefixes, enough to evict all that may be evicted."""
    for i in range(num_prompts):
        bench.ask(f"{tag}{i}", letters(length, seed=1000 + 31 * len(bench.endings)), 2)


def kept(bench, pin_id):
    (view,) = [v for v in bench.core.list_pins(bench.now_ns) if v.pin_id == pin_id]
    return view.kept_tokens


# --- levels -----------------------------------------------------------------------------------


@PAGES
def test_only_a_hard_pin_outlives_a_pool_that_needs_all(p):
    warm = {}
    for level in PinLevel:
        bench, prompt = Bench(N=128, p=p), letters(48)
        receipt = pin(bench, "pin", prompt, level)
        assert (receipt is None) is (level is PinLevel.NONE)
        wash(bench, "other", length=100)  # beside 48 pinned ones they do not fit, without they do
        bench.ask("asks", prompt + letters(3, seed=9), 1)
        warm[level] = bench.cached["asks"]
        refused = [o for o in bench.endings.values() if o.ending is Ending.POOL_FULL]
        assert bool(refused) is (level is PinLevel.HARD)
    beside = 128 - (101 + -101 % p)  # what the others leave of the pool
    assert warm == {PinLevel.NONE: 0, PinLevel.SOFT: beside, PinLevel.HARD: 48}


@PAGES
def test_a_soft_pin_is_evicted_after_all_others(p):
    bench, prompt = Bench(N=128, p=p), letters(48)
    pin(bench, "pin", prompt, PinLevel.SOFT)
    unpinned = letters(32, seed=5)
    bench.ask("later", unpinned, 1)  # used after the pinned one: lru alone would keep this one
    bench.ask("big", letters(60, seed=6), 5)
    assert bench.ask("pinned", [*prompt, 100], 1)
    assert bench.cached["pinned"] == 48
    bench.ask("again", unpinned, 1)
    assert bench.cached["again"] < 31 - 31 % p


def test_a_soft_pin_gives_way_from_its_tail():
    bench, prompt = Bench(N=64), letters(40)
    receipt = pin(bench, "pin", prompt, PinLevel.SOFT)
    bench.ask("big", letters(50, seed=1), 5)  # takes 54 of 64 slots
    assert kept(bench, receipt.pin_id) == 10
    (view,) = bench.core.list_pins(bench.now_ns)
    assert (view.num_tokens, view.level) == (40, PinLevel.SOFT)
    bench.ask("asks", prompt, 1)
    assert bench.cached["asks"] == 10
    assert kept(bench, receipt.pin_id) == 10, "what was computed again is not pinned by itself"


@PAGES
def test_a_prefix_that_is_used_further_keeps_its_pin(p):
    bench, stem = Bench(N=160, p=p), letters(32)
    receipt = pin(bench, "pin", stem, PinLevel.SOFT)
    for i in range(3):
        bench.ask(f"branch{i}", stem + letters(17, seed=20 + i), 2)
    wash(bench, "other", num_prompts=6, length=64)
    assert kept(bench, receipt.pin_id) == 32, "its branches went, and others, but not the stem"


def test_pins_hold_while_prefixes_split_within_them():
    bench, prompt = Bench(N=128), letters(40)
    receipt = pin(bench, "pin", prompt)
    bench.ask("fork", prompt[:20] + letters(10, seed=3), 2)
    wash(bench, "other", num_prompts=5)
    assert kept(bench, receipt.pin_id) == 40
    bench.ask("asks", prompt, 1)
    assert bench.cached["asks"] == 39


@LEVELS
def test_pinned_slots_are_locked_only_when_hard(level):
    bench = Bench(N=128, p=4)
    pin(bench, "pin", letters(42), level)
    books, economy = bench.core.slot_books(), bench.core.economy(bench.now_ns)
    hard = level is PinLevel.HARD
    assert (books.locked, books.evictable) == ((40, 0) if hard else (0, 40))
    assert economy.pinned_slots == (40 if hard else 0)
    assert economy.density == 0.0, "pins are no context of anybody"


# --- time -------------------------------------------------------------------------------------


@LEVELS
def test_a_pin_ends_with_its_time_and_a_hit_renews_it(level):
    bench, prompt = Bench(N=128), letters(40)
    receipt = pin(bench, "pin", prompt, level, pin_ttl_ns=10 * SECOND)
    bench.now_ns += 7 * SECOND
    left = bench.core.list_pins(bench.now_ns)[0].expires_in_ns
    assert left == pytest.approx(3 * SECOND, abs=SECOND / 100)
    bench.ask("hit", prompt + letters(2, seed=1), 1)
    (view,) = bench.core.list_pins(bench.now_ns)
    assert view.hits == 1
    assert view.expires_in_ns == pytest.approx(10 * SECOND, abs=SECOND / 100)
    bench.now_ns += 7 * SECOND
    assert [v.pin_id for v in bench.core.list_pins(bench.now_ns)] == [receipt.pin_id]
    bench.ask("miss", [*prompt[:30], 65], 1)  # only a part of it: no hit
    assert bench.core.list_pins(bench.now_ns)[0].hits == 1
    bench.now_ns += 4 * SECOND
    assert not bench.core.list_pins(bench.now_ns)
    assert bench.core.slot_books().locked == 0


def test_the_first_of_several_pins_to_expire_does_not_hide_the_others():
    bench = Bench(N=256)
    for seconds in (30, 10, 20):
        pin(bench, f"{seconds}", letters(20, seed=seconds), pin_ttl_ns=seconds * SECOND)
    pin(bench, "ever", letters(20, seed=1))
    lives = []
    for _ in range(4):
        lives.append([view.expires_in_ns is None for view in bench.core.list_pins(bench.now_ns)])
        bench.now_ns += 10 * SECOND + SECOND // 100
    assert list(map(len, lives)) == [4, 3, 2, 1]
    assert lives[-1] == [True]


@pytest.mark.parametrize("how", ["expires", "is removed"])
def test_a_soft_pin_that_ended_is_worth_no_more_than_others(how):
    bench, old = Bench(N=128), letters(40)
    receipt = pin(bench, "pin", old, PinLevel.SOFT, pin_ttl_ns=10 * SECOND)
    if how == "expires":
        bench.now_ns += 11 * SECOND
    else:
        assert bench.core.unpin([receipt.pin_id], bench.now_ns) == ([receipt.pin_id], [])
    bench.ask("later", letters(40, seed=5), 1)
    bench.ask("big", letters(60, seed=6), 5)
    bench.ask("again", letters(40, seed=5), 1)
    assert bench.cached["again"] == 39, "what was pinned is the least recently used"


# --- the same prefix again ----------------------------------------------------------------


def test_pinned_twice_is_pinned_once():
    bench, prompt = Bench(N=128), letters(40)
    first = pin(bench, "a", prompt)
    second = pin(bench, "b", prompt, pin_ttl_ns=10 * SECOND)
    assert second == first
    assert len(bench.core.list_pins(bench.now_ns)) == 1
    assert bench.core.economy(bench.now_ns).pinned_slots == 40
    bench.now_ns += 11 * SECOND
    assert not bench.core.list_pins(bench.now_ns), "the new time holds"


def test_a_new_level_takes_the_place_of_the_old():
    bench, prompt = Bench(N=128), letters(40)
    levels = [PinLevel.SOFT, PinLevel.HARD, PinLevel.SOFT, PinLevel.HARD]
    receipts = [pin(bench, f"p{i}", prompt, level) for i, level in enumerate(levels)]
    assert len({receipt.pin_id for receipt in receipts}) == 1
    assert bench.core.slot_books().locked == 40
    pin(bench, "soft", prompt, PinLevel.SOFT)
    assert bench.core.slot_books().locked == 0
    assert [v.level for v in bench.core.list_pins(0)] == [PinLevel.SOFT]


def test_pins_of_nested_prefixes_are_apart():
    bench, prompt = Bench(N=128), letters(40)
    long, short = pin(bench, "long", prompt), pin(bench, "short", prompt[:15])
    assert (long.num_tokens, short.num_tokens) == (40, 15)
    assert bench.core.economy(0).pinned_slots == 40, "the stem counts once"
    assert bench.core.unpin([long.pin_id], 0) == ([long.pin_id], [])
    assert bench.core.economy(0).pinned_slots == bench.core.slot_books().locked == 15
    wash(bench, "other", num_prompts=5)
    assert kept(bench, short.pin_id) == 15


# --- budgets ----------------------------------------------------------------------------------


@PAGES
def test_a_budget_pins_what_it_can_and_says_so(p):
    bench = Bench(N=128, p=p, pin_budget=0.5)
    first, second = pin(bench, "a", letters(48)), pin(bench, "b", letters(48, seed=1))
    third = pin(bench, "c", letters(48, seed=2))
    assert (first.num_tokens, second.num_tokens, third.num_tokens) == (48, 16, 0)
    assert (first.message, third.pin_id) == ("", "")
    for receipt, left in ((second, 16), (third, 0)):
        assert f"{left} slots left" in receipt.message
        assert "48" in receipt.message
    views = bench.core.list_pins(0)
    assert [(v.num_tokens, v.kept_tokens) for v in views] == [(48, 48), (48, 16)]
    assert bench.core.economy(0).pinned_slots == 64
    soft = pin(bench, "d", letters(48, seed=3), PinLevel.SOFT)
    assert (soft.num_tokens, soft.message) == (48, ""), "soft ones take nothing from anybody"
    bench.core.unpin([first.pin_id], 0)
    assert pin(bench, "e", letters(48, seed=4)).num_tokens == 48


def test_a_tenant_pins_its_share_of_the_budget():
    tenants = {"few": TenantPolicy(pin_share=0.25), "none": TenantPolicy(pin_share=0.0)}
    bench = Bench(N=160, tenants=tenants, pin_budget=0.5)
    few = pin(bench, "a", letters(30), tenant="few")
    none = pin(bench, "b", letters(30, seed=1), tenant="none")
    free = pin(bench, "c", letters(70, seed=2), tenant="free")
    assert (few.num_tokens, none.num_tokens, free.num_tokens) == (20, 0, 60)
    assert "20 slots left" in few.message
    books = bench.core.tenant_books()
    pinned = {name: books[name].pinned_slots for name in ("few", "free")}
    assert pinned == {"few": 20, "free": 60}


def test_a_smaller_budget_keeps_what_is_pinned():
    bench = Bench(N=128, pin_budget=0.5)
    pin(bench, "a", letters(60))
    bench.core.set_policy({"pin_budget": 0.1})
    assert bench.core.economy(0).pinned_slots == 60
    late = pin(bench, "b", letters(20, seed=1))
    assert late.num_tokens == 0
    assert "0 slots left" in late.message


# --- whose they are, and how they end -----------------------------------------------------


def test_a_tenant_sees_and_removes_its_own_only():
    bench = Bench(N=256)
    mine, theirs = (pin(bench, t, letters(20), tenant=t) for t in ("mine", "theirs"))
    assert [v.pin_id for v in bench.core.list_pins(0, "mine")] == [mine.pin_id]
    assert bench.core.unpin([theirs.pin_id, "pin-99"], 0, tenant="mine") == (
        [],
        [theirs.pin_id, "pin-99"],
    )
    assert bench.core.unpin([], 0, every=True, tenant="mine") == ([mine.pin_id], [])
    assert [v.tenant for v in bench.core.list_pins(0)] == ["theirs"]
    assert bench.core.unpin([theirs.pin_id] * 2, 0) == ([theirs.pin_id], [])
    assert bench.core.slot_books().locked == 0


def test_a_flush_ends_pins():
    bench = Bench(N=128)
    pin(bench, "hard", letters(30))
    pin(bench, "soft", letters(30, seed=1), PinLevel.SOFT)
    assert bench.core.flush() == 60
    assert not bench.core.list_pins(0)
    assert bench.core.slot_books().free == 128
    assert pin(bench, "again", letters(30)).num_tokens == 30


def test_pins_end_with_the_worker_and_their_names_do_not_return():
    bench = Bench(N=128)
    lost = pin(bench, "a", letters(30))
    bench.lose_worker()
    assert not bench.core.list_pins(bench.now_ns)
    assert bench.core.economy(bench.now_ns).pinned_slots == 0
    fresh = pin(bench, "b", letters(30, seed=1))
    assert bench.core.unpin([lost.pin_id], bench.now_ns) == ([], [lost.pin_id]), (
        "who still knows the old pin must not remove the new one"
    )
    assert kept(bench, fresh.pin_id) == 30


def test_the_number_of_pins_is_bounded(monkeypatch):
    monkeypatch.setattr("scheduler_svc.core.pins.MOST_PINS", 3)
    bench = Bench(N=256)
    receipts = [pin(bench, f"p{i}", letters(8, seed=i), PinLevel.SOFT) for i in range(5)]
    assert [bool(receipt.pin_id) for receipt in receipts] == [True] * 3 + [False] * 2
    assert "3 pins" in receipts[3].message
    assert pin(bench, "again", letters(8, seed=0), PinLevel.SOFT) == receipts[0]


# --- beside those that run --------------------------------------------------------------------


@pytest.mark.parametrize("p", [1, 4])
@pytest.mark.parametrize("depth", [1, 2])
def test_what_never_fits_beside_pins_ends_with_a_reason(p, depth):
    bench = Bench(N=64, p=p, depth=depth)
    pin(bench, "pin", letters(32))
    bench.submit("big", letters(40, seed=1), 5)
    bench.submit("small", letters(20, seed=2), 5)
    bench.run(limit=200)
    assert bench.endings["big"].ending is Ending.POOL_FULL
    assert "64" in bench.endings["big"].message
    assert "32 of them pinned" in bench.endings["big"].message
    assert bench.tokens["small"] == bench.reference(letters(20, seed=2), 5)
    grows = bench.ask("grows", letters(20, seed=3), 30)
    assert bench.endings["grows"].ending is Ending.POOL_FULL
    assert grows == bench.reference(letters(20, seed=3), 30)[:13], "32 slots and one token more"


@pytest.mark.parametrize("p", [1, 4])
def test_pinned_slots_are_never_promised(p):
    bench = Bench(N=128, p=p, r=8, admission_estimate="worst_case", pin_budget=0.5)
    pin(bench, "pin", letters(64))
    for i in range(12):
        bench.submit(f"x{i}", letters(13, seed=i), 12)
    bench.run()
    assert not bench.core.counters()["retractions"]
    for i in range(12):
        assert bench.tokens[f"x{i}"] == bench.reference(letters(13, seed=i), 12)


@pytest.mark.parametrize("how", ["warm", "upgraded"])
def test_pinning_what_is_cached_takes_no_slot_that_was_promised(how):
    bench, prompt = Bench(N=100, admission_estimate="worst_case", pin_budget=0.5), letters(48)
    bench.ask("cached", prompt, 1)
    if how == "upgraded":
        pin(bench, "soft", prompt, PinLevel.SOFT)
    bench.submit("runs", letters(20, seed=1), 30)
    bench.submit("runs too", letters(15, seed=2), 25)  # 49 + 39 of 95 slots are spoken for
    for _ in range(4):
        bench.step()
    assert bench.core.num_running == 2
    bench.submit("pin", prompt, 0, preheat=True, pin=PinLevel.HARD)
    bench.run()
    assert not bench.core.counters()["retractions"]
    assert {bench.endings[name].ending for name in ("runs", "runs too")} <= OK_ENDINGS
    assert bench.tokens["runs"] == bench.reference(letters(20, seed=1), 30)
    assert bench.endings["pin"].ending is Ending.PREHEATED
