"""Several choices of one prompt, as the front submits them: the first is scored and in a session,
the others share what it computes; and whatever befalls one of them, or all, at any step."""

from dataclasses import replace

import pytest

from gpu_worker.fake_engine import FakeModel
from protos.plan import SamplingParams
from scheduler_svc.core.messages import Ending
from tests.scheduler_svc.core.harness import OK_ENDINGS, Bench
from tests.scheduler_svc.core.test_prefix_cache import letters

MODEL = FakeModel(eos_token_ids=(), eos_every=0)
PROMPT = letters(70)
CHOICES = 5
MOST = 12


def sampling_of(choice):
    scored = SamplingParams(temperature=1.0, seed=choice, prompt_logprobs=1)
    return scored if choice == 0 else replace(scored, prompt_logprobs=-1)


def submit_all(bench, **fields):
    for choice in range(CHOICES):
        bench.submit(
            f"c{choice}",
            PROMPT,
            MOST,
            sampling=sampling_of(choice),
            session="s" if choice == 0 else "",
            **fields,
        )


def check_all(bench, gone=()):
    for choice in range(CHOICES):
        name = f"c{choice}"
        wanted = MODEL.generate(PROMPT, MOST, sampling_of(choice))
        said = bench.tokens[name]
        assert said == wanted[: len(said)], name
        if name not in gone:
            assert bench.endings[name].ending in OK_ENDINGS, name
            assert said == wanted, name
    scores = MODEL.score_prompt(PROMPT, 1)
    assert bench.scores["c0"].chosen == scores.chosen[: len(bench.scores["c0"].chosen)]
    if "c0" not in gone:
        assert bench.scores["c0"] == scores


def leader(bench):
    """Who computes the prompt that others wait for, if somebody does."""
    live = bench.core.state.live
    held = [r for r in live.values() if bench.core.state.waiting.leader_of(r)]
    return bench.core.state.waiting.leader_of(held[0]) if held else None


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("p", [1, 4])
@pytest.mark.parametrize("what", ["cancel", "retract", "lose worker", "flush", "close"])
def test_something_befalls_who_computes_the_prompt(what, p, depth):
    for num_steps in range(1, 14):
        bench = Bench(N=512, p=p, c=8, r=8, depth=depth, model=MODEL, wire=True)
        submit_all(bench)
        for _ in range(num_steps):
            bench.step()
        bench.schedule()
        name, gone = leader(bench) or "c0", ()
        if what == "cancel":
            gone = (name,)
            bench.cancel(name)
        elif what == "retract" and name in bench.core.state.running:
            bench.core.state.retract(bench.core.state.running[name])
        elif what == "lose worker":
            bench.lose_worker()
        elif what == "flush":
            bench.core.flush()
        elif what == "close":
            assert bench.core.close_session("s", bench.now_ns)
        bench.run()
        check_all(bench, gone)
        has_session = what != "close" and "c0" not in gone
        assert bench.core.num_sessions == has_session
        if what != "flush":  # what was computed before it is never kept
            assert bool(bench.core.num_session_tokens) == has_session


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("r", [1, 2, 8])
def test_the_deadline_of_all_ends_all_wherever_they_are(r, depth):
    """Held behind the first, in the queue, part-way and decoding."""
    for budget_ns in range(1, 40_000, 1700):
        bench = Bench(N=512, c=8, r=r, depth=depth, model=MODEL)
        bench.submit("other", letters(30, seed=3), 40)
        submit_all(bench, deadline_ns=budget_ns)
        bench.run()
        late = [n for n, output in bench.endings.items() if output.ending is Ending.DEADLINE]
        check_all(bench, late)
        assert bench.tokens["other"] == MODEL.generate(letters(30, seed=3), 40)
        assert "other" not in late
        assert bench.core.num_sessions == ("c0" not in late)


def test_the_prompt_is_computed_once():
    bench = Bench(N=1024, c=8, r=8, model=MODEL)
    submit_all(bench)
    bench.run()
    check_all(bench)
    counts = bench.core.counters()
    assert counts["computed_tokens"] == 69 + CHOICES * MOST
    assert [bench.cached[f"c{choice}"] for choice in range(CHOICES)] == [0, 69, 69, 69, 69]
