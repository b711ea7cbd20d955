"""When somebody is cut back, how far, how often, and when a victim may return."""

import pytest

from scheduler_svc.core import retraction
from scheduler_svc.core.retraction import RETRACTION_POLICIES
from tests.scheduler_svc.core.harness import Bench
from tests.scheduler_svc.core.test_prefix_cache import letters

MOST = 1
"""In place of MOST_RETRACTIONS, which small pools never reach."""
DEPTHS = pytest.mark.parametrize("depth", [1, 2])


class Cut:
    """The pool around one retraction."""

    def __init__(self, state, victim):
        self.before = state.num_used_pages + wanted_pages(state)
        self.num_before = victim.num_retractions
        self.retractions = [request.num_retractions for request in state.running.values()]


def wanted_pages(state):
    """Pages that streams need for their next token."""
    size = state.config.page_size
    return sum(
        request.num_computed == len(request.pages) * size
        and request.num_computed < request.end_tokens - 1
        for request in state.decoding.values()
    )


def watch_cuts(bench):
    """Notes every retraction as it is about to happen."""
    cuts, state, retract = [], bench.core.state, bench.core.state.retract

    def noted(request, why=""):
        cuts.append(Cut(state, request))
        retract(request, why)

    state.retract = noted
    return cuts


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("marks", [(1.0, 1.0), (0.9, 0.9), (0.9, 0.6), (0.7, 0.3)])
def test_watermarks(marks, page_size):
    """Nobody is cut back below the high one; then down to the low one and not beyond."""
    high, low = marks
    # Depth 1, so that a victim's slots come back at once and every number is exact.
    bench = Bench(
        N=200,
        p=page_size,
        r=8,
        depth=1,
        decode_reserve=0.0,
        high_watermark=high,
        low_watermark=low,
    )
    cuts, state = watch_cuts(bench), bench.core.state
    for i in range(20):
        bench.submit(f"x{i}", letters(10 + i % 5, seed=i), 30)
    while bench.core.state.live:
        bench.now_ns += 1000
        first, running = len(cuts), bench.core.num_running
        bench.schedule()
        storm = cuts[first:]
        if storm:
            assert storm[0].before > state.high_pages, "cut back below the high watermark"
            assert all(cut.before > state.low_pages for cut in storm), "beyond the low one"
            assert len(storm) < running
        if bench.sent:
            bench.answer()
        if bench.core.num_running > 1:
            assert state.num_used_pages <= max(state.high_pages, state.low_pages)
    assert len(cuts) == bench.core.counters()["retractions"] > 0
    for i in range(20):
        assert bench.tokens[f"x{i}"] == bench.reference(letters(10 + i % 5, seed=i), 30)


def test_low_watermark_is_reached():
    bench = Bench(N=200, r=8, depth=1, decode_reserve=0.0, high_watermark=0.9, low_watermark=0.5)
    cuts, state = watch_cuts(bench), bench.core.state
    for i in range(8):
        bench.submit(f"x{i}", letters(10, seed=i), 60)
    while not cuts:
        bench.step()
    assert len(cuts) > 1
    assert state.num_used_pages <= state.low_pages + state.num_running


@DEPTHS
def test_who_returns_finds_room_for_its_whole_need(depth):
    bench = Bench(N=160, r=8, depth=depth, decode_reserve=0.0)
    state = bench.core.state
    admit, num_returned = state.admit, 0

    def checked(request):
        nonlocal num_returned
        if request.is_resuming and state.num_running:
            num_returned += 1
            missing = request.end_tokens - 1 - len(request.pages)
            assert missing <= state.kv.num_available_pages - state.headroom_pages
        admit(request)

    state.admit = checked
    for i in range(24):
        bench.submit(f"x{i}", letters(10, seed=i), 15 + i)
    bench.run()
    assert num_returned > 5
    assert bench.core.counters()["retractions"] < 2 * 24


@pytest.mark.parametrize("name", sorted(RETRACTION_POLICIES))
def test_repeats_are_bounded(name, monkeypatch):
    """Who was cut back often enough goes after all others, whatever the policy says."""
    monkeypatch.setattr(retraction, "MOST_RETRACTIONS", MOST)
    bench = Bench(
        N=96, r=6, decode_reserve=0.0, retraction_policy=name, retraction_keep="none", L=96
    )
    cuts = watch_cuts(bench)
    for round_number in range(12):  # newcomers all the time, so that old ones are cut again
        for i in range(6):
            seed = 10 * round_number + i
            bench.submit(f"x{seed}", letters(6, seed=seed), 40, priority=seed % 3)
        for _ in range(30):
            bench.step()
    bench.run()
    assert len(cuts) > 20
    for cut in cuts:
        assert cut.num_before < MOST or min(cut.retractions) >= MOST, "others were cut less often"
