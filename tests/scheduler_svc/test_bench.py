"""The measuring of the core: laps, sizes, and what drives a peer.  Nothing here asks how fast."""

import subprocess
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import scheduler_svc
from scheduler_svc.bench.peers import sglang_tree
from scheduler_svc.bench.peers.__main__ import PEERS, figures_of
from scheduler_svc.bench.peers.cycles import match_insert, steady_cycle
from scheduler_svc.bench.scale import LENGTH, NUM_SHARED, make_sequences, num_tree_tokens, scale_of
from scheduler_svc.bench.step_figures import Bench, Setting
from scheduler_svc.bench.stopwatch import Stopwatch, figures_us, quantile_us, worse

SMALL = scale_of(0.01)


def watch_of(*laps_ns: int, disturbed: Sequence[int] = ()) -> Stopwatch:
    watch = Stopwatch()
    watch.laps_ns, watch.disturbed_ns = list(laps_ns), [*disturbed]
    return watch


def test_figures_are_medians_over_repetitions() -> None:
    watches = [watch_of(1000, 3000), watch_of(2000, 2000)]
    watches.append(watch_of(90_000, 90_000, disturbed=[1] * 4))
    assert figures_us(watches) == {"mean": 2.0, "p50": 3.0, "p99": 3.0, "disturbed": 0.4}


def test_a_repetition_of_which_nothing_is_left_does_not_count() -> None:
    assert figures_us([watch_of(1000), watch_of(disturbed=[90_000])])["mean"] == 1.0


def test_where_every_lap_was_disturbed_the_figures_are_theirs_and_say_so() -> None:
    watches = [watch_of(disturbed=[2000, 4000]), watch_of()]
    assert figures_us(watches) == {"mean": 3.0, "p50": 4.0, "p99": 4.0, "disturbed": 1.0}
    with pytest.raises(ValueError, match="no lap"):
        figures_us([watch_of()])


def test_quantiles_are_of_the_ordered_laps() -> None:
    laps = [1000 * lap for lap in range(100, 0, -1)]
    assert (quantile_us(laps, 0.5), quantile_us(laps, 0.99)) == (51.0, 100.0)


def test_the_worse_of_each_figure_stands_on_top() -> None:
    figures = {"a": {"mean": 1.0, "p99": 9.0}, "b": {"mean": 2.0, "p99": 3.0}}
    assert worse(figures) == {"mean": 2.0, "p99": 9.0} | figures


def test_stretches_add_up_to_a_lap_and_a_switch_spoils_it(monkeypatch: Any) -> None:
    times, switches = iter((10, 15, 100, 107, 0, 1, 0, 2)), iter((0, 0, 0, 1, 1, 1, 1))
    monkeypatch.setattr("scheduler_svc.bench.stopwatch.perf_counter_ns", lambda: next(times))
    monkeypatch.setattr("scheduler_svc.bench.stopwatch._num_switches", lambda: next(switches))
    watch = Stopwatch()
    for num_stretches in (2, 1, 1):
        for _ in range(num_stretches):
            watch.start()
            watch.stop()
        watch.lap()
    assert (watch.laps_ns, watch.disturbed_ns) == ([12, 2], [1])


def test_the_full_scale_is_what_the_peers_were_measured_with() -> None:
    full = scale_of(1.0)
    assert (full.num_sequences, full.num_groups, LENGTH, NUM_SHARED) == (10_000, 100, 1024, 816)
    assert (full.num_running, full.num_waiting) == (256, 1000)
    assert (full.queue_lengths[0], full.queue_lengths[-1]) == (100, 10_000)
    assert (full.tree_sizes[0], full.tree_sizes[-1]) == (1000, 1_000_000)
    with pytest.raises(ValueError, match="scale"):
        scale_of(0.0)


def test_sequences_share_what_their_group_shares() -> None:
    sequences = make_sequences(SMALL)
    assert sequences == make_sequences(SMALL)
    stems = {sequence[:NUM_SHARED].tobytes() for sequence in sequences}
    assert {len(sequence) for sequence in sequences} == {LENGTH}
    assert 1 < len(stems) <= SMALL.num_groups
    owned = LENGTH - NUM_SHARED
    assert num_tree_tokens(sequences) == len(stems) * NUM_SHARED + len(sequences) * owned


@pytest.mark.parametrize("estimate", ["ratio", "worst_case"])
@pytest.mark.parametrize("slots_short", [True, False])
def test_steps_are_measured_in_the_setting_that_was_asked_for(
    estimate: str, slots_short: bool
) -> None:
    setting = Setting(num_waiting=7, slots_short=slots_short, num_tree_nodes=30, estimate=estimate)
    bench = Bench(setting, SMALL)
    assert len(bench.intake.laps_ns + bench.intake.disturbed_ns) == 1
    watch = Stopwatch()
    plan = bench.timed_step(watch)
    assert len(watch.laps_ns + watch.disturbed_ns) == 1
    assert list(plan.extend_lens) == [1] * SMALL.num_running
    assert bench.core.num_tree_nodes >= 30
    bench.check(setting)
    other = Setting(num_waiting=7, slots_short=not slots_short)
    with pytest.raises(AssertionError):
        bench.check(other)


class Counting:
    """A structure that evicts from its third cycle on."""

    def __init__(self) -> None:
        self.cycles: list[tuple[int, bool]] = []
        self.num_evictions = 0

    def cycle(self, number: int, watch: Stopwatch, *, evicts: bool) -> None:
        """See Prefixes."""
        self.cycles.append((number, evicts))
        self.num_evictions += evicts and len(self.cycles) > 2
        watch.start()
        watch.stop()
        watch.lap()


def test_a_peer_gets_every_sequence_in_turn() -> None:
    structure = Counting()
    match_insert([structure], SMALL)
    assert structure.cycles == [(number, False) for number in range(SMALL.num_sequences)]
    structure = Counting()
    steady_cycle(structure, SMALL)
    filling = len(structure.cycles) - SMALL.num_sequences
    assert filling > 2
    assert structure.cycles[0] == (0, True)
    assert structure.cycles[-1] == ((len(structure.cycles) - 1) % SMALL.num_sequences, True)


def test_a_peer_that_is_not_there_has_no_figures(monkeypatch: Any) -> None:
    absent = (("no-such-distribution",), "no-such-distribution==1", sglang_tree.measure)
    monkeypatch.setitem(PEERS, "sglang", absent)
    assert figures_of("sglang", SMALL) == {
        "version": None,
        "wanted": "no-such-distribution==1",
        "missing": "not installed",
    }


def test_a_peer_that_cannot_be_measured_says_why(monkeypatch: Any) -> None:
    def broken(scale: object) -> dict[str, Any]:
        raise ImportError("no kernels")

    monkeypatch.setitem(PEERS, "sglang", (("pytest",), "pytest==0", broken))
    assert figures_of("sglang", SMALL)["missing"] == "ImportError: no kernels"


class FakeTree:
    """Remembers whole sequences alone, evicts the oldest; enough to be driven."""

    num_evictions = 0
    """Of all trees."""
    has_evicted = False

    def __init__(self, slots: Any) -> None:
        self.slots, self.held, self.locks = slots, {}, 0  # type: ignore[var-annotated]

    @classmethod
    def create_simulated(cls, *, mock_allocator: Any, page_size: int) -> "FakeTree":
        """As RadixCache does."""
        assert page_size in (1, 16)
        return cls(mock_allocator)

    def match_prefix(self, params: Any) -> Any:
        """All or nothing."""
        found = self.held.get(params["key"].tobytes(), [])
        return SimpleNamespace(last_device_node=found, device_prefix_len=len(found))

    def inc_lock_ref(self, node: Any) -> None:
        """Counts."""
        self.locks += 1

    def dec_lock_ref(self, node: Any) -> None:
        """Counts."""
        self.locks -= 1

    def path_device_indices(self, node: list[int]) -> list[int]:
        """The slots themselves."""
        return node

    def evict(self, params: Any) -> None:
        """Frees whole sequences."""
        freed, self.has_evicted = 0, True
        FakeTree.num_evictions += 1
        while freed < params["num_tokens"]:
            slots = self.held.pop(next(iter(self.held)))
            freed += len(slots)
            self.slots.free_segment(slots, start_pos=0)

    def insert(self, params: Any) -> None:
        """Keeps."""
        assert len(params["value"]) == LENGTH
        assert self.slots.num_free >= 0 or not self.has_evicted
        assert self.locks == 1
        self.held[params["key"].tobytes()] = params["value"]


def test_the_tree_of_sglang_is_driven_as_ours(monkeypatch: Any) -> None:
    module = ModuleType("sglang.srt.mem_cache.radix_cache")
    torch = SimpleNamespace(
        arange=lambda n: list(range(n)), cat=lambda parts: [slot for part in parts for slot in part]
    )
    names = {
        "torch": torch,
        "RadixCache": FakeTree,
        "RadixKey": lambda ids: array("q", ids),
        "MatchPrefixParams": dict,
        "InsertParams": dict,
        "EvictParams": dict,
    }
    vars(module).update(names)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(FakeTree, "num_evictions", 0)
    value = sglang_tree.measure(SMALL)
    assert FakeTree.num_evictions > SMALL.num_sequences
    for figure in ("match_insert_us", "steady_cycle_us"):
        assert set(value[figure]) == {"page1", "page16"}
        assert value[figure]["page1"]["mean"] > 0


def test_peers_need_no_library_of_ours(tmp_path: Path) -> None:
    (tmp_path / "scheduler_svc").symlink_to(Path(scheduler_svc.__file__).parent)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import scheduler_svc.bench.peers.__main__ as peers\n"
        "assert sorted(peers.PEERS) == ['sglang', 'vllm']\n"
        "print(sorted(set(sys.modules) & {'numpy', 'google.protobuf', 'protos', 'grpc'}))"
    )
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-B", "-c", code], capture_output=True, text=True, timeout=50
    )
    assert result.stdout.strip() == "[]", result.stderr
