"""The sums of steps: what counts as which kind, and that no time is counted twice."""

from array import array
from dataclasses import replace

from scheduler_svc.step_profile import StepProfile, StepSums
from tests.scheduler_svc.shell.scripted import a_plan, a_result


def plan_of(step_id: int, *rows: tuple[int, int]):
    """Of each row (tokens to compute, of which it samples after so many)."""
    num_tokens = sum(extend for extend, _ in rows)
    return replace(
        a_plan(step_id),
        rows=array("i", range(len(rows))),
        extend_lens=array("i", [extend for extend, _ in rows]),
        samples=bytes(samples for _, samples in rows),
        input_ids=array("i", [5] * num_tokens),
    )


def test_a_step_alone():
    profile = StepProfile()
    profile.sent(plan_of(1, (1, 1), (1, 1)), 100, 107)
    profile.answered(a_result(1, phases_ns=(40, 5, 6, 7, 8)), 207, 210)
    assert profile.prompt == StepSums()
    assert profile.decode == StepSums(
        num_steps=1,
        num_phased_steps=1,
        num_rows=2,
        num_tokens=2,
        num_sampled=1,
        busy_ns=100,
        products_ns=40,
        attention_ns=5,
        forward_rest_ns=6,
        sampling_ns=7,
        worker_rest_ns=8,
        schedule_ns=7,
        apply_ns=3,
    )


def test_what_two_plans_in_flight_share_of_the_time_counts_once():
    profile = StepProfile()
    profile.sent(plan_of(1, (1, 1)), 0, 0)
    profile.sent(plan_of(2, (1, 1)), 5, 10)
    profile.answered(a_result(1), 100, 100)
    profile.sent(plan_of(3, (1, 1)), 100, 101)
    profile.answered(a_result(2), 180, 180)
    profile.answered(a_result(3), 260, 260)
    assert profile.decode.busy_ns == 260
    profile.sent(plan_of(4, (1, 1)), 300, 300)  # idle in between
    profile.answered(a_result(4), 310, 310)
    assert profile.decode.busy_ns == 270


def test_kinds_of_steps():
    kinds = {
        "decode": [[(1, 1)], [(1, 1), (3, 3)]],  # the second with two drafts
        "prompt": [[(5, 1)], [(5, 0)], [(1, 0)], [(1, 1), (9, 1)]],
    }
    for kind, plans in kinds.items():
        for rows in plans:
            profile = StepProfile()
            profile.sent(plan_of(1, *rows), 0, 0)
            profile.answered(a_result(1), 1, 1)
            sums = getattr(profile, kind)
            assert (sums.num_steps, sums.num_rows) == (1, len(rows)), rows
            assert sums.num_tokens == sum(extend for extend, _ in rows)


def test_a_worker_that_measures_no_phases():
    profile = StepProfile()
    for step_id, phases_ns in enumerate([(), (0, 0, 0, 0, 0), (1, 2, 3)]):
        profile.sent(plan_of(step_id, (1, 1)), 0, 0)
        profile.answered(a_result(step_id, phases_ns=phases_ns), 9, 9)
    sums = profile.decode
    assert (sums.num_steps, sums.num_phased_steps, sums.products_ns) == (3, 0, 0)


def test_what_a_lost_worker_had_is_forgotten():
    profile = StepProfile()
    profile.sent(plan_of(1, (1, 1)), 0, 0)
    profile.forget_in_flight()
    profile.sent(plan_of(2, (1, 1)), 50, 50)
    profile.answered(a_result(2), 60, 60)
    assert (profile.decode.num_steps, profile.decode.busy_ns) == (1, 10)
