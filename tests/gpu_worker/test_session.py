"""What the worker says to which message, with a clock and a channel of the test's own."""

from __future__ import annotations

from array import array
from collections import deque

import pytest

from gpu_worker.engine import Engine, EngineLost, PlanError
from gpu_worker.fake_engine import FakeEngine, FakeModel
from gpu_worker.session import BEAT_NS, Session
from protos import wire
from protos.errors import InternalFault
from protos.plan import (
    BatchPlan,
    BatchResult,
    Envelope,
    Fault,
    Hello,
    Message,
    NewRow,
    Ping,
    Ready,
    SamplingParams,
)

EPOCH, OTHER_EPOCH, INSTANCE = 11, 22, 77


class FakeChannel:
    """Two queues."""

    def __init__(self) -> None:
        self.inbox: deque[bytes] = deque()
        self.outbox: list[bytes] = []

    def send(self, data: bytes) -> None:
        self.outbox.append(data)

    def receive(self, timeout_ms: int) -> bytes | None:
        return self.inbox.popleft() if self.inbox else None


class FailingEngine(FakeEngine):
    """Fails in the step it is told to."""

    error: Exception | None = None

    def execute(self, plan: BatchPlan) -> BatchResult:
        if self.error is not None:
            raise self.error
        return super().execute(plan)


class SlowStep:
    """A step in flight until the test says otherwise."""

    def __init__(self, result: BatchResult) -> None:
        self._result = result
        self.done = False
        self.error: Exception | None = None

    def is_done(self) -> bool:
        return self.done

    def result(self) -> BatchResult:
        self.done = True
        if self.error is not None:
            raise self.error
        return self._result


class SlowEngine(FakeEngine):
    """Like an engine on a device: what it began is done when the test says so."""

    def __init__(self) -> None:
        super().__init__(FakeModel(), num_slots=50, max_rows=4, max_length=40)
        self.steps: list[SlowStep] = []
        self.num_resets = 0

    def reset(self) -> None:
        super().reset()
        self.num_resets = getattr(self, "num_resets", 0) + 1

    def begin(self, plan: BatchPlan) -> SlowStep:  # type: ignore[override]
        self.steps.append(SlowStep(self.execute(plan)))
        return self.steps[-1]


class Bench:
    """A session and both its ends."""

    def __init__(self, engine: Engine | None = None) -> None:
        self.now_ns = 0
        self.channel = FakeChannel()
        engine = engine or FakeEngine(FakeModel(), num_slots=50, max_rows=4, max_length=40)
        self.session = Session(
            engine, self.channel, now_ns=lambda: self.now_ns, instance_id=INSTANCE
        )

    def tell(self, message: Message, epoch: int = EPOCH) -> list[Envelope]:
        """The session's answers to a message."""
        return self.tell_bytes(wire.encode(Envelope(epoch=epoch, message=message)))

    def tell_bytes(self, data: bytes) -> list[Envelope]:
        self.channel.inbox.append(data)
        return self.wait(0)

    def wait(self, duration_ns: int) -> list[Envelope]:
        """What the session says after this time."""
        self.now_ns += duration_ns
        self.session.turn(0)
        said, self.channel.outbox = self.channel.outbox, []
        return [wire.decode(data) for data in said]

    def ready(self) -> Bench:
        assert self.tell(Ready()) == []
        return self


def first_plan(step_id: int = 1) -> BatchPlan:
    return BatchPlan(
        step_id=step_id,
        rows=array("i", [0]),
        prefix_lens=array("i", [0]),
        extend_lens=array("i", [3]),
        samples=b"\1",
        input_ids=array("i", [65, 66, 67]),
        out_slots=array("i", [1, 2, 3]),
        new_rows=(NewRow(row=0, prefix_slots=array("i"), sampling=SamplingParams()),),
        freed_rows=array("i"),
    )


def next_plan(step_id: int, length: int) -> BatchPlan:
    return BatchPlan(
        step_id=step_id,
        rows=array("i", [0]),
        prefix_lens=array("i", [length]),
        extend_lens=array("i", [1]),
        samples=b"\1",
        input_ids=array("i", [-1]),
        out_slots=array("i", [length + 1]),
        freed_rows=array("i"),
    )


def only(envelopes: list[Envelope], kind: type[Message], epoch: int = EPOCH) -> Message:
    """The one message, of this kind and epoch."""
    (envelope,) = envelopes
    assert isinstance(envelope.message, kind)
    assert envelope.epoch == epoch
    return envelope.message


def test_hello_each_second_until_ready() -> None:
    bench = Bench()
    for _ in range(3):
        hello = only(bench.wait(BEAT_NS), Hello, epoch=0)
        assert isinstance(hello, Hello)
        assert hello.instance_id == INSTANCE
        assert bench.wait(BEAT_NS // 2) == []
        bench.now_ns -= BEAT_NS // 2
    bench.ready()
    ping = only(bench.wait(BEAT_NS), Ping)
    assert ping == Ping(instance_id=INSTANCE)


def test_instances_differ() -> None:
    engine = FakeEngine(FakeModel(), num_slots=50, max_rows=4, max_length=40)
    said = []
    for _ in range(2):
        channel = FakeChannel()
        Session(engine, channel, now_ns=lambda: BEAT_NS).turn(0)
        session = Session(engine, channel, now_ns=iter((0, BEAT_NS, BEAT_NS)).__next__)
        session.turn(0)
        message = wire.decode(channel.outbox[0]).message
        assert isinstance(message, Hello)
        said.append(message.instance_id)
    assert said[0] != said[1]
    assert all(0 < instance < 1 << 63 for instance in said)


def test_plans_are_answered_in_order() -> None:
    bench = Bench().ready()
    result = only(bench.tell(first_plan()), BatchResult)
    assert isinstance(result, BatchResult)
    assert result.step_id == 1
    assert len(result.token_ids) == 1
    assert result.peak_rss_bytes > 1 << 20
    assert isinstance(only(bench.tell(next_plan(2, 3)), BatchResult), BatchResult)


@pytest.mark.parametrize("step_id", [1, 3, 4])
def test_step_that_does_not_follow_is_a_fault(step_id: int) -> None:
    bench = Bench().ready()
    bench.tell(first_plan())
    fault = only(bench.tell(next_plan(step_id, 3)), Fault)
    assert isinstance(fault, Fault)
    assert fault.step_id == step_id
    assert "should follow" in fault.message


def test_after_a_fault_nothing_runs_until_ready() -> None:
    bench = Bench().ready()
    bench.tell(first_plan())
    only(bench.tell(next_plan(2, 9)), Fault)
    in_flight = only(bench.tell(next_plan(3, 3)), Fault)
    assert isinstance(in_flight, Fault)
    assert "not ready" in in_flight.message
    only(bench.wait(BEAT_NS), Hello)
    assert bench.tell(Ready(), OTHER_EPOCH) == []
    only(bench.tell(first_plan(), OTHER_EPOCH), BatchResult, OTHER_EPOCH)


def test_ready_frees_all_rows() -> None:
    bench = Bench().ready()
    bench.tell(first_plan())
    bench.tell(Ready(), OTHER_EPOCH)
    only(bench.tell(first_plan(), OTHER_EPOCH), BatchResult, OTHER_EPOCH)


def test_plan_of_an_unknown_epoch_gets_fault_and_hello() -> None:
    bench = Bench().ready()
    fault, hello = bench.tell(first_plan(), OTHER_EPOCH)
    assert (fault.epoch, fault.message) == (
        OTHER_EPOCH,
        Fault(step_id=1, message="the plan's epoch is unknown"),
    )
    assert isinstance(hello.message, Hello)


def test_sign_of_an_unknown_scheduler_gets_hello() -> None:
    bench = Bench().ready()
    assert bench.tell(Ping(instance_id=0)) == []
    only(bench.tell(Ping(instance_id=0), OTHER_EPOCH), Hello)


@pytest.mark.parametrize("data", [b"", b"\xff" * 40, b"\x08\x09", b"\x08\x01"])
def test_undecodable_bytes_are_counted_and_harmless(data: bytes) -> None:
    bench = Bench().ready()
    assert bench.tell_bytes(data) == []
    assert bench.session.num_undecodable == 1
    only(bench.tell(first_plan()), BatchResult)


@pytest.mark.parametrize("error", [InternalFault("no"), RuntimeError("x" * 9000), MemoryError()])
def test_engine_that_fails_is_a_fault_and_recovers(error: Exception) -> None:
    engine = FailingEngine(FakeModel(), num_slots=50, max_rows=4, max_length=40)
    bench = Bench(engine).ready()
    engine.error = error
    fault = only(bench.tell(first_plan()), Fault)
    assert isinstance(fault, Fault)
    assert 0 < len(fault.message) <= 500
    engine.error = None
    bench.tell(Ready(), OTHER_EPOCH)
    only(bench.tell(first_plan(), OTHER_EPOCH), BatchResult, OTHER_EPOCH)


def slow_bench() -> tuple[SlowEngine, Bench]:
    """Two steps in flight."""
    engine = SlowEngine()
    bench = Bench(engine).ready()
    assert bench.tell(first_plan()) == []
    assert bench.tell(next_plan(2, 3)) == []
    return engine, bench


def kinds(envelopes: list[Envelope]) -> list[tuple[type[Message], int]]:
    """What was said of which steps."""
    return [(type(e.message), getattr(e.message, "step_id", 0)) for e in envelopes]


def test_results_of_steps_in_flight_come_in_order_when_they_are_done() -> None:
    engine, bench = slow_bench()
    engine.steps[1].done = True
    assert bench.wait(0) == []
    engine.steps[0].done = True
    assert kinds(bench.wait(0)) == [(BatchResult, 1), (BatchResult, 2)]


def test_a_third_plan_waits_for_the_first() -> None:
    engine, bench = slow_bench()
    assert kinds(bench.tell(next_plan(3, 4))) == [(BatchResult, 1)]
    assert [step.done for step in engine.steps] == [True, False, False]


def test_a_step_that_fails_in_flight_takes_those_behind_it_along() -> None:
    engine, bench = slow_bench()
    engine.steps[0].error, engine.steps[0].done = InternalFault("lost"), True
    first, second = bench.wait(0)
    assert first.message == Fault(step_id=1, message="lost")
    assert isinstance(second.message, Fault)
    assert "not ready" in second.message.message
    assert kinds(bench.tell(next_plan(3, 4))) == [(Fault, 3)]
    assert len(engine.steps) == 2


def test_an_engine_that_is_lost_ends_the_session_when_all_is_said() -> None:
    engine, bench = slow_bench()
    engine.steps[0].error, engine.steps[0].done = EngineLost("lost"), True
    with pytest.raises(EngineLost):
        bench.wait(0)
    said = [wire.decode(data) for data in bench.channel.outbox]
    assert kinds(said) == [(Fault, 1), (Fault, 2)]


def test_an_engine_that_is_lost_in_the_beginning_ends_the_session_too() -> None:
    engine = FailingEngine(FakeModel(), num_slots=50, max_rows=4, max_length=40)
    bench = Bench(engine).ready()
    engine.error = EngineLost("lost")
    with pytest.raises(EngineLost):
        bench.tell(first_plan())
    assert kinds([wire.decode(data) for data in bench.channel.outbox]) == [(Fault, 1)]


def test_a_plan_that_is_refused_is_answered_behind_the_steps_in_flight() -> None:
    _, bench = slow_bench()
    assert kinds(bench.tell(next_plan(3, 9))) == [(BatchResult, 1), (BatchResult, 2), (Fault, 3)]


def test_a_step_that_fails_while_the_third_waits_refuses_it() -> None:
    engine, bench = slow_bench()
    engine.steps[0].error = PlanError("lost")
    assert kinds(bench.tell(next_plan(3, 4))) == [(Fault, 1), (Fault, 2), (Fault, 3)]


def test_ready_drops_what_is_in_flight() -> None:
    engine, bench = slow_bench()
    before = engine.num_resets
    assert bench.tell(Ready(), OTHER_EPOCH) == []
    engine.steps[0].done = engine.steps[1].done = True
    assert bench.wait(0) == []
    assert engine.num_resets == before + 1


def test_a_stranger_is_answered_behind_the_steps_in_flight() -> None:
    _, bench = slow_bench()
    said = bench.tell(first_plan(7), OTHER_EPOCH)
    assert kinds(said) == [(BatchResult, 1), (BatchResult, 2), (Fault, 7), (Hello, 0)]


def test_a_long_step_does_not_silence_the_worker() -> None:
    _, bench = slow_bench()
    assert kinds(bench.wait(BEAT_NS)) == [(Ping, 0)]
