"""Rows that cannot go on, at any moment of any request: each ends alone, and nothing is left of it.

A worker names rows with a grammar only; the core is to bear it of every kind of request, cut back,
cancelled, scored, guessed for or in a session as it may be.
"""

import random
from dataclasses import replace

import pytest

from gpu_worker.fake_engine import FakeEngine
from protos.plan import RowFault, SamplingParams
from scheduler_svc.core.messages import Ending
from tests.scheduler_svc.core.harness import OK_ENDINGS, Bench
from tests.scheduler_svc.core.speculating import EDITOR
from tests.scheduler_svc.core.test_prefix_cache import letters


class Faulty(FakeEngine):
    """Names rows by chance; one that it named it names again, as the real one does."""

    rng: random.Random
    odds = 0.02

    def reset(self):
        """See FakeEngine."""
        super().reset()
        self.named = set()

    def execute(self, plan):
        """See FakeEngine."""
        result = super().execute(plan)
        self.named -= {*plan.freed_rows, *(new.row for new in plan.new_rows)}
        self.named |= {row for row in plan.rows if self.rng.random() < self.odds}
        faults = tuple(RowFault(row=row, message="odd") for row in plan.rows if row in self.named)
        return replace(result, forward_ns=10_000, row_faults=faults)


def kinds(rng):
    yield {"sampling": SamplingParams(prompt_logprobs=rng.randrange(3))}
    yield {"sampling": SamplingParams(logprobs=2), "session": rng.choice("ab")}
    yield {"session": rng.choice("ab")}
    yield {"sampling": SamplingParams(repetition_penalty=1.5)}
    yield {"no_store": True}
    yield {}


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("p", [1, 4])
@pytest.mark.parametrize("seed", range(4))
def test_whoever_is_named_ends_alone(seed, p, depth):
    rng = random.Random(seed)
    bench = Bench(N=192, p=p, c=8, r=6, depth=depth, model=EDITOR, wire=True, decode_reserve=0.0)
    bench.engine = Faulty(EDITOR, num_slots=192, max_rows=6, max_length=256)
    bench.engine.rng = rng
    stem, wanted = letters(20), {}
    for n in range(60):
        prompt = stem[: rng.choice([0, 9, 20])] + letters(rng.randint(2, 24), seed=rng.randrange(5))
        fields = rng.choice(list(kinds(rng)))
        name, most = f"x{n}", rng.choice([0, 3, 40]) if "sampling" in fields else 20
        if fields.get("sampling", SamplingParams()).prompt_logprobs < 0:
            most = max(1, most)
        sampling = fields.get("sampling", SamplingParams())
        wanted[name] = EDITOR.generate(prompt, most, sampling)
        bench.submit(name, prompt, most, **fields)
        for _ in range(rng.randrange(6)):
            bench.step()
            happen(rng, bench)
    bench.run()
    found = dict.fromkeys(Ending, 0)
    for name, tokens in wanted.items():
        output = bench.endings[name]
        found[output.ending] += 1
        said = bench.tokens[name]
        assert said == tokens[: len(said)], name
        if output.ending is Ending.FAILED:
            assert (output.field, output.message) == ("constraint", "odd")
        elif output.ending in OK_ENDINGS:
            assert said == tokens, name
    assert found[Ending.FAILED] > 5
    assert found[Ending.LENGTH] > 5
    assert bench.core.counters()["failed"] == found[Ending.FAILED]
    for view in bench.core.list_sessions(bench.now_ns):
        assert bench.core.close_session(view.name, bench.now_ns)
    assert not any(node.pins for node in bench.core.state.tree.nodes())
    bench.core.flush()
    assert bench.core.slot_books().free == bench.core.state.num_slots


def happen(rng, bench):
    """Now and then something else, between a plan and its answer."""
    what = rng.random()
    running = list(bench.core.state.running.values())
    if what < 0.08 and running:
        bench.schedule()
        bench.core.state.retract(rng.choice(running))
    elif what < 0.12 and bench.core.state.live:
        bench.schedule()
        bench.cancel(rng.choice(list(bench.core.state.live)))
    elif what < 0.14:
        bench.lose_worker()
    elif what < 0.16:
        bench.core.flush()
