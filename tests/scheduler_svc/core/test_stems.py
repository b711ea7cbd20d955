"""Stems: which rows of a plan share which slots, whatever happened to the tree.

The harness compares every plan with the slots of its rows, and with all there is to tell."""

import random

import pytest

from gpu_worker.fake_engine import FakeModel
from gpu_worker.fake_model import extend, no_logprobs
from protos.plan import SamplingParams
from tests.scheduler_svc.core.harness import Bench
from tests.scheduler_svc.core.sharing import stems_of, told
from tests.scheduler_svc.core.test_prefix_cache import letters

MODEL = FakeModel(eos_token_ids=(), eos_every=0)
MOST = 12


def bench_of(prompts, *, num_steps=8, **sizes):
    """All of these prompts, decoding."""
    bench = Bench(**({"N": 2000, "r": 16, "c": 200, "s": 5, "model": MODEL} | sizes))
    for number, prompt in enumerate(prompts):
        bench.submit(f"r{number}", prompt, MOST)
    for _ in range(num_steps):
        bench.step()
    assert len(bench.plans[-1].rows) == len(prompts)
    return bench


def rows_of(bench, *numbers):
    return sorted(bench.core.state.decoding[f"r{number}"].row for number in numbers)


def test_choices_of_one_prompt_share_it() -> None:
    stranger = [50, *letters(20)]
    bench = bench_of([letters(40), stranger, letters(40), letters(40)])
    assert told(bench.plans[-1]) == [(rows_of(bench, 0, 2, 3), 0, 40)]


def test_stems_within_stems_begin_where_those_around_them_end() -> None:
    trunk, branch = letters(40), [7] * 40
    prompts = [trunk + branch + [k, k] for k in range(3)] + [[*trunk, k, k] for k in range(20, 22)]
    bench = bench_of(prompts)
    assert told(bench.plans[-1]) == sorted(
        [(rows_of(bench, 0, 1, 2, 3, 4), 0, 40), (rows_of(bench, 0, 1, 2), 40, 80)]
    )


def test_a_stem_that_is_too_short_is_left_to_those_within_it() -> None:
    trunk, branch = letters(4), [7] * 40
    prompts = [trunk + branch + [k, k] for k in range(3)] + [[*trunk, k, k] for k in range(20, 22)]
    bench = bench_of(prompts)
    assert told(bench.plans[-1]) == [(rows_of(bench, 0, 1, 2), 0, 44)]
    assert not told(bench_of([[*letters(4), k, k] for k in range(3)]).plans[-1])


def test_a_stem_is_of_whole_pages() -> None:
    bench = bench_of([[*letters(40), k, k] for k in range(3)], p=16)
    assert told(bench.plans[-1]) == [(rows_of(bench, 0, 1, 2), 0, 32)]


def test_equal_tokens_in_other_slots_are_no_stem() -> None:
    bench = Bench(N=2000, r=4, c=200, s=5, model=MODEL)
    for number in range(3):
        bench.submit(f"r{number}", letters(40), MOST, no_store=True)
    for _ in range(6):
        bench.step()
    assert len(bench.plans[-1].rows) == 3
    assert not any(plan.stems for plan in bench.plans)


def test_rows_that_moved_to_slots_of_a_twin_share_them() -> None:
    bench = bench_of([letters(20)] * 3, s=5)  # too short to wait for
    remapped = next(plan for plan in bench.plans if plan.remaps)
    assert remapped.stems
    assert told(bench.plans[-1]) == [(rows_of(bench, 0, 1, 2), 0, 20)]


def test_whoever_is_gone_leaves_the_others_their_stem() -> None:
    bench = bench_of([letters(40)] * 4)
    bench.cancel("r1")
    bench.step()
    assert told(bench.plans[-1]) == [(rows_of(bench, 0, 2, 3), 0, 40)]
    bench.core.flush()
    bench.cancel("r0")
    bench.step()
    assert told(bench.plans[-1]) == [(rows_of(bench, 2, 3), 0, 40)]
    bench.cancel("r2")
    bench.step()
    assert told(bench.plans[-1]) == []
    bench.run()


def test_a_worker_that_does_not_ask_is_told_nothing() -> None:
    bench = bench_of([letters(40), [5] * 30] * 3, s=0)
    assert not any(plan.stems for plan in bench.plans)
    assert list(bench.plans[-1].rows) == [r.row for r in bench.core.state.decoding.values()]


class Listening(Bench):
    """Keeps the log probabilities of each request."""

    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.logprobs = {}

    def take(self, outputs):
        super().take(outputs)
        for output in outputs:
            if output.logprobs is not None:
                extend(self.logprobs.setdefault(output.request_id, no_logprobs()), output.logprobs)


def test_tokens_and_log_probabilities_stay_with_their_rows() -> None:
    heard = []
    for least in (0, 5):
        bench = Listening(N=2000, r=16, c=200, s=least, model=MODEL)
        for number in range(6):
            sampling = SamplingParams(logprobs=number % 3 - 1, temperature=1.0, seed=number)
            prompt = letters(40) if number % 2 else [number, *letters(20)]
            bench.submit(f"r{number}", prompt, MOST, sampling=sampling)
        bench.run()
        heard.append((bench.tokens, bench.logprobs))
        assert any(plan.stems for plan in bench.plans) == bool(least)
    assert heard[0] == heard[1]
    assert len(heard[0][1]) == 4


def prompt_of(story):
    """Prefixes of prefixes, so that edges split in all places."""
    prompt = [story.randrange(2)] * story.choice((3, 20, 40))
    for _ in range(story.randrange(3)):
        prompt += [story.randrange(2)] * story.choice((1, 6, 17))
    return prompt


@pytest.mark.parametrize(("p", "depth"), [(1, 2), (16, 1), (4, 2)])
def test_random_histories(p, depth) -> None:
    story = random.Random(p)
    bench = Bench(N=700, p=p, r=12, c=32, s=5, depth=depth, model=MODEL, wire=True)
    num_stems = 0
    for number in range(150):
        event, live = story.random(), list(bench.core.state.live)
        if event < 0.5:
            session = story.choice(("", "a", "b"))
            bench.submit(f"r{number}", prompt_of(story), story.randint(1, 30), session=session)
        elif event < 0.55 and live:
            bench.cancel(story.choice(live))
        elif event < 0.6 and bench.core.state.running:
            bench.core.state.retract(story.choice(list(bench.core.state.running.values())))
        elif event < 0.62:
            bench.core.flush()
        elif event < 0.63:
            bench.lose_worker()
        bench.step()
        num_stems += len(stems_of(bench.plans[-1]))
    bench.run()
    assert num_stems > 100, num_stems
