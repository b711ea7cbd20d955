"""Deadlines: what cannot be met is not begun, what is hit ends with what there is."""

import pytest

from scheduler_svc.core.messages import Ending
from tests.scheduler_svc.core.harness import Bench
from tests.scheduler_svc.core.test_prefix_cache import letters
from tests.scheduler_svc.core.timed_engine import MS, use_timed_engine

DEPTHS = pytest.mark.parametrize("depth", [1, 2])


def trained(depth=1, *, c=64, **config):
    """A bench that has learned what a prompt token takes: one millisecond."""
    bench = Bench(N=1024, L=600, c=c, depth=depth, **config)
    use_timed_engine(bench, base_ns=MS // 10, per_token_ns=MS)
    for i, length in enumerate((30, 40, 50, 20, 60)):
        bench.ask(f"learn{i}", letters(length, seed=900 + i), 6)
    bench.core.flush()
    return bench


def deadline(bench, milliseconds):
    return bench.now_ns + milliseconds * MS


def computed(bench):
    return bench.core.counters()["computed_tokens"]


def test_infeasible_at_the_door_is_never_computed():
    bench = trained()
    before = computed(bench)
    bench.submit("late", letters(200), 5, deadline_ns=deadline(bench, 150))
    output = bench.endings["late"]
    assert (output.ending, list(output.token_ids)) == (Ending.DEADLINE, [])
    assert "150 ms" in output.message
    (needed,) = [int(word) for word in output.message.split() if word.isdigit() and word != "150"]
    assert needed == pytest.approx(200, rel=0.1)
    bench.run()
    assert computed(bench) == before
    bench.submit("in time", letters(200), 5, deadline_ns=deadline(bench, 250))
    bench.run()
    assert bench.endings["in time"].ending is Ending.LENGTH


def test_what_is_cached_makes_a_deadline_feasible():
    bench, prompt = trained(), letters(200)
    bench.ask("warm", prompt[:180], 1)
    bench.submit("warm too", prompt, 5, deadline_ns=deadline(bench, 50))
    bench.run()
    assert bench.endings["warm too"].ending is Ending.LENGTH
    assert bench.cached["warm too"] == 180


def test_nothing_is_refused_before_anything_is_known():
    bench = Bench(N=1024, L=600)
    use_timed_engine(bench, per_token_ns=MS)
    bench.submit("x", letters(200), 5, deadline_ns=deadline(bench, 1))
    assert "x" not in bench.endings
    bench.run()
    assert bench.endings["x"].ending is Ending.LENGTH, "its clock did not run"


@DEPTHS
def test_infeasible_by_the_time_of_its_admission_is_never_computed(depth):
    bench = trained(depth, r=1)
    bench.submit("busy", letters(5, seed=7), 20)
    bench.step()
    bench.submit("waits", letters(100), 5, deadline_ns=deadline(bench, 130))
    bench.submit("behind", letters(8, seed=8), 3)
    assert "waits" not in bench.endings, "it would fit if it began now"
    for _ in range(6):
        bench.step()
    bench.now_ns += 60 * MS
    bench.run()
    assert bench.endings["waits"].ending is Ending.DEADLINE
    assert "70 ms" in bench.endings["waits"].message or "69 ms" in bench.endings["waits"].message
    assert "waits" not in bench.started
    assert bench.tokens["behind"] == bench.reference(letters(8, seed=8), 3)
    assert bench.core.counters()["expired"] == 1


@DEPTHS
def test_hit_in_the_middle_ends_with_what_there_is(depth):
    bench, prompt = trained(depth), letters(20)
    bench.submit("x", prompt, 300, deadline_ns=deadline(bench, 1000))
    while len(bench.tokens["x"]) < 7:
        bench.step()
    bench.now_ns += 1000 * MS
    bench.step()
    output = bench.endings["x"]
    assert output.ending is Ending.DEADLINE
    num_told = len(bench.tokens["x"])
    assert f"after {num_told} tokens" in output.message
    assert 7 <= num_told < 300
    assert bench.tokens["x"] == bench.reference(prompt, 300)[:num_told]
    bench.run()


@DEPTHS
def test_hit_while_the_prompt_is_computed(depth):
    bench = trained(depth, c=16)
    bench.submit("x", letters(100), 5, deadline_ns=deadline(bench, 1000))
    bench.step()
    bench.now_ns += 1001 * MS
    bench.step()
    assert bench.endings["x"].ending is Ending.DEADLINE
    assert bench.tokens["x"] == []
    bench.run()
    before = computed(bench)
    bench.ask("again", letters(100), 1)
    assert bench.cached["again"] > 0, "what was computed of it serves others"
    assert computed(bench) - before == 100 - bench.cached["again"]


def test_a_deadline_that_passed_already_is_refused_at_once():
    bench = trained()
    bench.now_ns += 50 * MS
    bench.submit("x", letters(5), 5, deadline_ns=bench.now_ns - MS)
    assert bench.endings["x"].ending is Ending.DEADLINE
    bench.run()


def test_whoever_was_served_already_is_not_refused_for_want_of_time():
    """A stream that moved here, or was cut back, has a reader: it goes on while there is time."""
    bench, prompt = trained(), letters(200)
    wanted = bench.reference(prompt, 20)
    bench.submit(
        "moved", prompt, 20, resume_output_ids=wanted[:5], deadline_ns=deadline(bench, 100)
    )
    assert "moved" not in bench.endings
    bench.run()
    assert bench.tokens["moved"] == wanted[5:]


def test_a_twin_that_waits_for_another_is_ended_in_time():
    bench, stem = trained(2, c=16), letters(200)
    bench.submit("leads", stem, 3)
    bench.schedule()
    bench.submit("follows", [*stem, 33], 3, deadline_ns=deadline(bench, 1000))
    bench.schedule()
    assert bench.core.state.waiting.leader_of(bench.core.state.live["follows"]) == "leads"
    bench.now_ns += 1000 * MS
    bench.step()
    assert bench.endings["follows"].ending is Ending.DEADLINE
    bench.run()
    assert bench.tokens["leads"] == bench.reference(stem, 3)


@DEPTHS
def test_the_loop_is_told_when_to_look_next(depth):
    bench = trained(depth)
    assert bench.core.next_deadline_ns() is None
    late, soon = deadline(bench, 900), deadline(bench, 300)
    bench.submit("late", letters(5), 200, deadline_ns=late)
    bench.submit("soon", letters(5, seed=1), 200, deadline_ns=soon)
    assert bench.core.next_deadline_ns() == soon
    bench.cancel("soon")
    assert bench.core.next_deadline_ns() == late
    bench.now_ns = late
    bench.step()
    assert bench.core.next_deadline_ns() is None
    bench.run()


def test_a_preheat_has_a_deadline_too():
    bench = trained(r=1)
    bench.submit("busy", letters(5, seed=7), 30)
    bench.step()
    bench.submit("warm", letters(100), 0, preheat=True, deadline_ns=deadline(bench, 200))
    bench.submit("never", letters(100, seed=1), 0, preheat=True, deadline_ns=deadline(bench, 50))
    assert bench.endings["never"].ending is Ending.DEADLINE
    bench.now_ns += 150 * MS
    bench.run()
    assert bench.endings["warm"].ending is Ending.DEADLINE
    assert bench.endings["warm"].pin is None


def test_a_machine_that_is_quick_again_is_given_a_chance():
    bench = trained()
    bench.submit("refused", letters(200), 5, deadline_ns=deadline(bench, 100))
    assert bench.endings["refused"].ending is Ending.DEADLINE
    bench.engine.per_token_ns = MS // 100
    bench.now_ns += 11_000 * MS  # nothing was learned for so long
    bench.submit("tried", letters(200), 5, deadline_ns=deadline(bench, 100))
    bench.run()
    assert bench.endings["tried"].ending is Ending.LENGTH


def test_another_worker_is_another_machine():
    bench = trained()
    bench.lose_worker()
    bench.engine.per_token_ns = MS // 100
    bench.submit("tried", letters(200), 5, deadline_ns=deadline(bench, 100))
    bench.run()
    assert bench.endings["tried"].ending is Ending.LENGTH
