"""The model of a step's time: what it learns, and what it does not know."""

import random

import pytest

from scheduler_svc.core.step_time import (
    LEAST_STEPS,
    LEAST_STEPS_OF_KIND,
    MIN_PREFILL_TOKENS,
    MOST_SURPRISE,
    NEWEST_TURNAROUND,
    STEPS_BETWEEN_FITS,
    StepTimeModel,
)

MS = 1_000_000


def duration_ns(rows, tokens, base=3 * MS, per_row=20_000, per_token=9_000):
    return base + per_row * rows + per_token * tokens


def mixed(model, num_steps, rng=None, noise=0.0, scale=1.0):
    rng = rng or random.Random(1)
    for _ in range(num_steps):
        rows, tokens = rng.randrange(0, 200), rng.choice([0, 0, rng.randrange(1, 600)])
        exact = duration_ns(rows, tokens) * scale
        model.note(rows, tokens, round(exact * (1 + rng.uniform(-noise, noise))))
    return model


@pytest.mark.parametrize(("rows", "tokens"), [(0, 0), (1, 0), (0, 512), (256, 100), (64, 2000)])
def test_recovers_what_made_the_steps(rows, tokens):
    model = mixed(StepTimeModel(), 300)
    assert model.predict_ns(rows, tokens) == pytest.approx(duration_ns(rows, tokens), rel=1e-3)
    noisy = mixed(StepTimeModel(), 2000, noise=0.1)
    assert noisy.predict_ns(rows, tokens) == pytest.approx(duration_ns(rows, tokens), rel=0.15)


def test_says_nothing_before_it_has_seen_enough():
    model = StepTimeModel()
    for i in range(LEAST_STEPS - 1):
        model.note(4 + i, 0, duration_ns(4 + i, 0))
    assert model.predict_ns(4, 0) is None
    assert model.most_prefill_tokens(4, 1, 700) == 700
    model.note(4, 0, duration_ns(4, 0))
    assert model.predict_ns(4, 0) is not None
    assert model.predict_ns(4, 1) is None, "it has seen no prompt"
    assert model.prefill_ns(100) is None
    for i in range(LEAST_STEPS_OF_KIND):
        model.note(4, 10 + i, duration_ns(4, 10 + i))
    assert model.predict_ns(4, 1) is not None
    assert model.prefill_ns(100) is not None


def test_only_prompts_say_nothing_of_rows():
    model = StepTimeModel()
    for i in range(50):
        model.note(0, 100 + i, duration_ns(0, 100 + i))
    assert model.predict_ns(1, 0) is None
    assert model.predict_ns(0, 300) == pytest.approx(duration_ns(0, 300), rel=0.01)


def test_steps_that_nobody_measured_teach_nothing():
    model = StepTimeModel()
    for _ in range(100):
        model.note(4, 100, 0)
    assert model.predict_ns(4, 0) is None


def test_the_same_step_again_and_again():
    model = StepTimeModel()
    for _ in range(1000):
        model.note(64, 128, 5 * MS)
    assert model.predict_ns(64, 128) == pytest.approx(5 * MS, rel=1e-3)
    assert 0 <= model.predict_ns(0, 0) <= model.predict_ns(128, 256) <= 20 * MS
    assert model.prefill_ns(128) <= 5 * MS


def test_coefficients_are_never_negative():
    model = StepTimeModel()
    for i in range(100):
        model.note(i, 2 * i % 70, 9 * MS - 50_000 * i)
    assert model.predict_ns(0, 0) <= model.predict_ns(100, 0) <= model.predict_ns(100, 100)


def test_knows_prompts_still_after_thousands_of_streams_alone():
    model = mixed(StepTimeModel(), 200)
    for i in range(5000):
        model.note(i % 200, 0, duration_ns(i % 200, 0))
    assert model.predict_ns(64, 512) == pytest.approx(duration_ns(64, 512), rel=0.02)


def test_follows_a_worker_that_becomes_slower():
    model = mixed(mixed(StepTimeModel(), 500), 1000, scale=3.0)
    assert model.predict_ns(64, 256) == pytest.approx(3 * duration_ns(64, 256), rel=0.02)


def test_one_stop_of_the_worker_counts_little():
    model = mixed(StepTimeModel(), 500)
    model.note(64, 0, 60_000 * MS)
    exact = duration_ns(64, 256)
    assert model.predict_ns(64, 256) < exact * (1 + 0.05 * MOST_SURPRISE)
    assert mixed(model, 500).predict_ns(64, 256) == pytest.approx(exact, rel=0.02)


def test_most_prefill_tokens_is_the_largest_that_stays_below():
    model = mixed(StepTimeModel(), 300)
    for target_ns in range(5 * MS, 9 * MS, 333_333):
        most = model.most_prefill_tokens(50, target_ns, 2000)
        assert model.predict_ns(50, most) < target_ns <= model.predict_ns(50, most + 1)
    assert model.most_prefill_tokens(50, 100 * MS, 2000) == 2000
    assert model.most_prefill_tokens(50, 1, 2000) == MIN_PREFILL_TOKENS
    assert model.most_prefill_tokens(50, 1, 5) == 5
    assert model.most_prefill_tokens(50, 1, 0) == 0


def test_prefill_alone_takes_the_tokens_own_time():
    assert mixed(StepTimeModel(), 300).prefill_ns(1000) == pytest.approx(9 * MS, rel=1e-3)


def test_the_same_steps_give_the_same_fit():
    first, second = mixed(StepTimeModel(), 300, noise=0.3), mixed(StepTimeModel(), 300, noise=0.3)
    assert first.predict_ns(17, 333) == second.predict_ns(17, 333)
    assert STEPS_BETWEEN_FITS < 300


def test_the_turnaround_is_an_average_of_what_steps_did_not_take():
    model = StepTimeModel()
    model.note_turnaround(5 * MS, 0)
    assert model.turnaround_ns == 0, "a worker that measures nothing says nothing"
    model.note_turnaround(5 * MS, 3 * MS)
    assert model.turnaround_ns == 2 * MS
    model.note_turnaround(3 * MS, 4 * MS)  # by another clock
    assert model.turnaround_ns == 2 * MS * (1 - NEWEST_TURNAROUND)
    for _ in range(200):
        model.note_turnaround(9 * MS, 2 * MS)
    assert model.turnaround_ns == pytest.approx(7 * MS, rel=0.01)


def scored_ns(rows, tokens, scored):
    return duration_ns(rows, tokens) + 30_000 * scored


def test_a_scored_token_costs_the_head_as_well():
    model, rng = StepTimeModel(), random.Random(1)
    for i in range(300):
        rows, tokens = rng.randrange(0, 60), rng.choice([0, rng.randrange(1, 500)])
        scored = min(tokens, rng.randrange(256)) if i >= 100 else 0
        model.note(rows, tokens, scored_ns(rows, tokens, scored), scored=scored)
        if i == 99:
            assert model.predict_ns(8, 200, scored=200) == model.predict_ns(8, 200) > 0
    assert model.predict_ns(8, 200) == pytest.approx(duration_ns(8, 200), rel=0.01)
    assert model.predict_ns(8, 200, scored=200) == pytest.approx(scored_ns(8, 200, 200), rel=0.01)
    plain = model.most_prefill_tokens(8, 9 * MS, 512)
    scored = model.most_prefill_tokens(8, 9 * MS, 512, 0, 512)
    assert scored_ns(8, scored, scored) < 9.1 * MS < scored_ns(8, plain, plain)
    assert plain > 3 * scored
    assert model.prefill_ns(500, 2, 400) == pytest.approx(
        6 * MS + 500 * 9_000 + 400 * 30_000, rel=0.01
    )
    for _ in range(3000):  # nobody asks for a while: it is not forgotten
        model.note(8, 0, duration_ns(8, 0))
    assert model.predict_ns(8, 200, scored=200) == pytest.approx(scored_ns(8, 200, 200), rel=0.03)


def test_without_scores_nothing_is_learned_of_them():
    with_none, without = mixed(StepTimeModel(), 300), mixed(StepTimeModel(), 300)
    without.note(3, 40, duration_ns(3, 40))
    with_none.note(3, 40, duration_ns(3, 40), 0, 0)
    assert with_none.predict_ns(9, 99, 0, 50) == without.predict_ns(9, 99)
