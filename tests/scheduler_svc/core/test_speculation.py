"""Speculation in the core: whatever happens, nobody can tell by the tokens, and the books hold."""

import random
from array import array
from collections import Counter
from dataclasses import replace

import pytest

from gpu_worker.fake_engine import FakeModel
from protos.plan import LogprobColumns, SamplingParams
from scheduler_svc.core import invariants
from scheduler_svc.core.messages import Ending
from tests.scheduler_svc.core.cut_back import Records
from tests.scheduler_svc.core.harness import Bench
from tests.scheduler_svc.core.speculating import EDITOR, counters, drafting, until_drafts
from tests.scheduler_svc.core.test_prefix_cache import letters

DEPTHS = pytest.mark.parametrize("depth", [1, 2])
PAGES = pytest.mark.parametrize("p", [1, 16])


# --- the same tokens --------------------------------------------------------------------------


SAMPLINGS = [
    SamplingParams(),
    SamplingParams(temperature=1.0, seed=5),
    SamplingParams(logprobs=2),
    SamplingParams(repetition_penalty=1.25, logprobs=0),
    SamplingParams(presence_penalty=0.5, temperature=0.5, seed=2, min_tokens=9, logprobs=3),
    SamplingParams(frequency_penalty=0.25, min_tokens=20),
]


def play(seed, model, **config):
    """Ten requests that come at any time, some of which are cancelled; every answer is checked."""
    rng = random.Random(seed)
    bench = Records(model=model, wire=True, L=200, **config)
    asked = {}
    for number in range(10):
        request_id, prompt = f"r{number}", letters(rng.randint(1, 40), seed=rng.randrange(4))
        prompt = [token % model.vocab_size for token in prompt]
        sampling, max_tokens = rng.choice(SAMPLINGS), rng.randint(1, 70)
        sampling = replace(sampling, min_tokens=min(sampling.min_tokens, max_tokens))
        asked[request_id] = (prompt, max_tokens, sampling)
        no_store = rng.random() < 0.2
        bench.submit(request_id, prompt, max_tokens, sampling=sampling, no_store=no_store)
        for _ in range(rng.randint(0, 12)):
            bench.step()
        if rng.random() < 0.2:
            bench.cancel(rng.choice(list(asked)))
    bench.run()
    for request_id, (prompt, max_tokens, sampling) in asked.items():
        wanted = model.generate(prompt, max_tokens, sampling)
        got, ending = bench.tokens[request_id], bench.endings[request_id].ending
        assert got == wanted[: len(got)]
        assert ending in (Ending.CANCELLED, Ending.POOL_FULL) or got == wanted, request_id
        if sampling.logprobs >= 0:
            columns = model.generate_logprobs(prompt, got, sampling.logprobs)
            assert bench.chosen.get(request_id, []) == list(columns.chosen)
            assert bench.top_ids.get(request_id, []) == list(columns.top_ids)
    return bench


@DEPTHS
@PAGES
@pytest.mark.parametrize("N", [96, 160, 640])
def test_nobody_can_tell(depth, p, N):  # noqa: N803
    model = FakeModel(surprise_every=8, eos_every=60)
    found = Counter()
    for seed in range(3):
        bench = play(seed, model, N=N, p=p, depth=depth, r=4)
        drafted, accepted = counters(bench)
        assert accepted <= drafted
        assert bench.core.counters()["generated_tokens"] == sum(map(len, bench.tokens.values()))
        found += Counter(
            accepted=accepted,
            wrong=drafted - accepted,
            retracted=bench.core.counters()["retractions"],
        )
    assert found["accepted"] > 25
    assert found["wrong"] > 10
    if N == 96:
        assert found["retracted"]


@DEPTHS
def test_texts_that_repeat_nothing_are_the_same_too(depth):
    for seed in range(4):
        play(seed, FakeModel(vocab_size=3, eos_token_ids=(2,), eos_every=30), depth=depth)


def test_penalties_and_logprobs_are_guessed_for_too():
    for sampling in SAMPLINGS:
        bench = Records(model=EDITOR)
        bench.ask("x", letters(12), 80, sampling=sampling)
        assert bench.tokens["x"] == EDITOR.generate(letters(12), 80, sampling)
        assert counters(bench)[1] > 10, sampling


def test_an_answer_that_was_given_before_is_guessed_from_the_tree():
    """All of it, whatever it is; and only by who may read it."""
    prompt = letters(20)
    bench = Bench()
    first = bench.ask("first", prompt, 60)
    assert counters(bench) == (0, 0), "nothing repeats in it"
    num_steps = len(bench.plans)
    assert bench.ask("other", prompt, 60, cache_domain="other") == first
    assert counters(bench) == (0, 0)
    assert len(bench.plans) == 2 * num_steps
    assert bench.ask("again", prompt, 60) == first
    drafted, accepted = counters(bench)
    assert drafted == accepted > 45
    assert len(bench.plans) < 2.3 * num_steps


@DEPTHS
@PAGES
def test_it_ends_exactly_where_it_would_have(depth, p):
    """At a stop token among right drafts, or at max_tokens, with the log probabilities of these."""
    prompt, sampling = letters(12), SamplingParams(logprobs=1)
    whole = EDITOR.generate(prompt, 60)
    for end in range(20, 60, 4):
        stop = whole[end]
        first = whole.index(stop) + 1
        bench = Records(model=EDITOR, depth=depth, p=p)
        bench.ask("all", prompt, 60)  # so that every token is guessed right
        bench.ask("stops", prompt, 60, stop_token_ids=(stop,), sampling=sampling)
        assert bench.tokens["stops"] == whole[:first]
        assert bench.endings["stops"].ending is Ending.STOP
        assert len(bench.chosen["stops"]) == first
        bench.ask("short", prompt, end, sampling=sampling)
        assert bench.tokens["short"] == whole[:end]
        assert bench.endings["short"].ending is Ending.LENGTH
        assert len(bench.top_ids["short"]) == end
        assert bench.core.counters()["generated_tokens"] == 60 + first + end


# --- whatever happens meanwhile ---------------------------------------------------------------


def the_end(bench):
    bench.run()
    assert bench.tokens["x"] == EDITOR.generate(letters(12), 60)


def test_nothing_is_planned_before_drafts_are_answered():
    bench = drafting()
    bench.submit("new", letters(30, seed=5), 5)
    assert not bench.schedule()
    bench.answer()
    assert bench.schedule()
    assert len(bench.sent[-1].new_rows) == 1
    the_end(bench)


@PAGES
@DEPTHS
def test_cancelled(depth, p):
    bench = drafting(depth=depth, p=p)
    seen = len(bench.tokens["x"])
    bench.cancel("x")
    bench.run()
    assert bench.endings["x"].ending is Ending.CANCELLED
    assert len(bench.tokens["x"]) == seen
    assert bench.ask("y", letters(12), 60) == EDITOR.generate(letters(12), 60)


@PAGES
@DEPTHS
def test_cut_back(depth, p):
    bench = drafting(depth=depth, p=p)
    bench.core.state.retract(bench.core.state.live["x"])
    invariants.check(bench.core)
    the_end(bench)
    assert bench.core.counters()["retractions"] == 1


@PAGES
def test_the_worker_is_lost(p):
    bench = drafting(p=p)
    bench.lose_worker()
    assert bench.core.state.live["x"].drafter is None, "it knows versions of the tree that is gone"
    the_end(bench)


def test_the_deadline_passes():
    bench = Bench(model=EDITOR)
    bench.submit("x", letters(12), 60, deadline_ns=10**6)
    until_drafts(bench)
    bench.now_ns = 10**6
    bench.schedule()
    assert bench.endings["x"].ending is Ending.DEADLINE
    bench.run()


def test_flushed():
    bench = drafting()
    bench.core.flush()
    the_end(bench)


def test_turned_off_and_on():
    bench = drafting()
    bench.core.set_policy({"speculation": "off"})
    before = counters(bench)
    for _ in range(12):
        bench.step()
    assert counters(bench)[0] == before[0]
    bench.core.set_policy({"speculation": "auto", "max_drafts": 2})
    until_drafts(bench)
    assert max(bench.sent[-1].samples) <= 3
    the_end(bench)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_sampled": b""},
        {"num_sampled": b"\2", "token_ids": array("i", [1])},
        {"num_sampled": b"\1\1", "token_ids": array("i", [1, 2])},
        {"num_sampled": b"\0", "token_ids": array("i")},
        {"num_sampled": b"\2", "token_ids": array("i", [96, 97])},
        {"num_sampled": bytes([12]), "token_ids": array("i", [1] * 12)},
        {"num_sampled": b"\1", "token_ids": array("i", [1]), "logprobs": "two"},
    ],
    ids=str,
)
def test_answers_that_cannot_be_are_refused(changes):
    bench = Bench(model=EDITOR)
    bench.submit("x", letters(12), 60, sampling=SamplingParams(logprobs=0))
    plan = until_drafts(bench)
    good = bench.engine.execute(plan)
    if changes == {"num_sampled": b""}:
        changes = {**changes, "token_ids": array("i", [1, 2])}
    if changes.get("logprobs") == "two":
        two = array("f", [-1.0, -1.0])
        columns = LogprobColumns(chosen=two, top_ids=array("i"), top_logprobs=array("f"))
        changes = {**changes, "logprobs": columns}
    else:
        changes = {**changes, "logprobs": None}
    with pytest.raises(ValueError, match=r"token|sampled|log prob"):
        bench.core.apply(replace(good, **changes), bench.now_ns)
    invariants.check(bench.core)
    bench.take(bench.core.apply(good, bench.now_ns))
    bench.sent.clear()
    the_end(bench)
