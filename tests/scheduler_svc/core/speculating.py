"""What tests of speculation share: a model that repeats itself, a bench with drafts in flight."""

from gpu_worker.fake_engine import FakeModel
from tests.scheduler_svc.core.harness import Bench
from tests.scheduler_svc.core.test_prefix_cache import letters

EDITOR = FakeModel(surprise_every=8)
"""Mostly says again what was said before."""


def counters(bench):
    found = bench.core.counters()
    return found["drafted_tokens"], found["accepted_tokens"]


def drafting(request_id="x", max_tokens=60, **config):
    """A bench whose last plan in flight has drafts, of one request at least."""
    bench = Bench(model=EDITOR, **config)
    bench.submit(request_id, letters(12), max_tokens)
    until_drafts(bench)
    return bench


def until_drafts(bench):
    """Steps until a plan with drafts is in flight, and alone there."""
    for _ in range(500):
        bench.now_ns += 1000
        while bench.schedule():
            pass
        if max(bench.sent[-1].samples) > 1:
            assert len(bench.sent) == 1
            return bench.sent[-1]
        bench.answer()
    raise AssertionError("nothing was guessed")
