"""Chunks by workload class, several prompts part-way at once, and the balance with decoding."""

import pytest

from scheduler_svc.core.config import SchedulerConfig, TenantPolicy
from scheduler_svc.core.step_time import MIN_PREFILL_TOKENS
from tests.scheduler_svc.core.harness import Bench
from tests.scheduler_svc.core.test_prefix_cache import letters
from tests.scheduler_svc.core.timed_engine import MS, use_timed_engine

DEPTHS = pytest.mark.parametrize("depth", [1, 2])
SIZES = {"chat": 4, "code": 8, "own": 6}


# --- classes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workload", "lens"),
    [
        ("chat", [4, 4, 4, 4, 4]),
        ("code", [8, 8, 4]),
        ("own", [6, 6, 6, 2]),
        ("", [10, 10]),
        ("nobody knows it", [10, 10]),
    ],
)
def test_a_class_has_chunks_of_its_own(workload, lens):
    bench = Bench(c=10, chunk_sizes=SIZES)
    said = bench.ask("x", letters(20), 1, workload=workload)
    assert [list(plan.extend_lens) for plan in bench.plans] == [[n] for n in lens]
    assert said == bench.reference(letters(20), 1)


def test_the_classes_there_are():
    sizes = SchedulerConfig().chunk_sizes
    assert dict(sizes) == {"chat": 512, "code": 1024, "longform": 2048}
    bench = Bench(N=4096, L=3000, c=256, chunk_sizes=sizes, max_batch_tokens=4096)
    for i, workload in enumerate(["chat", "code", "longform", ""]):
        first = len(bench.plans)
        bench.ask(workload or "none", letters(2100, seed=i), 1, workload=workload)
        assert bench.plans[first].extend_lens[0] == sizes.get(workload, 256)


def test_a_class_never_exceeds_the_step():
    bench = Bench(c=10, chunk_sizes={"code": 4096}, max_batch_tokens=16)
    bench.ask("x", letters(40), 1, workload="code")
    assert [plan.extend_lens[0] for plan in bench.plans] == [16, 16, 8]


def test_classes_change_while_a_prompt_is_part_way():
    bench, prompt = Bench(N=512, c=10, depth=1, chunk_sizes=SIZES), letters(90)
    bench.submit("x", prompt, 2, workload="chat")
    bench.step()
    bench.core.set_policy({"chunk_sizes": {"chat": 16, "new": 12}})
    bench.step()
    bench.core.set_policy({"chunk_sizes": {"chat": 0}})
    bench.step()
    assert [plan.extend_lens[0] for plan in bench.plans] == [4, 16, 10]
    assert dict(bench.core.config.chunk_sizes) == {"code": 8, "own": 6, "new": 12}
    bench.run()
    assert bench.tokens["x"] == bench.reference(prompt, 2)
    first = len(bench.plans)
    bench.ask("y", letters(30, seed=1), 1, workload="new")
    assert bench.plans[first].extend_lens[0] == 12


# --- several at once --------------------------------------------------------------------------


@DEPTHS
@pytest.mark.parametrize("p", [1, 4, 16])
def test_several_prompts_are_part_way_at_once(p, depth):
    bench = Bench(N=2048, p=p, c=8, r=4, depth=depth, L=600, chunk_sizes=SIZES)
    prompts = {w: letters(200, seed=i) for i, w in enumerate(["chat", "code", "own", ""])}
    for workload, prompt in prompts.items():
        bench.submit(workload or "none", prompt, 5, workload=workload)
    bench.step()
    rows = {r.request_id: r.row for r in bench.core.state.running.values()}
    assert len(rows) == 4
    for plan in bench.plans:
        got = dict(zip(plan.rows, plan.extend_lens, strict=True))
        assert {name: got[row] for name, row in rows.items()} == {
            "chat": 4,
            "code": 8,
            "own": 6,
            "none": 8,
        }
    bench.run()
    for workload, prompt in prompts.items():
        assert bench.tokens[workload or "none"] == bench.reference(prompt, 5)


def test_the_oldest_advances_and_then_the_shortest():
    bench = Bench(N=2048, c=16, r=4, depth=1, L=600, max_batch_tokens=32)
    for name, length in (("old", 300), ("long", 200), ("short", 40)):
        bench.submit(name, letters(length, seed=length), 1)
    ended = []
    while bench.step():
        ended += [name for name in bench.endings if name not in ended]
        if "old" not in bench.endings and bench.core.num_running:
            assert max(bench.plans[-1].extend_lens) <= 16
            row = bench.core.state.live["old"].row
            assert row in bench.plans[-1].rows, "the oldest always advances"
    assert ended == ["short", "old", "long"] or ended == ["short", "long", "old"]
    assert ended[0] == "short"


# --- the balance with decoding ----------------------------------------------------------------


def long_prompt_beside_a_stream(num_tokens=480, **config):
    """(steps the prompt took, plans while both ran)."""
    bench = Bench(N=2048, r=4, L=900, depth=1, **config)
    bench.submit("stream", letters(5), 300)
    for _ in range(3):
        bench.step()
    first = len(bench.plans)
    bench.submit("long", letters(num_tokens, seed=1), 1)
    while "long" not in bench.endings:
        bench.step()
    plans = bench.plans[first:]
    said = bench.tokens["stream"]
    assert said == bench.reference(letters(5), 300)[: len(said)]
    assert all(1 in plan.extend_lens for plan in plans), "the stream has its token in every step"
    return len(plans), plans


def test_prefill_share_is_a_knob_with_a_measured_effect():
    steps, largest = {}, {}
    for share in (1.0, 0.5, 0.25, 0.125):
        steps[share], plans = long_prompt_beside_a_stream(
            c=64, max_batch_tokens=64, prefill_share=share
        )
        largest[share] = max(sum(plan.extend_lens) for plan in plans)
    assert steps == {1.0: 8, 0.5: 15, 0.25: 30, 0.125: 60}
    assert largest == {1.0: 64, 0.5: 33, 0.25: 17, 0.125: 9}


def test_alone_a_prompt_may_take_all_of_a_step():
    bench = Bench(N=512, c=64, max_batch_tokens=64, prefill_share=0.125)
    bench.ask("x", letters(128), 1)
    assert [list(plan.extend_lens) for plan in bench.plans] == [[64], [64]]


def test_prompts_advance_however_small_their_share():
    knobs = {"c": 8, "max_batch_tokens": 16, "prefill_share": 0.001}
    steps, plans = long_prompt_beside_a_stream(100, **knobs)
    assert steps == 100
    assert {sum(plan.extend_lens) for plan in plans} == {2}


# --- the ITL target ---------------------------------------------------------------------------


def timed_bench(target_ms, per_token_ns=MS // 10, **config):
    """A step takes 2 ms, 0.1 ms a decoding row and 0.1 ms a prompt token."""
    bench = Bench(
        N=4800, c=256, r=8, L=1200, max_batch_tokens=256, itl_target_ms=target_ms, **config
    )
    use_timed_engine(bench, base_ns=2 * MS, per_row_ns=MS // 10, per_token_ns=per_token_ns)
    return bench


def step_times(bench, num_streams, num_prompts, settle):
    """Times and prompt tokens of the steps in which streams and prompts share, once settled."""
    for i in range(num_streams):
        bench.submit(f"stream{i}", letters(8, seed=i), 400)
    for _ in range(6):
        bench.step()
    for i in range(num_prompts):
        bench.submit(f"long{i}", letters(800, seed=100 + i), 2)
    times, first = [], len(bench.plans)
    while sum(f"long{i}" in bench.endings for i in range(num_prompts)) < num_prompts:
        bench.step()
        times.append(bench.engine.last_ns)
    lens = [sum(n for n in plan.extend_lens if n > 1) for plan in bench.plans[first:]]
    return times[settle:], lens[settle:-3]


@DEPTHS
@pytest.mark.parametrize(("num_streams", "wanted"), [(1, 59), (4, 56)])
def test_chunks_converge_to_the_largest_below_the_target(num_streams, wanted, depth):
    bench = timed_bench(8.0, depth=depth)
    times, lens = step_times(bench, num_streams, 3, settle=10)
    assert max(times) <= 8 * MS, "no gap between a stream's tokens exceeds the target"
    # (8 - 2 - 0.1 a row) / 0.1, less what keeps it strictly below
    assert sorted(lens)[len(lens) // 2] == pytest.approx(wanted, abs=2)


def test_without_a_target_a_step_takes_what_it_takes():
    bench = timed_bench(0.0, depth=1)
    times, lens = step_times(bench, 1, 3, settle=4)
    assert max(lens) == 255
    assert max(times) > 25 * MS


def test_a_target_below_what_decoding_takes_leaves_prompts_a_little():
    bench = timed_bench(0.5, depth=1)
    _, lens = step_times(bench, 2, 2, settle=10)
    assert set(lens) == {MIN_PREFILL_TOKENS}


def test_chunks_shrink_when_the_worker_becomes_slow():
    bench = timed_bench(8.0, depth=1)
    _, before = step_times(bench, 2, 3, settle=10)
    bench.engine.per_token_ns *= 4
    for i in range(4):
        bench.submit(f"more{i}", letters(800, seed=200 + i), 2)
    while sum(f"more{i}" in bench.endings for i in range(4)) < 4:
        bench.step()
    after = [sum(n for n in plan.extend_lens if n > 1) for plan in bench.plans[-60:-6]]
    assert min(before) > 40
    assert max(after) <= 20
    assert max(after) >= 14 or MIN_PREFILL_TOKENS in after


def test_a_target_can_be_set_and_lifted_while_requests_run():
    bench = timed_bench(0.0, depth=1)
    _, lens = step_times(bench, 1, 1, settle=0)
    assert max(lens) == 255
    for target_ms, most in ((8.0, 59), (4.0, 19), (0.0, 255)):
        bench.core.set_policy({"itl_target_ms": target_ms})
        name, first = f"at {target_ms}", len(bench.plans)
        bench.submit(name, letters(700, seed=int(target_ms) + 50), 2)
        while name not in bench.endings:
            bench.step()
        lens = [sum(n for n in plan.extend_lens if n > 1) for plan in bench.plans[first:]]
        assert max(lens) == pytest.approx(most, abs=2)


# --- what shorter prompts leave to the oldest --------------------------------------------------


def beside_long(*waiting, r, **config):
    """A bench with a long prompt part-way, of chunks as large as a step, and these that wait."""
    sizes = {"code": 64}
    bench = Bench(
        N=1024, L=600, c=8, r=r, depth=1, chunk_sizes=sizes, max_batch_tokens=64, **config
    )
    bench.submit("long", letters(400), 1, workload="code")
    bench.step()
    for i, (length, fields) in enumerate(waiting):
        bench.submit(f"x{i}", letters(length, seed=1 + i), 40, **fields)
    bench.step()
    return bench


def test_only_those_that_rows_are_free_for_get_their_part_of_a_step():
    bench = beside_long(*[(20, {})] * 10, r=2)
    assert list(bench.plans[-1].extend_lens) == [56, 8]


def test_a_shorter_prompt_gets_the_chunk_of_its_class():
    bench = beside_long((32, {"workload": "code"}), r=2)
    assert list(bench.plans[-1].extend_lens) == [32, 32]


def test_capped_tenants_leave_their_part_of_a_step_to_others():
    tenants = {"full": TenantPolicy(most_share=0.05)}
    bench = beside_long(*[(30, {"tenant": "full"})] * 2, r=4, tenants=tenants)
    while len(bench.core.state.decoding) == 0:
        bench.step()
    assert bench.core.state.capped
    assert "long" in bench.core.state.prefilling
    bench.step()
    assert sorted(bench.plans[-1].extend_lens) == [1, 63]


@pytest.mark.parametrize("fields", [{}, {"preheat": True}])
def test_twins_and_preheats_that_wait_do_not_share_a_step(fields):
    bench = timed_bench(0.0, depth=1, chunk_sizes={"code": 128})
    for i in range(3):
        bench.ask(f"before{i}", letters(800, seed=9 + i), 8)
    prompt = letters(1000)
    bench.submit("leader", prompt, 2, workload="code")
    for i in range(3):
        bench.submit(f"x{i}", prompt, 0 if fields else 2, **fields)
    first = len(bench.plans)
    bench.step()
    bench.core.set_policy({"itl_target_ms": 8.0})
    bench.step()
    assert len(bench.core.state.waiting) == 3
    taken = [list(plan.extend_lens) for plan in bench.plans[first:]]
    assert taken[1] == [128], "which takes longer than the target, and nobody waits for it"
    bench.submit("other", letters(300, seed=1), 2)
    bench.step()
    assert sum(bench.plans[-1].extend_lens) == pytest.approx(60, abs=2)
