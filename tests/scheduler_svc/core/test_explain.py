"""Explain: every reason to wait can be brought about, and is told with the right numbers."""

import pytest

from gpu_worker.fake_engine import FakeEngine
from scheduler_svc.core.config import TenantPolicy
from scheduler_svc.core.messages import Ending, PinLevel
from scheduler_svc.core.views import Phase, WaitingReason
from scheduler_svc.core.waiting_order import WAITING_ORDERS
from tests.scheduler_svc.core.harness import Bench
from tests.scheduler_svc.core.test_prefix_cache import letters


def why(bench, request_id, tenant=None):
    return bench.core.explain(request_id, bench.now_ns, tenant)


def counted(bench):
    """Those that wait, by reason; checked against each request's own reason."""
    core = bench.core
    by_reason = core.waiting_by_reason()
    assert list(by_reason) == [reason.name for reason in WaitingReason]
    assert sum(by_reason.values()) == core.num_waiting
    own = dict.fromkeys(by_reason, 0)
    views, left_out = core.list_requests(bench.now_ns, 1000)
    assert not left_out
    for view in views:
        if view.waiting_reason is not None:
            own[view.waiting_reason.name] += 1
    assert by_reason == own
    return {name: number for name, number in own.items() if number}


def reason_of(bench, request_id):
    found = why(bench, request_id)
    assert found.request.phase is Phase.WAITING
    assert found.summary.startswith(f"waits, place {found.rank} of {found.num_waiting}: ")
    assert found.num_waiting == bench.core.num_waiting
    return found.request.waiting_reason


# --- each reason ------------------------------------------------------------------------------


def test_no_row_and_behind_others():
    bench = Bench(r=2)
    for i in range(5):
        bench.submit(f"x{i}", letters(5, seed=i), 20)
    bench.step()
    bench.step()
    assert reason_of(bench, "x2") is WaitingReason.NO_ROW
    assert "all 2 rows are taken" in why(bench, "x2").summary
    assert reason_of(bench, "x4") is WaitingReason.BEHIND_OTHERS
    assert "2 requests come before it" in why(bench, "x4").summary
    assert counted(bench) == {"NO_ROW": 1, "BEHIND_OTHERS": 2}


@pytest.mark.parametrize("p", [1, 4])
def test_no_slots_with_the_numbers(p):
    bench = Bench(N=100, p=p, admission_estimate="worst_case", high_watermark=1.0)
    bench.submit("runs", letters(21), 40)  # 60 slots at its end
    for _ in range(6):
        bench.step()
    bench.submit("waits", letters(30, seed=1), 31)  # 60 slots
    bench.step()
    assert reason_of(bench, "waits") is WaitingReason.NO_SLOTS
    found, books = why(bench, "waits"), bench.core.slot_books()
    assert found.available_slots == books.free + books.evictable
    held = books.private + books.locked
    assert found.promised_slots == 60 - held
    assert found.needed_slots == 60 - held + 60
    assert f"{found.needed_slots} slots more, and {found.available_slots} can" in found.summary
    assert counted(bench) == {"NO_SLOTS": 1}
    (victim,) = found.victims
    assert victim.request_id == "runs"
    bench.run()


def test_what_is_cached_of_it_need_not_be_found():
    bench, stem = Bench(N=160, admission_estimate="worst_case", high_watermark=1.0), letters(40)
    bench.ask("warm", stem, 1)
    bench.submit("runs", letters(20, seed=1), 81)  # 100 slots; 40 are warm, and 20 free
    bench.step()
    bench.submit("waits", stem + letters(10, seed=2), 20)  # 69 slots, 40 of them warm
    bench.step()
    found = why(bench, "waits")
    assert found.matched_tokens == 40
    assert found.needed_slots - found.promised_slots == 29


def test_returning():
    bench = Bench(N=64, decode_reserve=0.0)
    for i in range(2):
        bench.submit(f"x{i}", letters(20, seed=i), 30)
    while not bench.core.counters()["retractions"]:
        bench.step()
    victim = next(r for r in bench.core.state.live.values() if r.num_retractions)
    if victim.request_id not in [v.request_id for v in bench.core.list_requests(0, 9)[0]]:
        pytest.fail("a request that is cut back is not listed")
    bench.submit("fresh", letters(5, seed=9), 5)
    while victim.state.name == "RETRACTING":
        assert why(bench, victim.request_id).request.phase is Phase.RETRACTING
        bench.step()
    bench.step()
    assert reason_of(bench, victim.request_id) is WaitingReason.RETURNING
    found = why(bench, victim.request_id)
    assert found.rank == 1
    assert f"{found.needed_slots} slots more, and {found.available_slots} can" in found.summary
    assert found.needed_slots > found.available_slots
    assert found.request.retractions == 1
    assert reason_of(bench, "fresh") is WaitingReason.BEHIND_OTHERS
    assert counted(bench) == {"RETURNING": 1, "BEHIND_OTHERS": 1}
    events = [event.name for event in found.history]
    assert events == ["submitted", "admitted", "retracted"]
    assert "progress" in found.history[-1].detail
    bench.run()


def test_twin():
    bench, stem = Bench(N=512, c=8), letters(64)
    bench.submit("leads", stem + letters(2, seed=1), 3)
    bench.step()
    bench.submit("follows", stem + letters(2, seed=2), 3)
    bench.schedule()
    assert reason_of(bench, "follows") is WaitingReason.TWIN
    assert "request leads computes a prefix that it shares" in why(bench, "follows").summary
    assert counted(bench) == {"TWIN": 1}
    bench.run()


def test_tenant_cap():
    tenants = {"small": TenantPolicy(most_share=0.25)}
    bench = Bench(N=128, tenants=tenants, decode_reserve=0.0)
    bench.submit("runs", letters(25), 5, tenant="small")
    bench.step()
    bench.submit("waits", letters(25, seed=1), 5, tenant="small")
    bench.submit("other", letters(25, seed=2), 5)
    bench.step()
    assert "other" in bench.started
    assert reason_of(bench, "waits") is WaitingReason.TENANT_CAP
    assert "its tenant holds as many slots as it may" in why(bench, "waits").summary
    assert counted(bench) == {"TENANT_CAP": 1}
    bench.run()


def test_no_budget():
    bench = Bench(N=512, c=8, max_batch_tokens=8)
    for i in range(3):
        bench.submit(f"x{i}", letters(30, seed=i), 3)
    bench.step()
    assert reason_of(bench, "x1") is WaitingReason.NO_BUDGET
    assert "the step before was full" in why(bench, "x1").summary
    assert reason_of(bench, "x2") is WaitingReason.BEHIND_OTHERS
    assert counted(bench) == {"NO_BUDGET": 1, "BEHIND_OTHERS": 1}


def test_preheat():
    bench = Bench(N=512, r=2)
    bench.submit("runs", letters(5), 30)
    bench.step()
    for i in range(3):
        bench.submit(f"warm{i}", letters(40, seed=i), 0, preheat=True)
    bench.step()
    assert reason_of(bench, "warm2") is WaitingReason.PREHEAT
    assert "preheats run when nobody else waits" in why(bench, "warm2").summary
    assert counted(bench) == {"PREHEAT": 3}
    views, _ = bench.core.list_requests(bench.now_ns, 10)
    assert [view.preheat for view in views] == [False, True, True, True]


def test_no_worker():
    bench = Bench(r=2)
    for i in range(4):
        bench.submit(f"x{i}", letters(5, seed=i), 20)
    for _ in range(4):
        bench.step()
    bench.sent.clear()
    bench.take(bench.core.lose_worker(bench.now_ns))
    for i in range(4):
        assert reason_of(bench, f"x{i}") is WaitingReason.NO_WORKER
    assert counted(bench) == {"NO_WORKER": 4}
    assert why(bench, "x0").history[-1].name == "worker_lost"
    bench.engine.reset()
    bench.take(bench.core.regain_worker(bench.engine.hello(), bench.now_ns))
    counted(bench)
    bench.step()
    counted(bench)
    bench.run()


def test_reasons_agree_when_fewer_rows_come_back():
    bench = Bench(r=2)
    for i in range(4):
        bench.submit(f"x{i}", letters(5, seed=i), 20)
    for _ in range(4):
        bench.step()
    bench.engine = FakeEngine(bench.model, num_slots=256, max_rows=1, max_length=256)
    bench.lose_worker()
    for _ in range(3):
        bench.step()
        assert sum(counted(bench).values()) == 3
    bench.run()


def test_reasons_agree_for_a_preheat_that_does_not_fit():
    bench = Bench(N=64, admission_estimate="worst_case")
    bench.submit("runs", letters(20), 30)
    for _ in range(4):
        bench.step()
    bench.submit("warm", letters(40, seed=1), 0, preheat=True)
    bench.step()
    assert reason_of(bench, "warm") in (WaitingReason.NO_SLOTS, WaitingReason.PREHEAT)
    counted(bench)
    bench.run()


# --- those that do not wait -------------------------------------------------------------------


def test_those_that_run_say_how_far_they_are():
    bench = Bench(N=512, c=8)
    bench.submit("reads", letters(60), 9, priority=3, workload="own", deadline_ns=10**15)
    bench.step()
    found = why(bench, "reads")
    assert found.request.phase is Phase.PREFILL
    computed = bench.core.state.live["reads"].num_computed
    assert found.summary == f"computes its prompt: {computed} of 60 tokens"
    assert (found.rank, found.needed_slots) == (0, 0)
    view = found.request
    assert (view.priority, view.workload, view.prompt_tokens) == (3, "own", 60)
    assert view.deadline_in_ns == 10**15 - bench.now_ns
    assert view.age_ns == bench.now_ns
    while len(bench.tokens["reads"]) < 4:
        bench.step()
    found = why(bench, "reads")
    assert found.request.phase is Phase.DECODE
    assert found.summary == "generates: 4 of at most 9 tokens"
    assert found.request.slots == len(bench.core.state.live["reads"].pages)
    bench.run()


def test_the_ended_are_remembered_for_a_while():
    bench = Bench(N=256, r=4)
    bench.submit("whole", letters(5), 3, client_request_id="job", tenant="t")
    bench.submit("left", letters(5, seed=1), 30)
    bench.submit("late", letters(5, seed=2), 200, deadline_ns=12_000)
    for _ in range(3):
        bench.step()
    bench.cancel("left")
    bench.now_ns += 2000
    bench.run()
    found = why(bench, "job")
    assert (found.ending, found.request.phase) == ("LENGTH", Phase.ENDED)
    assert (found.request.request_id, found.request.output_tokens) == ("job", 3)
    assert found.request.cached_tokens == 0
    assert [event.name for event in found.history] == ["submitted", "admitted", "ended"]
    assert why(bench, "left").ending == "CANCELLED"
    late = why(bench, "late")
    assert late.ending == "DEADLINE"
    assert f"deadline passed after {late.request.output_tokens} tokens" in late.summary
    assert why(bench, "nobody") is None
    for i in range(600):
        bench.submit(f"y{i}", letters(3), 1)
        bench.cancel(f"y{i}")
    assert why(bench, "whole") is None
    assert why(bench, "y599").ending == "CANCELLED"
    assert len(bench.core.state.ended._ended) <= 512


def test_the_last_use_of_a_name_is_meant():
    bench = Bench()
    bench.ask("x", letters(5), 2)
    bench.submit("x", letters(6), 9)
    assert why(bench, "x").request.prompt_tokens == 6
    bench.cancel("x")
    assert why(bench, "x").ending == Ending.CANCELLED.name


@pytest.mark.parametrize("ended", [False, True])
def test_a_tenant_is_told_of_its_own_alone(ended):
    bench = Bench(r=1)
    for tenant in ("a", "b"):
        bench.submit(f"{tenant}-1", letters(5), 9, tenant=tenant, client_request_id="job")
        if ended:
            bench.run()
    for tenant in ("a", "b"):
        assert why(bench, f"{tenant}-1", tenant).request.tenant == tenant
        found = why(bench, "job", tenant)
        assert found is not None, "another tenant's request of that name hides its own"
        assert found.request.tenant == tenant
    assert why(bench, "a-1", "b") is None
    assert why(bench, "job", "c") is None
    views, left_out = bench.core.list_requests(bench.now_ns, 10, "b")
    assert [view.tenant for view in views] == ([] if ended else ["b"])
    assert not left_out


def test_a_list_says_how_many_it_leaves_out():
    bench = Bench(r=2)
    for i in range(7):
        bench.submit(f"x{i}", letters(5, seed=i), 9, tenant="ab"[i % 2])
    bench.step()
    bench.step()
    views, left_out = bench.core.list_requests(bench.now_ns, 4)
    assert [view.request_id for view in views] == ["x0", "x1", "x2", "x3"]
    assert left_out == 3
    views, left_out = bench.core.list_requests(bench.now_ns, 1, "b")
    assert ([view.request_id for view in views], left_out) == (["x1"], 2)


def test_the_history_keeps_what_matters_of_a_long_wait():
    bench, stem = Bench(N=1024, c=4, L=900), letters(400)
    bench.submit("leads", stem + letters(2, seed=1), 3)
    bench.step()
    bench.submit("follows", stem + letters(2, seed=2), 3)
    bench.run()
    names = [event.name for event in why(bench, "follows").history]
    assert names.count("twin_held") == 1, "it waited for one twin, once"


# --- ranks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", WAITING_ORDERS)
def test_ranks_are_the_order_of_admission(order):
    """The row table is the only limit, so nothing but the order decides who starts."""
    fields = {"waiting_order": order, "policy_seed": 5, "public_domains": ("all",)}
    bench, stem = Bench(N=2048, c=64, r=1, weight_age=0.0, **fields), letters(40)
    bench.ask("warm", stem + letters(20, seed=50), 1, cache_domain="all")
    bench.submit("busy", letters(6, seed=60), 40)
    bench.step()
    for i, (shared, own, most, priority) in enumerate(
        [(0, 30, 5, 0), (40, 9, 3, 1), (20, 50, 9, 5), (0, 4, 2, 2), (40, 30, 30, 0), (7, 7, 7, 3)]
    ):
        bench.submit(
            f"x{i}",
            stem[:shared] + letters(own, seed=70 + i),
            most,
            priority=priority,
            tenant="abc"[i % 3],
            cache_domain="all",
        )
    bench.step()
    while bench.core.num_waiting:
        views, _ = bench.core.list_requests(bench.now_ns, 99)
        waiting = [view.request_id for view in views if view.phase is Phase.WAITING]
        ranks = {name: why(bench, name).rank for name in waiting}
        assert sorted(ranks.values()) == list(range(1, len(waiting) + 1))
        num_started = len(bench.started)
        while len(bench.started) == num_started:
            bench.step()
        assert len(bench.started) == num_started + 1
        assert ranks[bench.started[-1]] == 1, (order, ranks, bench.started)
    bench.run()


def test_preheats_rank_behind_all_requests():
    bench = Bench(r=1)
    bench.submit("busy", letters(5), 30)
    bench.step()
    bench.submit("warm", letters(20, seed=1), 0, preheat=True, pin=PinLevel.SOFT)
    bench.submit("asks", letters(20, seed=2), 3)
    bench.step()
    assert (why(bench, "asks").rank, why(bench, "warm").rank) == (1, 2)
    counted(bench)
