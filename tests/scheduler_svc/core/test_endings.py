"""Field cases of group F inside the core: cancel, deadlines, identity, worker loss."""

import random
from array import array

import pytest

from gpu_worker.fake_engine import FakeEngine
from protos.plan import BatchResult
from scheduler_svc.core import invariants
from scheduler_svc.core.messages import Ending, Submission
from tests.scheduler_svc.core.harness import Bench
from tests.scheduler_svc.core.test_prefix_cache import letters

DEPTHS = pytest.mark.parametrize("depth", [1, 2])

MOST_PASSES = 64


@DEPTHS
def test_cancelled_stream_frees_its_slots_within_one_step(depth):  # field case 52
    bench = Bench(N=4096, r=50, L=4000, depth=depth, max_batch_tokens=256, decode_reserve=0.0)
    for i in range(50):
        bench.submit(f"x{i}", letters(5, seed=i), 2000)
    while min(len(bench.tokens[f"x{i}"]) for i in range(50)) < 5:
        bench.step()
    for i in range(50):
        bench.cancel(f"x{i}")
    assert bench.core.num_running == 0
    while bench.sent:  # what was in flight is answered, nothing new is planned
        assert not bench.schedule()
        bench.answer()
    invariants.check_idle(bench.core)


def test_cancel_while_prefilling():  # field case 54
    bench = Bench(N=1024, c=8, L=600)
    bench.submit("x", letters(480), 5)
    for _ in range(3):
        bench.step()
    bench.cancel("x")
    num_plans = len(bench.plans)
    bench.run()
    assert len(bench.plans) == num_plans


def test_cancel_in_the_queue_computes_nothing():  # field case 56
    bench = Bench(r=1)
    bench.submit("a", letters(5), 10)
    bench.step()
    bench.submit("b", letters(9, seed=1), 10)
    bench.cancel("b")
    assert bench.endings["b"].ending is Ending.CANCELLED
    bench.submit("b", letters(7, seed=2), 3)  # the id is free at once
    bench.run()
    assert bench.tokens["b"] == bench.reference(letters(7, seed=2), 3)
    assert bench.core.counters()["computed_tokens"] == 5 + 9 + 7 + 2


@DEPTHS
def test_hits_of_those_who_leave_the_queue_can_be_evicted(depth):  # field case 61, in the pool
    bench = Bench(N=128, r=1, c=64, L=128, depth=depth, waiting_order="lpm")
    stem = letters(80)
    bench.ask("warm", stem, 1)
    bench.submit("busy", letters(4, seed=9), 8)
    bench.step()
    for i in range(10):
        bench.submit(f"x{i}", stem + letters(4, seed=20 + i), 4)
    bench.step()
    for i in range(10):
        bench.cancel(f"x{i}")
    bench.run()
    bench.ask("large", letters(110, seed=2), 4)  # nothing fits beside it but the stem's eviction
    assert bench.endings["large"].ending is Ending.LENGTH
    invariants.check_idle(bench.core)


def test_turn_after_an_abandoned_one():  # field case 57
    bench, prompt = Bench(), letters(12)
    bench.submit("turn", prompt, 50)
    while len(bench.tokens["turn"]) < 4:
        bench.step()
    bench.cancel("turn")
    again = prompt + bench.tokens["turn"][:4] + [120]
    assert bench.ask("next", again) == bench.reference(again)


@DEPTHS
def test_cancel_at_the_moment_of_completion(depth):  # field case 58
    bench, rng = Bench(depth=depth), random.Random(58)
    for i in range(200):
        name = f"x{i}"
        bench.submit(name, letters(5, seed=i % 9), 5)
        for _ in range(rng.randrange(9)):
            bench.step()
        bench.cancel(name)
        bench.cancel(name)  # twice
        assert bench.endings[name].ending in (Ending.CANCELLED, Ending.LENGTH)
        if i % 10 == 0:
            bench.run()
    assert bench.ask("alive", letters(5)) == bench.reference(letters(5))


def test_second_live_request_with_an_id_is_refused():  # field cases 59, 60
    bench = Bench()
    bench.submit("x", letters(5), 10)
    before = dict(bench.tokens)
    twin = Submission(request_id="x", prompt_ids=array("i", letters(3)), max_tokens=3)
    outputs = bench.core.submit(twin, 0)
    assert [output.ending for output in outputs] == [Ending.REJECTED_DUPLICATE_ID]
    bench.tokens = before
    bench.run()
    assert bench.tokens["x"] == bench.reference(letters(5), 10)
    assert bench.ask("x", letters(8, seed=3)) == bench.reference(letters(8, seed=3))


def test_deadline_in_the_queue_and_while_running():
    bench = Bench(r=1)
    bench.submit("runs", letters(5), 100, deadline_ns=20_000)
    bench.submit("waits", letters(5, seed=1), 5, deadline_ns=9_000)
    assert bench.core.next_deadline_ns() == 9_000
    bench.run()
    assert bench.endings["waits"].ending is Ending.DEADLINE
    assert bench.tokens["waits"] == []
    assert bench.endings["runs"].ending is Ending.DEADLINE
    said = bench.tokens["runs"]
    assert 0 < len(said) < 100
    assert said == bench.reference(letters(5), 100)[: len(said)]
    assert bench.core.next_deadline_ns() is None
    assert bench.core.counters()["expired"] == 2


@DEPTHS
def test_worker_lost_in_the_middle(depth):
    bench = Bench(N=128, r=20, depth=depth, max_batch_tokens=64)
    for i in range(20):
        bench.submit(f"x{i}", letters(6, seed=i), 30)
    for _ in range(3):
        for _ in range(7):
            bench.step()
        bench.lose_worker()
        invariants.check(bench.core)
        assert bench.core.num_running == 0
    bench.run()
    for i in range(20):
        assert bench.tokens[f"x{i}"] == bench.reference(letters(6, seed=i), 30)
    assert bench.core.counters()["worker_losses"] == 3


def test_no_plan_while_the_worker_is_away():
    bench = Bench()
    bench.submit("x", letters(5), 5, deadline_ns=10**9)
    bench.step()
    bench.sent.clear()
    bench.engine.reset()
    bench.take(bench.core.lose_worker(0))
    assert not bench.schedule()
    bench.take(bench.core.regain_worker(bench.engine.hello(), 0))
    bench.run()
    assert bench.tokens["x"] == bench.reference(letters(5), 5)


def test_stream_carried_over_from_another_scheduler():
    bench, prompt = Bench(), letters(9)
    wanted = bench.reference(prompt, 12)
    bench.submit("moved", prompt, 12, resume_output_ids=wanted[:5])
    bench.run()
    assert bench.tokens["moved"] == wanted[5:]
    bench.submit("over", prompt, 12, resume_output_ids=wanted)
    assert bench.endings["over"].ending is Ending.LENGTH


def test_result_that_answers_nothing_is_refused_unchanged():
    bench = Bench()
    bench.submit("x", letters(5), 5)
    bench.schedule()
    for step_id, tokens in ((7, [1]), (1, [1, 2]), (1, []), (1, [264]), (1, [-1])):
        with pytest.raises(ValueError, match=r"step|tokens"):
            bench.core.apply(BatchResult(step_id=step_id, token_ids=array("i", tokens)), 0)
        invariants.check(bench.core)
    bench.run()
    assert bench.tokens["x"] == bench.reference(letters(5), 5)


@pytest.mark.parametrize("p", [1, 4])
def test_preheat_warms_without_sampling(p):  # field case 138
    bench, prompt = Bench(p=p), letters(42)
    whole = 42 - 42 % p
    bench.ask("warm", prompt, 0, preheat=True)
    assert bench.endings["warm"].ending is Ending.PREHEATED
    assert bench.tokens["warm"] == []
    assert not any(any(plan.samples) for plan in bench.plans)
    num_plans = len(bench.plans)
    bench.ask("again", prompt, 0, preheat=True)
    assert (bench.cached["again"], len(bench.plans)) == (whole, num_plans)
    counters = bench.core.counters()
    assert counters["preheated_tokens"] == whole
    assert counters["prompt_tokens"] == counters["generated_tokens"] == 0
    longer = prompt + letters(3, seed=1)
    assert bench.ask("uses", longer) == bench.reference(longer)
    assert bench.cached["uses"] == whole


def test_a_running_preheat_does_not_delay_a_request():
    delays = []
    for preheats in (0, 1, 4):
        bench = Bench(N=16_384, c=32, r=4, L=3000, max_batch_tokens=32)
        for i in range(preheats):
            bench.submit(f"warm{i}", letters(2000, seed=i), 0, preheat=True)
        bench.step()
        bench.submit("asked", letters(60, seed=9), 1)
        num_plans = len(bench.plans)
        while "asked" not in bench.endings:
            bench.step()
        delays.append(len(bench.plans) - num_plans)
    assert max(delays) <= delays[0] + 2, delays


def test_a_running_preheat_yields_to_prompts_that_are_part_way():
    bench = Bench(N=16_384, c=32, r=4, L=3000, max_batch_tokens=64)
    bench.submit("warm", letters(2000, seed=3), 0, preheat=True)
    bench.step()
    for i in range(2):
        bench.submit(f"long{i}", letters(600, seed=i), 1)
    while len(bench.endings) < 2:
        bench.step()
    assert "warm" not in bench.endings
    # Both prompts share each step; the preheat gets what they leave, which is next to nothing.
    assert len(bench.plans) <= 600 / 32 + 6
    bench.run()


def test_evictions_are_counted_over_worker_losses():
    bench = Bench(N=40)
    for i in range(3):
        bench.ask(f"x{i}", letters(30, seed=i), 1)
    evicted = bench.core.counters()["evicted_tokens"]
    assert evicted > 0
    bench.lose_worker()
    assert bench.core.counters()["evicted_tokens"] == evicted
    for i in range(3):
        bench.ask(f"y{i}", letters(30, seed=i), 1)
    assert bench.core.counters()["evicted_tokens"] > evicted


def test_preheats_have_a_queue_limit_of_their_own():
    bench = Bench(r=1, max_waiting=3)
    for i in range(6):
        bench.submit(f"warm{i}", letters(30, seed=i), 0, preheat=True)
    refused = [n for n, o in bench.endings.items() if o.ending is Ending.REJECTED_QUEUE_FULL]
    assert refused == ["warm3", "warm4", "warm5"]
    assert bench.ask("asked", letters(5)) == bench.reference(letters(5))


def test_worker_that_comes_back_shorter():
    bench = Bench(N=256, L=256)
    bench.submit("long", letters(40), 100)
    bench.submit("half", letters(10, seed=1), 100)
    bench.submit("short", letters(4, seed=2), 12)
    while len(bench.tokens["half"]) < 5:
        bench.step()
    bench.sent.clear()
    bench.take(bench.core.lose_worker(0))
    bench.engine = FakeEngine(bench.model, num_slots=256, max_rows=4, max_length=32)
    bench.take(bench.core.regain_worker(bench.engine.hello(), 0))
    assert bench.endings["long"].ending is Ending.LENGTH
    assert "32" in bench.endings["long"].message
    bench.run()
    assert bench.tokens["half"] == bench.reference(letters(10, seed=1), 22)
    assert bench.tokens["short"] == bench.reference(letters(4, seed=2), 12)


def test_ended_requests_leave_the_deadlines():
    bench = Bench(r=1)
    bench.submit("live", letters(5), 200, deadline_ns=10**12)
    for i in range(1000):
        bench.submit(f"x{i}", letters(3), 5, deadline_ns=10**15)
        bench.cancel(f"x{i}")
    assert len(bench.core._deadlines) < 200


def test_preheats_run_behind_all_requests():
    bench = Bench(N=512, r=1)
    bench.submit("first", letters(5), 5)
    bench.step()
    bench.submit("warm", letters(40, seed=1), 0, preheat=True)
    bench.submit("second", letters(5, seed=2), 5)
    bench.run()
    assert bench.started == ["first", "second", "warm"]


def test_lpm_serves_a_cold_request_within_its_bound():  # field case 46
    bench, stem = Bench(N=512, r=2, c=16, waiting_order="lpm"), letters(40)
    bench.ask("warm", stem, 1)
    num_hot = 0
    bench.submit("cold", letters(10, seed=99), 3)
    while "cold" not in bench.endings:
        while bench.core.num_waiting < 7:
            bench.submit(f"hot{num_hot}", stem + letters(3, seed=num_hot), 4)
            num_hot += 1
        bench.step()
    assert MOST_PASSES / 2 < num_hot < MOST_PASSES + 16


def test_only_requests_that_start_count_as_hits():
    bench, stem = Bench(N=64, r=4), letters(30)
    bench.ask("first", stem, 1)
    bench.submit("big", letters(30, seed=1), 10)
    bench.step()
    bench.submit("waits", stem + letters(20, seed=2), 12)
    for _ in range(5):
        bench.step()
    views, _ = bench.core.dump_tree(100)
    assert bench.core.num_waiting == 1
    assert max(view.hits for view in views) == 0
    bench.run()
    views, _ = bench.core.dump_tree(100)
    assert max(view.hits for view in views) == 1


def test_hundreds_of_preheats_that_are_warm_already():
    bench, prompt = Bench(r=2), letters(8)
    bench.ask("first", prompt, 0, preheat=True)
    for i in range(300):
        bench.submit(f"w{i}", prompt, 0, preheat=True)
    bench.run()
    assert len(bench.endings) == 301


def test_lpm_admits_the_longest_prefix_first():  # field case 50
    bench = Bench(N=512, r=1, waiting_order="lpm")
    stem = letters(40)
    bench.ask("warm", stem)
    bench.started.clear()
    bench.submit("busy", letters(6, seed=9), 10)
    bench.step()
    bench.started.clear()
    for shared in (0, 10, 40, 5, 30, 20):
        bench.submit(f"s{shared}", stem[:shared] + letters(4, seed=shared + 1))
    bench.run()
    assert bench.started[-6:] == ["s40", "s30", "s20", "s10", "s5", "s0"]


def test_whoever_stops_on_a_text_has_finished():
    bench = Bench()
    bench.submit("x", letters(5), 50)
    for _ in range(4):
        bench.step()
    bench.take(bench.core.cancel("x", 0, finished=True))
    assert bench.endings["x"].ending is Ending.STOP
    bench.run()
    counters = bench.core.counters()
    assert (counters["finished"], counters["cancelled"]) == (1, 0)


@pytest.mark.parametrize(("p", "computed"), [(1, 40), (16, 32)])
def test_preheat_reports_whole_pages(p, computed):
    bench = Bench(p=p)
    for name, wanted in (("first", computed), ("again", 0)):
        bench.ask(name, letters(40), 0, preheat=True)
        assert bench.endings[name].computed_tokens == wanted
