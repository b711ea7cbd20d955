"""The loop's turn: commands in, plans out, news in one piece, nobody's request confused."""

from concurrent.futures import Future

import pytest

from scheduler_svc.core.config import SchedulerConfig
from scheduler_svc.core.messages import Ending
from scheduler_svc.engine_loop import (
    IDLE_TURN_MS,
    MAX_COMMANDS_PER_TURN,
    MAX_FAULTS,
    MAX_INBOX,
    Ask,
    Cancel,
    EngineLoop,
    Submit,
)
from scheduler_svc.lobby import Lobby
from scheduler_svc.worker_link import Attached, Lost
from tests.scheduler_svc.shell.scripted import (
    Clock,
    FakeCore,
    FakeLink,
    a_hello,
    a_result,
    a_submission,
)


class Scene:
    def __init__(self) -> None:
        self.clock = Clock()
        self.link = FakeLink()
        self.deliveries = []
        self.crashes = []
        self.num_wakes = 0
        self.loop = EngineLoop(
            self.link,
            FakeCore,
            config=SchedulerConfig(),
            lobby=Lobby(max_waiting=3),
            now_ns=self.clock,
            wake=self._wake,
            deliver=self.deliveries.append,
            on_crash=self.crashes.append,
        )

    def _wake(self) -> None:
        self.num_wakes += 1

    def submit(self, request_id: str, front_id: int = 1, **changes) -> bool:
        submission = a_submission(request_id, **changes)
        return self.loop.post(Submit(front_id=front_id, submission=submission))

    def turn(self, *events):
        self.link.script.append(list(events))
        self.loop.turn()
        deliveries, self.deliveries[:] = list(self.deliveries), []
        return deliveries

    def news(self, *events) -> dict[int, list[tuple[str, Ending | None]]]:
        """By front: (request id, ending) of each output of one turn."""
        deliveries = self.turn(*events)
        assert len(deliveries) <= 1
        outputs = deliveries[0].outputs if deliveries else {}
        return {
            front_id: [(output.request_id, output.ending) for output in ours]
            for front_id, ours in outputs.items()
        }


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.turn(Attached(hello=a_hello()))
    return scene


def test_plans_go_out_until_enough_are_in_flight(scene):
    scene.submit("a")
    scene.turn()
    assert [plan.step_id for plan in scene.link.sent] == [1, 2]
    scene.turn(a_result(1))
    assert [plan.step_id for plan in scene.link.sent] == [1, 2, 3]


def test_time_of_steps_is_summed(scene):
    scene.submit("a")
    scene.turn()
    scene.clock.pass_s(2.0)
    scene.turn(a_result(1, phases_ns=(5, 4, 3, 2, 1)))
    sums = scene.loop.profile.decode
    assert (sums.num_steps, sums.busy_ns, sums.products_ns) == (1, 2_000_000_000, 5)
    scene.turn(Lost(reason="gone"))
    scene.turn(Attached(hello=a_hello()))
    scene.clock.pass_s(3.0)
    scene.turn(a_result(4))
    assert (sums.num_steps, sums.busy_ns) == (2, 5_000_000_000), "plans 2 and 3 were lost"


def test_news_of_a_turn_come_in_one_piece_by_front(scene):
    for number in range(4):
        scene.submit(f"r{number}", front_id=number % 2, max_tokens=1)
    scene.turn()
    assert scene.news(a_result(1)) == {
        0: [("r0", Ending.LENGTH), ("r2", Ending.LENGTH)],
        1: [("r1", Ending.LENGTH), ("r3", Ending.LENGTH)],
    }


def test_an_idle_turn_waits_and_a_busy_one_does_not(scene):
    scene.turn()
    assert scene.link.timeouts_ms[-1] == IDLE_TURN_MS
    scene.submit("a")
    scene.turn()
    assert scene.link.timeouts_ms[-1] == 0
    scene.loop.core.deadline_ns = scene.clock.now + 20_000_000
    scene.turn()
    assert scene.link.timeouts_ms[-1] == 20
    scene.loop.core.deadline_ns = scene.clock.now - 1
    scene.turn()
    assert scene.link.timeouts_ms[-1] == 0


def test_an_id_in_use_is_refused_to_whoever_asks_second(scene):  # field case 59
    scene.submit("x", front_id=1)
    scene.submit("x", front_id=2)
    assert scene.news() == {2: [("x", Ending.REJECTED_DUPLICATE_ID)]}
    assert scene.news(a_result(1)) == {1: [("x", None)]}
    scene.loop.post(Cancel(front_id=2, request_id="x"))
    assert scene.news() == {}
    scene.loop.post(Cancel(front_id=1, request_id="x"))
    assert scene.news() == {1: [("x", Ending.CANCELLED)]}
    scene.submit("x", front_id=2, max_tokens=1)
    scene.turn()
    assert scene.loop.core.calls.count("submit x") == 2


def test_a_refused_id_is_free_again(scene):
    scene.submit("x", max_tokens=0)
    assert scene.news() == {1: [("x", Ending.REJECTED_INVALID)]}
    scene.submit("x")
    assert scene.news() == {}


def test_a_front_that_leaves_takes_its_requests_along(scene):
    scene.submit("a", front_id=1)
    scene.submit("b", front_id=2)
    scene.submit("c", front_id=1)
    scene.turn()
    scene.loop.leave(1)
    scene.turn()
    assert [call for call in scene.loop.core.calls if call.startswith("cancel")] == [
        "cancel a",
        "cancel c",
    ]
    assert scene.news(a_result(1)) == {2: [("b", None)]}


def test_unknown_cancels_are_harmless(scene):
    scene.loop.post(Cancel(front_id=1, request_id="never"))
    assert scene.news() == {}


def test_the_inbox_is_bounded_but_a_leaving_front_is_always_heard(scene):
    assert all(scene.submit(f"r{number}") for number in range(MAX_INBOX))
    assert not scene.submit("one more")
    scene.loop.leave(1)
    scene.turn()
    assert scene.loop.core.num_waiting == MAX_COMMANDS_PER_TURN
    for _ in range(MAX_INBOX // MAX_COMMANDS_PER_TURN):
        scene.turn()
    assert scene.loop.core.num_waiting == 0


def test_a_lost_worker_is_told_to_core_and_fronts(scene):
    scene.submit("a")
    scene.turn()
    (delivery,) = scene.turn(Lost(reason="gone"))
    assert (delivery.worker_changed, delivery.hello) == (True, None)
    assert scene.loop.core.calls[-1] == "lose_worker"
    assert scene.turn() == []
    back = a_hello(instance_id=8)
    (delivery,) = scene.turn(Attached(hello=back))
    assert (delivery.worker_changed, delivery.hello) == (True, back)
    assert scene.loop.core.calls[-1] == "regain_worker"
    assert [plan.step_id for plan in scene.link.sent] == [1, 2, 3, 4]


def fault() -> Lost:
    return Lost(reason="step 1 failed: boom", is_fault=True)


def test_requests_that_no_worker_can_bear_are_ended(scene):
    scene.submit("poison")
    scene.turn()
    for _ in range(MAX_FAULTS - 1):
        assert scene.news(fault(), Attached(hello=a_hello())) == {}
    (delivery,) = scene.turn(fault(), Attached(hello=a_hello()))
    (output,) = delivery.outputs[1]
    assert (output.ending, output.message) == (Ending.FAILED, "step 1 failed: boom")
    scene.submit("next")
    scene.turn()
    assert scene.news(fault(), Attached(hello=a_hello())) == {}


def test_rare_faults_and_dead_workers_end_nobody(scene):
    scene.submit("a")
    for _ in range(2 * MAX_FAULTS):
        assert scene.news(fault(), Attached(hello=a_hello())) == {}
        assert scene.news(Lost(reason="it disconnected"), Attached(hello=a_hello())) == {}
        scene.clock.pass_s(31)


def test_a_result_the_core_cannot_take_costs_the_worker_not_the_loop(scene):
    scene.submit("a")
    scene.turn()
    scene.turn(a_result(77))
    assert scene.link.given_up == ["answers no plan in flight"]
    assert scene.crashes == []


def test_questions_are_answered_between_turns(scene):
    answer, failure = Future(), Future()
    scene.loop.post(Ask(question=lambda loop: loop.core.hello, answer=answer))
    scene.loop.post(Ask(question=lambda loop: loop.nonsense, answer=failure))
    scene.turn()
    assert answer.result(timeout=0) == a_hello()
    with pytest.raises(AttributeError):
        failure.result(timeout=0)
    assert scene.crashes == []


def test_a_question_whose_asker_gave_up_is_dropped(scene):  # field case 53
    given_up, asked = Future(), []
    given_up.cancel()
    scene.loop.post(Ask(question=asked.append, answer=given_up))
    scene.turn()
    assert scene.crashes == []
    assert asked == []


def test_before_the_first_worker_requests_wait_in_order():  # field case 128
    scene = Scene()
    for name in "abcd":
        scene.submit(name, front_id=ord(name))
    assert scene.news() == {ord("d"): [("d", Ending.REJECTED_QUEUE_FULL)]}
    scene.loop.post(Cancel(front_id=ord("b"), request_id="b"))
    assert scene.news() == {ord("b"): [("b", Ending.CANCELLED)]}
    scene.turn(Attached(hello=a_hello()))
    assert scene.loop.core.calls == ["submit a", "submit c"]
    assert scene.news(a_result(1)) == {ord("a"): [("a", None)], ord("c"): [("c", None)]}


def test_before_the_first_worker_deadlines_hold():
    scene = Scene()
    scene.submit("a", deadline_ns=scene.clock.now + 1_000_000_000)
    assert scene.news() == {}
    scene.turn()
    assert scene.link.timeouts_ms[-1] == IDLE_TURN_MS
    scene.clock.pass_s(1)
    assert scene.news() == {1: [("a", Ending.DEADLINE)]}


def test_a_policy_set_before_the_first_worker_holds_for_its_core():
    scene = Scene()
    scene.loop.set_policy({"waiting_order": "fcfs", "chunk_sizes": {"own": 8}})
    scene.turn(Attached(hello=a_hello()))
    for config in (scene.loop.core.config, scene.loop.config):
        assert config.waiting_order == "fcfs"
        assert config.chunk_sizes == {"chat": 512, "code": 1024, "longform": 2048, "own": 8}


def test_a_policy_outlives_the_worker(scene):
    scene.loop.set_policy({"most_passes": 5})
    scene.turn(Lost(reason="gone"))
    scene.loop.set_policy({"weight_age": 7.0})
    scene.turn(Attached(hello=a_hello(instance_id=8)))
    for config in (scene.loop.core.config, scene.loop.config):
        assert (config.most_passes, config.weight_age) == (5, 7.0)


@pytest.mark.parametrize("has_core", [False, True])
def test_a_policy_that_cannot_be_changes_nothing(has_core):
    scene = Scene()
    if has_core:
        scene.turn(Attached(hello=a_hello()))
    with pytest.raises(ValueError, match=r"^low_watermark: "):
        scene.loop.set_policy({"most_passes": 5, "low_watermark": 0.99})
    assert scene.loop.config == SchedulerConfig()


def test_a_defect_ends_the_loop_and_is_reported(scene):
    def explode(now_ns):
        raise AssertionError("books do not balance")

    scene.loop.core.schedule = explode
    scene.loop.start()
    scene.loop.stop()
    (crash,) = scene.crashes
    assert str(crash) == "books do not balance"


def test_the_thread_ends_when_told(scene):
    scene.loop.start()
    scene.loop.stop()
    assert scene.crashes == []
    assert scene.num_wakes >= 1
