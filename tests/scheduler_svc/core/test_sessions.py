"""Sessions: a conversation's tail outlives what others compute, and no longer than it should."""

from array import array

import pytest

from gpu_worker.fake_engine import FakeModel
from gpu_worker.fake_model import GO_TOKEN, SCRIPT_TOKEN
from protos.plan import SamplingParams
from scheduler_svc.core import invariants
from scheduler_svc.core.messages import Ending, PinLevel
from tests.scheduler_svc.core.harness import Bench
from tests.scheduler_svc.core.test_pins import SECOND, wash
from tests.scheduler_svc.core.test_prefix_cache import PAGES, letters, whole

ENDLESS = FakeModel(eos_token_ids=(), eos_every=0)


def talk(num_slots=160, **options):
    return Bench(N=num_slots, model=ENDLESS, **options)


def turn(bench, name, prompt, max_tokens=6, session="s", **fields):
    """One turn to its end; the conversation so far."""
    return [*prompt, *bench.ask(name, prompt, max_tokens, session=session, **fields)]


def listed(bench, tenant=None):
    return {view.name: view for view in bench.core.list_sessions(bench.now_ns, tenant)}


def close(bench, name, **fields):
    return bench.core.close_session(name, bench.now_ns, **fields)


def cached_after_a_wash(bench, so_far, tag="wash"):
    wash(bench, tag, num_prompts=6)
    bench.ask(f"{tag} asks", so_far + letters(3, seed=77), 1)
    return bench.cached[f"{tag} asks"]


# --- the tail ---------------------------------------------------------------------------------


@PAGES
def test_the_next_turn_finds_prompt_and_answer_although_others_need_the_pool(p):
    bench, so_far, loose = talk(p=p), letters(20), letters(20, seed=1)
    bench.ask("loose", loose, 6)
    for n in range(4):
        before = so_far
        so_far = turn(bench, f"turn{n}", so_far + letters(5, seed=n))
        if n:
            # The last token of an answer is known and not computed.
            assert bench.cached[f"turn{n}"] == whole(len(before) - 1, p)
        assert so_far[-6:] == bench.reference(so_far[:-6], 6)
        wash(bench, f"wash{n}", num_prompts=6)
    (view,) = listed(bench).values()
    assert (view.num_turns, view.hits) == (4, 3)
    assert view.num_tokens == view.kept_tokens == whole(len(so_far) - 1, p)
    assert bench.core.counters()["session_hits"] == 3
    bench.ask("again", loose, 1)
    assert bench.cached["again"] == 0


def test_a_session_keeps_its_newest_turn_alone():
    bench = talk()
    stem = letters(10)
    first = turn(bench, "first", stem + letters(30, seed=1))
    second = turn(bench, "second", stem + letters(30, seed=2))  # rewritten, as templates do
    assert cached_after_a_wash(bench, second, "b") == len(second) - 1
    bench.ask("old", [*first, 100], 1)
    assert bench.cached["old"] == len(stem)
    assert len(bench.core.list_pins(bench.now_ns)) == 0, "sessions are no pins of anybody's"


def test_of_several_the_least_recently_used_gives_way_first_and_from_its_tail():
    bench = talk(num_slots=128)
    for name in ("old", "new"):
        turn(bench, name, letters(40, seed=seed_of(name)), session=name)
    bench.ask("big", letters(60, seed=5), 4)
    views = listed(bench)
    assert views["new"].kept_tokens == views["new"].num_tokens == 45
    assert 0 < views["old"].kept_tokens < 45
    partly = views["old"].kept_tokens
    turn(bench, "returns", letters(40, seed=seed_of("old")), session="old")
    assert bench.cached["returns"] == min(partly, 39)


def seed_of(name):
    return sum(name.encode())


@PAGES
def test_a_tail_shorter_than_a_page_keeps_nothing_and_harms_nobody(p):
    bench = talk(p=p)
    turn(bench, "only", letters(1), 1)
    (view,) = listed(bench).values()
    assert view.num_tokens == view.kept_tokens == whole(1, p)


def test_a_turn_that_ends_at_once_is_a_turn():  # field case 96
    bench = Bench(model=FakeModel())
    prompt = [*letters(12), SCRIPT_TOKEN, GO_TOKEN]  # to be continued with nothing
    so_far = turn(bench, "empty", prompt)
    assert bench.endings["empty"].ending is Ending.STOP
    assert len(so_far) == len(prompt) + 1
    answer = bench.ask("next", so_far + letters(4), 5, session="s")
    assert answer == bench.reference(so_far + letters(4), 5)
    assert bench.cached["next"] >= len(prompt)
    assert listed(bench)["s"].num_turns == 2


def test_a_scored_prompt_alone_is_a_turn():
    bench, prompt = talk(), letters(30)
    bench.ask("scored", prompt, 0, session="s", sampling=SamplingParams(prompt_logprobs=0))
    assert cached_after_a_wash(bench, prompt) >= 29


# --- turns that do not come to their end -------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2])
def test_an_abandoned_turn_changes_neither_tail_nor_answers(depth):  # field case 57
    bench = talk(depth=depth)
    so_far = turn(bench, "kept", letters(20))
    bench.submit("abandoned", so_far + letters(3), 30, session="s")
    while len(bench.tokens["abandoned"]) < 4:
        bench.step()
    said = bench.tokens["abandoned"][:4]
    bench.cancel("abandoned")
    again = [*so_far, *letters(3), *said, 120]
    bench.submit("next", again, 6, session="s")  # at once, the plans of the other still in flight
    bench.run()
    assert bench.tokens["next"] == bench.reference(again, 6)
    assert listed(bench)["s"].num_turns == 2
    assert bench.endings["abandoned"].ending is Ending.CANCELLED


def test_a_turn_that_was_given_up_leaves_the_tail_before():
    bench = talk()
    so_far = turn(bench, "kept", letters(20))
    for name, fields in (("cancelled", {}), ("late", {"deadline_ns": bench.now_ns + 30_000})):
        bench.submit(name, so_far + letters(8, seed=seed_of(name)), 100, session="s", **fields)
        while bench.step():
            if name == "cancelled" and len(bench.tokens[name]) > 2:
                bench.cancel(name)
        assert bench.endings[name].ending in (Ending.CANCELLED, Ending.DEADLINE)
    view = listed(bench)["s"]
    assert (view.num_turns, view.num_tokens, view.kept_tokens) == (1, 25, 25)
    assert cached_after_a_wash(bench, so_far) == 25


def test_one_found_complete_by_its_reader_is_whole():
    bench, prompt = talk(), letters(20)
    bench.submit("stops", prompt, 50, session="s")
    while len(bench.tokens["stops"]) < 9:
        bench.step()
    bench.take(bench.core.cancel("stops", bench.now_ns, finished=True))
    so_far = [*prompt, *bench.tokens["stops"]]
    bench.run()
    assert cached_after_a_wash(bench, so_far) >= len(so_far) - 1


def test_one_cancelled_in_the_queue_leaves_nothing():  # field case 56
    bench = talk(r=1)
    bench.submit("running", letters(10), 20)
    bench.submit("queued", letters(10, seed=2), 20, session="s")
    bench.step()
    bench.cancel("queued")
    assert not listed(bench)
    so_far = turn(bench, "next", letters(10, seed=2))
    assert so_far[10:] == bench.reference(so_far[:10], 6)
    assert listed(bench)["s"].num_turns == 1


def test_one_that_is_complete_while_cut_back_keeps_what_is_cached():
    bench, prompt = talk(retraction_keep="all"), letters(20)
    bench.submit("cut", prompt, 50, session="s")
    while len(bench.tokens["cut"]) < 5:
        bench.step()
    bench.core.state.retract(bench.core.state.live["cut"])
    while bench.sent:
        bench.answer()
    assert bench.core.num_waiting == 1
    said = [*prompt, *bench.tokens["cut"]]
    bench.take(bench.core.cancel("cut", bench.now_ns, finished=True))
    assert cached_after_a_wash(bench, said) >= len(said) - 1


@pytest.mark.parametrize("keep", ["partial", "all", "none"])
def test_a_turn_that_is_cut_back_ends_as_any(keep):
    bench, prompt = talk(retraction_keep=keep), letters(20)
    bench.submit("cut", prompt, 20, session="s")
    while len(bench.tokens["cut"]) < 5:
        bench.step()
    bench.core.state.retract(bench.core.state.live["cut"])
    bench.run()
    assert bench.tokens["cut"] == bench.reference(prompt, 20)
    assert cached_after_a_wash(bench, [*prompt, *bench.tokens["cut"]]) == 39


# --- several at once ---------------------------------------------------------------------------


def test_of_two_live_turns_the_last_to_end_sets_the_tail():
    bench = talk(num_slots=200)
    bench.submit("long", letters(20, seed=1), 40, session="s")
    bench.submit("short", letters(20, seed=2), 4, session="s")
    bench.run()
    ended = list(bench.endings)
    assert ended == ["short", "long"]
    long, short = (letters(20, seed=n) + bench.tokens[ended[-n]] for n in (1, 2))
    assert cached_after_a_wash(bench, long) == 59
    bench.ask("other", [*short, 99], 1)
    assert bench.cached["other"] <= 1
    assert listed(bench)["s"].num_turns == 2


def test_as_many_sessions_as_may_be_and_the_oldest_is_forgotten():
    bench = talk(num_slots=400, max_sessions=3)
    tails = {}
    for n in range(4):
        tails[n] = turn(bench, f"turn{n}", letters(20, seed=n), session=f"s{n}")
        if n == 2:  # used again: now another one is the oldest
            tails[0] = turn(bench, "again", tails[0], session="s0")
    theirs = turn(bench, "theirs", letters(20, seed=9), session="s1", tenant="other")
    assert list(listed(bench)) == ["s2", "s0", "s3", "s1"]
    assert list(listed(bench, "other")) == ["s1"]
    wash(bench, "wash", num_prompts=12)
    kept = {}
    for n, so_far in tails.items():
        bench.ask(f"asks{n}", [*so_far, 99], 1)
        kept[n] = bench.cached[f"asks{n}"]
    assert kept == {0: 31, 1: 0, 2: 25, 3: 25}
    bench.ask("their", [*theirs, 99], 1, tenant="other")
    assert bench.cached["their"] == 25


# --- time, closing, and what takes everything ---------------------------------------------------


def test_each_turn_starts_the_time_anew():
    bench = talk(session_ttl_s=10.0)
    so_far = turn(bench, "first", letters(20))
    bench.now_ns += 7 * SECOND
    so_far = turn(bench, "second", so_far)
    bench.now_ns += 7 * SECOND
    assert listed(bench)["s"].expires_in_ns == pytest.approx(3 * SECOND, abs=SECOND / 100)
    assert cached_after_a_wash(bench, so_far, "a") == len(so_far) - 1
    bench.now_ns += 4 * SECOND
    assert not listed(bench)
    assert cached_after_a_wash(bench, so_far, "b") == 0


def test_a_turn_that_begins_keeps_its_session():
    bench = talk(session_ttl_s=10.0)
    so_far = turn(bench, "first", letters(20))
    bench.now_ns += 9 * SECOND
    bench.submit("abandoned", so_far, 50, session="s")
    bench.step()
    bench.now_ns += 9 * SECOND
    bench.cancel("abandoned")
    assert listed(bench)["s"].hits == 1


def test_sessions_expire_each_in_its_time():
    bench = talk(session_ttl_s=10.0)
    for n in range(3):
        turn(bench, f"turn{n}", letters(20, seed=n), session=f"s{n}", tenant=f"t{n % 2}")
        bench.now_ns += 3 * SECOND
    alive = []
    for _ in range(4):
        alive.append(sorted(listed(bench)))
        bench.now_ns += 3 * SECOND
    assert alive == [["s0", "s1", "s2"], ["s1", "s2"], ["s2"], []]
    assert bench.core.num_sessions == 0


def test_no_time_keeps_no_session():
    bench = talk(session_ttl_s=0.0)
    so_far = turn(bench, "turn", letters(20))
    assert not listed(bench)
    assert cached_after_a_wash(bench, so_far) == 0


def test_a_closed_session_keeps_nothing_and_may_begin_again():
    bench = talk()
    so_far = turn(bench, "turn", letters(20))
    assert close(bench, "s")
    assert not close(bench, "s")
    assert not listed(bench)
    assert cached_after_a_wash(bench, so_far) == 0
    turn(bench, "again", so_far)
    assert listed(bench)["s"].num_turns == 1


@pytest.mark.parametrize("when", ["queued", "running", "ended, its last plans in flight"])
def test_a_turn_whose_session_was_closed_leaves_no_tail(when):
    bench = talk(depth=2)
    bench.submit("turn", letters(20), 8, session="s")
    if when == "running":
        bench.step()
    elif when != "queued":
        while "turn" not in bench.endings:
            bench.schedule()
            bench.schedule()
            bench.answer()
            if len(bench.tokens["turn"]) == 3:
                bench.take(bench.core.cancel("turn", bench.now_ns, finished=True))
        assert bench.core.state.leaving
    assert close(bench, "s")
    bench.run()
    assert not listed(bench)
    assert not any(node.pins for node in bench.core.state.tree.nodes())


def test_nobody_reaches_anothers_session():
    bench = talk(num_slots=400, public_domains=("public",))
    where = [("a", ""), ("b", ""), ("a", "own"), ("a", "public"), ("b", "public")]
    for tenant, domain in where:
        turn(bench, f"{tenant}{domain}", letters(20), tenant=tenant, cache_domain=domain)
    assert bench.core.num_sessions == len(where)
    assert close(bench, "s", tenant="a", cache_domain="public")
    assert not close(bench, "s", tenant="c")
    assert close(bench, "s", tenant="b")
    left = [(view.tenant, view.cache_domain) for view in bench.core.list_sessions(bench.now_ns)]
    assert left == [("a", ""), ("a", "own"), ("b", "public")]
    assert close(bench, "s"), "of any tenant"
    assert bench.core.num_sessions == 2


def test_a_flush_and_a_lost_worker_leave_cold_sessions():
    bench = talk()
    so_far = turn(bench, "first", letters(20))
    for name, happen in (("flush", bench.core.flush), ("loss", bench.lose_worker)):
        happen()
        invariants.check(bench.core)
        view = listed(bench)["s"]
        assert (view.kept_tokens, view.hits) == (0, 0)
        so_far = turn(bench, name, so_far)
        assert bench.cached[name] == 0
        assert listed(bench)["s"].kept_tokens == len(so_far) - 1


def test_a_flush_while_a_turn_runs():
    bench, prompt = talk(), letters(20)
    bench.submit("turn", prompt, 8, session="s")
    while len(bench.tokens["turn"]) < 3:
        bench.step()
    bench.core.flush()
    bench.run()
    assert listed(bench)["s"].kept_tokens == 0
    answer = bench.ask("next", [*prompt, *bench.tokens["turn"]], 4, session="s")
    assert answer == bench.reference([*prompt, *bench.tokens["turn"]], 4)
    assert bench.cached["next"] == 0


@pytest.mark.parametrize("fields", [{"no_store": True}, {"preheat": True, "pin": PinLevel.SOFT}])
def test_what_leaves_no_tail_has_no_session(fields):
    bench = talk()
    bench.submit("refused", letters(20), 5, session="s", **fields)
    ending = bench.endings["refused"]
    assert (ending.ending, ending.field) == (Ending.REJECTED_INVALID, "session")
    assert bench.ask("next", letters(20), 5, session="s") == bench.reference(letters(20), 5)


def test_a_session_says_nothing_of_what_is_computed():
    plans = []
    for session in ("", "s"):
        bench = talk()
        for n in range(3):
            turn(bench, f"turn{n}", letters(20 + n), session=session)
        plans.append([(plan.input_ids, plan.out_slots) for plan in bench.plans])
    assert plans[0] == plans[1]
    assert plans[0][0][0] == array("i", letters(20)[: len(plans[0][0][0])])
