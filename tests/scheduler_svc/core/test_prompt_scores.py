"""Log probabilities of prompts: all of them, once, whatever is cached and whatever happens."""

from array import array
from dataclasses import replace

import pytest

from protos.plan import NOT_SCORED, SamplingParams
from scheduler_svc.core.chunking import MOST_SCORED_TOKENS
from scheduler_svc.core.messages import Ending
from scheduler_svc.core.scheduler import Scheduler
from tests.scheduler_svc.core.harness import Bench
from tests.scheduler_svc.core.speculating import EDITOR
from tests.scheduler_svc.core.test_prefix_cache import letters, whole

SCORED = SamplingParams(prompt_logprobs=2)
DEPTHS = pytest.mark.parametrize("depth", [1, 2])
PAGES = pytest.mark.parametrize("p", [1, 4, 16])


def check_scores(bench, name, prompt, num_top=2):
    assert bench.scores[name] == bench.model.score_prompt(prompt, num_top)


@DEPTHS
@PAGES
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 13])
def test_any_chunk_gives_all_of_them(n, p, depth):  # field cases 21, 23
    bench = Bench(c=4, p=p, depth=depth, wire=True)
    prompt = letters(n)
    assert bench.ask("x", prompt, 1, sampling=SCORED) == bench.reference(prompt, 1)
    check_scores(bench, "x", prompt)
    assert bench.endings["x"].ending is Ending.LENGTH


@DEPTHS
@PAGES
def test_cached_prompts_are_scored_as_cold_ones(p, depth):  # field case 101
    bench = Bench(c=8, p=p, depth=depth)
    n = 2 * p + 1
    prompt = letters(n)
    for name, num_top in (("cold", 2), ("warm", 2), ("bare", 0)):
        bench.ask(name, prompt, sampling=replace(SCORED, prompt_logprobs=num_top))
        check_scores(bench, name, prompt, num_top)
        assert bench.cached[name] == 0, "a prompt that is scored is computed anew"
    assert bench.ask("other", prompt) == bench.reference(prompt)
    assert bench.cached["other"] == whole(n - 1, p), "what was computed for it serves others"


def test_the_likeliest_tokens_of_outputs_cost_no_hits():  # field case 103
    bench = Bench(c=8)
    prompt = letters(30)
    bench.ask("cold", prompt)
    bench.ask("warm", prompt, sampling=SamplingParams(logprobs=5))
    assert bench.cached["warm"] == 29


@DEPTHS
@PAGES
@pytest.mark.parametrize("n", [1, 2, 5, 16, 17, 33])
def test_a_prompt_alone(n, p, depth):  # field case 87
    bench = Bench(c=4, p=p, depth=depth, N=48, wire=True)
    prompt = letters(n)
    bench.submit("x", prompt, 0, sampling=SCORED)
    bench.run()
    check_scores(bench, "x", prompt)
    assert bench.tokens["x"] == []
    assert bench.endings["x"].ending is Ending.LENGTH
    assert bench.core.counters()["generated_tokens"] == 0
    assert bench.core.counters()["computed_tokens"] == n - 1
    assert bench.ask("next", prompt) == bench.reference(prompt)
    assert bench.cached["next"] == whole(n - 1, p)


@pytest.mark.parametrize("estimate", ["worst_case", "ratio", "peak", "quantile"])
def test_prompts_alone_beside_streams(estimate):
    bench = Bench(N=96, c=4, r=6, admission_estimate=estimate)
    for i in range(12):
        kind = {"sampling": SCORED} if i % 3 else {}
        bench.submit(f"x{i}", letters(10 + i, seed=i), 0 if i % 3 == 1 else 8, **kind)
    bench.run()
    for i in range(12):
        prompt = letters(10 + i, seed=i)
        assert bench.tokens[f"x{i}"] == bench.reference(prompt, 0 if i % 3 == 1 else 8)
        if i % 3:
            check_scores(bench, f"x{i}", prompt)


def test_without_either_nothing_is_asked_for():
    bench = Bench()
    bench.submit("x", letters(4), 0)
    assert bench.endings["x"].field == "max_tokens"
    bench.submit("y", letters(4), 0, sampling=SCORED, preheat=True)
    assert bench.endings["y"].field == "prompt_logprobs"


def test_a_scored_prompt_waits_for_no_twin_and_its_twin_for_it():
    bench = Bench(N=512, c=32)
    prompt = letters(80)
    bench.submit("leader", prompt, 3)
    bench.step()
    bench.submit("scored", prompt, 3, sampling=SCORED)
    bench.step()
    assert bench.core.state.live["scored"].events[-1].name == "admitted"
    bench.run()
    check_scores(bench, "scored", prompt)

    other = letters(80, seed=1)
    bench.submit("first", other, 3, sampling=SCORED)
    bench.step()
    bench.submit("twin", other, 3)
    bench.run()
    check_scores(bench, "first", other)
    assert (bench.cached["first"], bench.cached["twin"]) == (0, 79)


@DEPTHS
@PAGES
def test_a_lost_worker_loses_and_doubles_none(p, depth):
    for num_steps in range(1, 9):
        bench = Bench(c=4, p=p, depth=depth)
        prompt = letters(21)
        bench.submit("x", prompt, 4, sampling=SCORED)
        bench.submit("y", prompt, 0, sampling=SCORED)
        for _ in range(num_steps):
            bench.step()
        bench.schedule()  # what is in flight is lost with it
        bench.lose_worker()
        bench.run()
        check_scores(bench, "x", prompt)
        check_scores(bench, "y", prompt)
        assert bench.tokens["x"] == bench.reference(prompt, 4)


def test_after_a_retraction_only_what_is_missing_is_scored():
    bench = Bench(c=4, depth=1)
    prompt = letters(21)
    bench.submit("x", prompt, 4, sampling=SCORED)
    for _ in range(3):
        bench.step()
    bench.core.state.retract(bench.core.state.live["x"], "the test says so")
    bench.run()
    check_scores(bench, "x", prompt)
    assert bench.tokens["x"] == bench.reference(prompt, 4)
    assert bench.core.counters()["recomputed_tokens"] == 0, "what was scored is found again"


def test_carried_over_with_outputs():
    bench = Bench(c=4)
    prompt = letters(10)
    wanted = bench.reference(prompt, 8)
    bench.submit("x", prompt, 8, sampling=SCORED, resume_output_ids=wanted[:3])
    bench.run()
    assert bench.tokens["x"] == wanted[3:]
    check_scores(bench, "x", prompt)


def test_guesses_and_scores():
    bench = Bench(N=512, c=8, model=EDITOR)
    prompt = letters(12) * 3
    for i in range(3):
        bench.submit(f"x{i}", prompt + letters(i), 60, sampling=SCORED)
    bench.run()
    for i in range(3):
        assert bench.tokens[f"x{i}"] == bench.reference(prompt + letters(i), 60)
        check_scores(bench, f"x{i}", prompt + letters(i))
    assert bench.core.counters()["accepted_tokens"]


def test_a_flush_while_it_is_scored():
    bench = Bench(c=4)
    prompt = letters(21)
    bench.submit("x", prompt, 4, sampling=SCORED)
    for _ in range(3):
        bench.step()
    bench.core.flush()
    bench.run()
    check_scores(bench, "x", prompt)


def test_a_step_scores_a_bounded_number_of_tokens():
    """Two long prompts, a chunk and a step that would take both: the worker holds logits of each
    token that is scored."""
    bench = Bench(N=4096, c=2048, r=4, L=2048, max_batch_tokens=4096)
    prompts = [letters(1500, seed=i) for i in range(2)]
    for i, prompt in enumerate(prompts):
        bench.submit(f"x{i}", prompt, 2, sampling=SCORED)
    bench.submit("plain", letters(1500, seed=2), 2)
    bench.run()
    for i, prompt in enumerate(prompts):
        check_scores(bench, f"x{i}", prompt)
    counts = [sum(token != NOT_SCORED for token in plan.next_ids) for plan in bench.plans]
    assert max(counts) == MOST_SCORED_TOKENS
    assert max(len(plan.input_ids) for plan in bench.plans) > MOST_SCORED_TOKENS, "others may"


def test_plans_say_what_follows_each_input():
    bench = Bench(c=4, depth=1)
    bench.submit("plain", letters(1), 9)
    bench.step()
    bench.submit("x", [97, 98, 99, 100, 101, 102], 2, sampling=SCORED)
    bench.run()
    scored = [list(plan.next_ids) for plan in bench.plans if plan.next_ids]
    assert scored == [
        [NOT_SCORED, 98, 99, 100, 101],
        [NOT_SCORED, 102, NOT_SCORED],
    ]


@pytest.mark.parametrize("change", ["none", "fewer", "no alternatives", "not asked"])
def test_a_worker_that_scores_otherwise_is_given_up(change):
    bench = Bench(depth=1)
    sampling = SamplingParams() if change == "not asked" else SCORED
    bench.submit("x", letters(6), 2, sampling=sampling)
    bench.schedule()
    result = bench.engine.execute(bench.sent.popleft())
    scores = bench.model.score_prompt(letters(6), 2)
    wrong = {
        "none": None,
        "fewer": replace(scores, chosen=scores.chosen[1:]),
        "no alternatives": replace(scores, top_ids=array("i"), top_logprobs=array("f")),
        "not asked": scores,
    }[change]
    with pytest.raises(ValueError, match="scores other tokens"):
        bench.core.apply(replace(result, prompt_logprobs=wrong), 1)


@pytest.mark.parametrize(
    ("sampling", "field"),
    [
        (SamplingParams(logit_bias=((264, 1.0),)), "sampling.logit_bias"),
        (SamplingParams(logit_bias=((-1, 1.0),)), "sampling.logit_bias"),
        (SamplingParams(logit_bias=((2**31 - 1, 1.0),)), "sampling.logit_bias"),
        (SamplingParams(logprobs=265), "sampling.logprobs"),
        (SamplingParams(prompt_logprobs=265), "prompt_logprobs"),
    ],
)
def test_what_the_vocabulary_does_not_have_is_refused(sampling, field):  # field cases 80, 82
    bench = Bench()
    bench.submit("bad", letters(3), sampling=sampling)
    assert bench.endings["bad"].ending is Ending.REJECTED_INVALID
    assert bench.endings["bad"].field == field
    edge = SamplingParams(logit_bias=((263, 100.0),))
    assert bench.ask("next", letters(5), 3, sampling=edge) == [263] * 3


def test_the_same_in_a_scheduler_that_was_told_of_a_shorter_model():
    """A prompt alone needs no room for output when the worker comes back."""
    bench = Bench(c=4, L=64)
    bench.submit("x", letters(30), 0, sampling=SCORED)
    bench.step()
    bench.sent.clear()
    core: Scheduler = bench.core
    bench.engine.reset()
    bench.take(core.lose_worker(bench.now_ns))
    bench.take(core.regain_worker(replace(bench.engine.hello(), max_length=30), bench.now_ns))
    bench.run()
    check_scores(bench, "x", letters(30))
