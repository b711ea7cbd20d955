"""The conversation with the worker: handshake, loss, and what is told apart."""

from itertools import count

import pytest

from protos.plan import Fault, Ping, Ready
from scheduler_svc.worker_link import SILENCE_NS, Attached, Lost, WorkerLink
from tests.scheduler_svc.shell.scripted import (
    Clock,
    FakeChannel,
    a_hello,
    a_plan,
    a_result,
)

WORKER, OTHER = b"worker", b"other"


class Scene:
    """A link with its fake channel and clock; epochs are 100, 101, 102, ..."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.channel = FakeChannel()
        epochs = count(100)
        self.link = WorkerLink(
            self.channel,
            step_timeout_ns=30_000_000_000,
            now_ns=self.clock,
            next_epoch=lambda: next(epochs),
        )

    @property
    def epoch(self) -> int:
        return self.link._epoch

    def attach(self, peer: bytes = WORKER, **changes):
        self.channel.hear(peer, a_hello(**changes))
        events = self.link.poll(0)
        self.channel.take_told()
        return events

    def hear(self, message, *, peer: bytes = WORKER, epoch: int | None = None):
        self.channel.hear(peer, message, self.epoch if epoch is None else epoch)
        return self.link.poll(0)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def reasons(events) -> list[str]:
    return [event.reason for event in events if isinstance(event, Lost)]


def test_hello_is_answered_with_ready_and_this_epoch(scene):
    scene.channel.hear(WORKER, a_hello())
    assert scene.link.poll(0) == [Attached(hello=a_hello())]
    ((peer, envelope),) = scene.channel.take_told()
    assert (peer, envelope.epoch, envelope.message) == (WORKER, 100, Ready())


def test_a_stranger_that_pings_is_pinged_so_that_it_says_hello(scene):
    assert scene.hear(Ping(instance_id=7), epoch=55) == []
    ((peer, envelope),) = scene.channel.take_told()
    assert (peer, envelope.epoch, envelope.message) == (WORKER, 100, Ping(instance_id=0))


def test_hello_repeated_before_ready_was_read_changes_nothing(scene):
    for _ in range(3):
        scene.channel.hear(WORKER, a_hello())
    assert scene.link.poll(0) == [Attached(hello=a_hello())]
    assert len(scene.channel.take_told()) == 1
    scene.link.send(a_plan(1))
    assert scene.hear(a_hello(), epoch=0) == []


def test_results_come_back_in_order(scene):
    scene.attach()
    scene.link.send(a_plan(1))
    scene.link.send(a_plan(2))
    scene.channel.hear(WORKER, a_result(1, peak_rss_bytes=123), scene.epoch)
    assert scene.hear(a_result(2)) == [a_result(1, peak_rss_bytes=123), a_result(2)]
    assert scene.link.worker_peak_rss_bytes == 123


def test_results_of_other_epochs_steps_and_peers_are_ignored_and_counted(scene):
    scene.attach()
    scene.link.send(a_plan(1))
    assert scene.hear(a_result(1), epoch=99) == []
    assert scene.hear(a_result(5)) == []
    assert scene.hear(a_result(1), peer=OTHER) == []
    assert scene.link.num_ignored == 3
    assert scene.hear(a_result(1)) == [a_result(1)]
    assert scene.hear(a_result(1)) == []
    assert scene.link.num_ignored == 4


def test_an_answer_out_of_order_loses_the_worker(scene):
    scene.attach()
    scene.link.send(a_plan(1))
    scene.link.send(a_plan(2))
    assert reasons(scene.hear(a_result(2))) == ["step 2 was answered before step 1"]


def test_noise_is_counted_and_changes_nothing(scene):  # field case 127
    scene.attach()
    scene.channel.inbox.extend([(WORKER, b"\x80\x04noise"), (OTHER, bytes(1000))])
    assert scene.link.poll(0) == []
    scene.channel.num_malformed = 5
    assert scene.link.num_malformed == 2 + 5
    scene.link.send(a_plan(1))
    assert scene.hear(a_result(1)) == [a_result(1)]


def test_a_fault_loses_the_worker_and_a_new_epoch_invites_it_back(scene):
    scene.attach()
    scene.link.send(a_plan(1))
    scene.channel.take_told()
    events = scene.hear(Fault(step_id=1, message="boom"))
    assert events == [Lost(reason="step 1 failed: boom", is_fault=True)]
    ((peer, envelope),) = scene.channel.take_told()
    assert (peer, envelope.epoch, envelope.message) == (WORKER, 101, Ping(instance_id=0))
    assert scene.hear(a_result(1), epoch=100) == []
    assert scene.attach() == [Attached(hello=a_hello())]
    assert scene.epoch == 101


def test_a_restarted_worker_takes_the_place_of_the_one_that_is_gone(scene):
    scene.attach()
    scene.channel.gone.append(WORKER)
    events = scene.attach(OTHER, instance_id=8)
    assert reasons(events) == ["it disconnected"]
    assert events[-1] == Attached(hello=a_hello(instance_id=8))


def test_the_same_worker_on_a_new_connection_has_lost_its_plans(scene):
    scene.attach()
    scene.link.send(a_plan(1))
    events = scene.attach(OTHER)
    assert reasons(events) == ["it connected anew"]
    assert events[-1] == Attached(hello=a_hello())


def test_a_second_worker_is_refused_while_the_first_lives(scene):
    scene.attach()
    for _ in range(3):
        assert scene.attach(OTHER, instance_id=8) == []
    scene.link.send(a_plan(1))
    assert scene.hear(a_result(1)) == [a_result(1)]
    scene.channel.gone.append(WORKER)
    assert scene.attach(OTHER, instance_id=8)[-1] == Attached(hello=a_hello(instance_id=8))


def test_a_disconnection_is_looked_into_by_a_ping(scene):
    scene.attach()
    scene.channel.suspicious = True
    assert scene.link.poll(0) == []
    ((_, envelope),) = scene.channel.take_told()
    assert envelope.message == Ping(instance_id=0)
    scene.channel.gone.append(WORKER)
    assert reasons(scene.link.poll(0)) == ["it disconnected"]
    assert scene.link.poll(0) == []


def test_a_plan_that_cannot_be_sent_is_a_loss_told_at_once(scene):
    scene.attach()
    scene.channel.gone.append(WORKER)
    scene.link.send(a_plan(1))
    scene.link.send(a_plan(2))
    assert reasons(scene.link.poll(5000)) == ["it disconnected"]
    assert scene.channel.timeouts_ms[-1] == 0


def test_a_step_may_take_long_but_not_longer_than_its_limit(scene):
    scene.attach()
    scene.link.send(a_plan(1))
    scene.clock.pass_s(29)
    scene.link.send(a_plan(2))
    assert scene.link.poll(0) == []
    assert scene.hear(a_result(1)) == [a_result(1)]
    # The second one's time runs from the first one's answer.
    scene.clock.pass_s(29)
    assert scene.link.poll(0) == []
    scene.clock.pass_s(2)
    assert reasons(scene.link.poll(0)) == ["step 2 took longer than 30 s"]


def test_an_idle_worker_must_ping(scene):
    scene.attach()
    for _ in range(5):
        scene.clock.pass_s(SILENCE_NS / 1e9 - 1)
        assert scene.hear(Ping(instance_id=7)) == []
    scene.clock.pass_s(SILENCE_NS / 1e9 + 1)
    assert reasons(scene.link.poll(0)) == ["it was silent for 10 s"]


def test_after_a_pause_of_the_scheduler_signs_of_life_count_first(scene):
    scene.attach()
    scene.clock.pass_s(3600)
    assert scene.hear(Ping(instance_id=7)) == []


def test_giving_up_a_worker_is_told_once(scene):
    scene.link.give_up("nobody is there")
    assert scene.link.poll(0) == []
    scene.attach()
    scene.link.give_up("its result is wrong")
    scene.link.give_up("its result is wrong")
    assert reasons(scene.link.poll(0)) == ["its result is wrong"]


def test_a_flood_of_messages_does_not_hold_up_the_loop(scene):
    scene.attach()
    for _ in range(1000):
        scene.channel.hear(OTHER, Ping(instance_id=1))
    scene.link.poll(0)
    assert len(scene.channel.inbox) > 900


def test_no_message_of_a_flood_is_lost(scene):
    scene.attach()
    for _ in range(200):
        scene.channel.hear(OTHER, Ping(instance_id=1))
    for _ in range(10):
        scene.link.poll(0)
    assert not scene.channel.inbox
    assert scene.link.num_ignored == 200
