"""What must not grow with the days, and what must not slow down with the crowd.

Counted in entries and looks, never in seconds.
"""

from scheduler_svc.core import explain
from scheduler_svc.core.admitter import MOST_HELD_A_STEP
from scheduler_svc.core.messages import Ending, PinLevel
from scheduler_svc.core.tenant_ledger import MOST_TENANTS
from scheduler_svc.core.views import WaitingReason
from scheduler_svc.core.waiting_queue import WaitingQueue
from tests.scheduler_svc.core.harness import OK_ENDINGS, Bench
from tests.scheduler_svc.core.test_prefix_cache import letters


def warm(bench, name, prompt, **fields):
    bench.submit(name, prompt, 0, preheat=True, **fields)
    bench.run()
    return bench.endings[name].pin


def test_pins_that_come_and_go_leave_nothing():
    bench, prompt = Bench(N=256), letters(20)
    for number in range(3000):
        pin = warm(bench, f"p{number}", prompt, pin=PinLevel.SOFT)
        assert bench.core.unpin([pin.pin_id], bench.now_ns) == ([pin.pin_id], [])
    assert len(bench.core.state.tree._queue) <= 2048
    assert bench.core.num_tree_nodes <= 4


def test_retractions_leave_nothing():
    bench = Bench(N=400, r=4)
    bench.submit("x", letters(20), 200)
    while not bench.tokens["x"]:
        bench.step()
    for _ in range(2500):
        if bench.core.state.decoding:
            bench.core.state.retract(next(iter(bench.core.state.decoding.values())))
        bench.schedule()
        bench.answer()
        if bench.endings:
            bench.submit("x", letters(20), 200)
    bench.run()
    assert len(bench.core.state.tree._queue) <= 2048


def test_clients_that_come_and_go_while_the_worker_is_away_leave_nothing():
    bench = Bench(waiting_order="adaptive")
    bench.take(bench.core.lose_worker(0))
    for number in range(3000):
        bench.submit(f"x{number}", letters(10), 5)
        bench.cancel(f"x{number}")
    assert len(bench.core.state.waiting._index._new) <= 128
    bench.take(bench.core.regain_worker(bench.engine.hello(), 0))
    assert bench.ask("after", letters(10)) == bench.reference(letters(10))


def test_tenants_that_come_and_go_leave_nothing():
    bench = Bench(max_waiting=5000)
    for number in range(3000):
        bench.submit(f"x{number}", letters(10), 5, tenant=f"t{number}")
        bench.cancel(f"x{number}")
    ledger = bench.core.state.ledger
    assert len(ledger._service) <= 20 * MOST_TENANTS
    assert not ledger._num_live


def test_a_thousand_twins_are_not_looked_at_in_every_step(monkeypatch):
    num_released = 0
    release = WaitingQueue.release_held

    def counting(queue, leader_id, num_computed=None):
        nonlocal num_released
        before = len(queue._leaders)
        release(queue, leader_id, num_computed)
        num_released += before - len(queue._leaders)

    monkeypatch.setattr(WaitingQueue, "release_held", counting)
    bench = Bench(N=4096, r=2, L=1024, c=8, max_waiting=2000)
    stem = letters(200)
    bench.submit("leader", stem, 2)
    bench.step()
    for number in range(600):
        bench.submit(f"x{number}", stem + letters(3, seed=number), 1)
    for _ in range(600 // MOST_HELD_A_STEP + 2):
        bench.step()
    state = bench.core.state
    assert len(state.waiting._leaders) == 600, "all wait for the leader"
    num_released = 0
    while state.live["leader"].num_acked < 150:
        bench.step()
    assert not num_released, "the chunks of the leader disturb nobody who needs more of it"
    bench.run()
    assert all(output.ending in OK_ENDINGS for output in bench.endings.values())
    assert max(bench.cached[f"x{number}"] for number in range(600)) >= 199


def test_a_list_ranks_the_queue_once(monkeypatch):
    bench = Bench(r=1, max_waiting=400, waiting_order="lof")
    for number in range(300):
        bench.submit(f"x{number}", letters(5, seed=number), 1 + number % 50)
    bench.step()
    num_ranks = 0
    rank = WaitingQueue.rank

    def counting(queue, request, facts):
        nonlocal num_ranks
        num_ranks += 1
        return rank(queue, request, facts)

    monkeypatch.setattr(WaitingQueue, "rank", counting)
    views, _ = explain.list_requests(bench.core.state, 1000, None, True)
    assert num_ranks == 0
    lacking = [view for view in views if view.waiting_reason is WaitingReason.NO_ROW]
    assert [view.request_id for view in lacking] == ["x99"], "x49, as long, runs"


def test_a_flood_of_one_tenant_does_not_close_the_door():
    bench = Bench(r=1, max_waiting=50)
    for number in range(60):
        bench.submit(f"a{number}", letters(5, seed=number), 5, tenant="a")
    refused = [name for name in bench.endings if name.startswith("a")]
    assert len(refused) >= 9
    assert bench.endings[refused[0]].ending is Ending.REJECTED_QUEUE_FULL
    for number in range(10):
        bench.submit(f"b{number}", letters(5, seed=number), 5, tenant="b")
    assert not [name for name in bench.endings if name.startswith("b")]
    for number in range(200):
        bench.submit(f"c{number}", letters(5, seed=number), 5, tenant=f"c{number}")
    assert bench.core.num_waiting <= 100, "twice the limit is the end, whoever asks"
    bench.run()


def test_one_tenant_cannot_take_all_pins(monkeypatch):
    monkeypatch.setattr("scheduler_svc.core.pins.MOST_PINS_OF_ONE", 3)
    bench = Bench(N=256)
    pins = [
        warm(bench, f"p{n}", letters(4, seed=n), pin=PinLevel.SOFT, tenant="a") for n in range(5)
    ]
    assert [bool(pin.pin_id) for pin in pins] == [True, True, True, False, False]
    assert "3 pins" in pins[-1].message
    assert warm(bench, "other", letters(9), pin=PinLevel.HARD, tenant="b").num_tokens == 9


def test_asking_for_exactly_the_pinned_prompt_keeps_its_pin():
    bench, prompt = Bench(N=256), letters(20)
    pin = warm(bench, "p", prompt, pin=PinLevel.HARD, pin_ttl_ns=1_000_000)
    for number in range(20):
        bench.now_ns += 500_000
        bench.ask(f"x{number}", prompt, 2)
    (view,) = bench.core.list_pins(bench.now_ns)
    assert view.pin_id == pin.pin_id
    assert view.hits == 20


def test_what_was_seen_in_the_old_tree_is_not_believed_of_the_new_one():
    bench, prompt = Bench(N=256, r=1), letters(60)
    bench.ask("warm", prompt, 1)
    bench.submit("runs", letters(5, seed=9), 60)
    bench.step()
    bench.submit("waits", prompt, 1)
    bench.step()
    core = bench.core
    assert core.explain("waits", bench.now_ns).matched_tokens == 59
    seen = core.state.tree.version
    bench.lose_worker()
    core.state.tree.version = seen
    assert core.explain("waits", bench.now_ns).matched_tokens == 0
    bench.run()


def test_a_longer_worker_gives_back_what_a_shorter_one_cut():
    bench, prompt = Bench(r=1, L=200), letters(10)
    bench.submit("x", prompt, 100)
    bench.step()
    for length in (50, 200):
        bench.engine = type(bench.engine)(bench.model, num_slots=256, max_rows=1, max_length=length)
        bench.lose_worker()
    bench.run()
    assert bench.tokens["x"] == bench.reference(prompt, 100)
