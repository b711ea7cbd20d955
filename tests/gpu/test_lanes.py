"""Lanes: what one task does to its process costs that task alone."""

from tests.gpu.lane_workers import obedient, unmade
from tests.gpu.lanes import Limits, Lost, run_in_lanes


def limits(**changes: object) -> Limits:
    values: dict[str, object] = {"num_lanes": 1, "task_s": 30.0, "left_s": lambda: 60.0}
    return Limits(**(values | changes))  # type: ignore[arg-type]


def test_a_broken_process_is_replaced_and_the_rest_is_done() -> None:
    tasks = ["one", "die", "two", "break", "three"]
    found = dict(run_in_lanes(tasks, obedient, limits()))
    assert found["one"] == "one as number 1"
    assert found["die"] == Lost(reason="the process ended with status 3")
    assert found["two"] == "two as number 1"  # of a process of its own
    assert found["break"] == "break as number 2"
    assert found["three"] == "three as number 1"


def test_what_hangs_is_given_up_beside_what_goes_on() -> None:
    now_s, found = [0.0], {}
    some = limits(num_lanes=2, now_s=lambda: now_s[0])
    for task, outcome in run_in_lanes(["hang", "one", "two"], obedient, some):
        found[task] = outcome
        now_s[0] = 31.0 if len(found) == 2 else 0.0
    assert found["hang"] == Lost(reason="took more than 30 s")
    assert {found["one"], found["two"]} == {"one as number 1", "two as number 2"}


def test_a_worker_that_cannot_be_made_loses_every_task() -> None:
    found = dict(run_in_lanes(["one", "two"], unmade, limits()))
    assert set(found) == {"one", "two"}
    assert all(lost.was_started and "status 4" in lost.reason for lost in found.values())


def test_without_time_nothing_is_started() -> None:
    found = dict(run_in_lanes(["one", "two"], obedient, limits(left_s=lambda: 0.0)))
    late = Lost(reason="time", was_started=False)
    assert found == {"one": late, "two": late}


def test_what_runs_when_time_is_up_is_ended() -> None:
    times = iter([9.0, 9.0])
    found = dict(run_in_lanes(["hang", "one"], obedient, limits(left_s=lambda: next(times, 0.0))))
    late = Lost(reason="time", was_started=False)
    assert found == {"hang": late, "one": late}
