"""The worker's side of the conversation with the scheduler.

One thread: receive, begin, answer.  At most two steps are in flight, so that an engine on a device
has the next one while it computes; results leave in order.  Knows messages, epochs and step ids;
the engine knows the rest.  Not here: tensors, sockets, deciding anything.
"""

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import structlog

from gpu_worker.engine import Engine, EngineLost, StepInFlight
from protos import wire
from protos.errors import RadixdError, WireError
from protos.plan import BatchPlan, Envelope, Fault, Message, Ping, Ready
from radixd.chassis.memory import peak_rss_bytes

_log = structlog.get_logger(__name__)

BEAT_NS = 1_000_000_000
"""Between two hellos while not ready, and between two pings while idle."""
MAX_IN_FLIGHT = 2
"""Steps that are begun and not answered."""
_POLL_MS = 100
"""How long a stop may go unnoticed."""
GLANCE_S = 50e-6
"""Between two looks at a step in flight: a step of a device takes milliseconds."""
_MAX_FAULT_CHARS = 500
_NOT_READY = "not ready: an earlier step failed"


class Channel(Protocol):
    """Whole messages to and from the scheduler."""

    def send(self, data: bytes) -> None:
        """Queues one message."""
        ...

    def receive(self, timeout_ms: int) -> bytes | None:
        """The next message, or None after the timeout."""
        ...


class Session:
    """Serves one engine to whichever scheduler is at the other end.

    Not ready: no epoch; says Hello each second; every plan gets a Fault.
    Ready: has adopted an epoch; plans of that epoch, in order, are executed.
    A Fault ends readiness, as the scheduler then takes the pool as empty, until the next Ready;
    a step in flight behind it gets one too.  A Ready drops what is in flight.
    """

    def __init__(
        self,
        engine: Engine,
        channel: Channel,
        *,
        now_ns: Callable[[], int] = time.monotonic_ns,
        instance_id: int | None = None,
    ) -> None:
        self._engine = engine
        self._channel = channel
        self._now_ns = now_ns
        self._instance_id = instance_id or secrets.randbits(63) | 1
        self._epoch = 0
        self._is_ready = False
        self._next_step_id: int | None = None  # None: whatever the first plan after Ready says
        self._in_flight: deque[tuple[int, StepInFlight]] = deque()  # with their step ids
        self._last_sent_ns = now_ns()
        self.num_undecodable = 0
        """Messages that were no envelope; counted, logged, dropped."""

    def run(self, stop: threading.Event) -> None:
        """Serves until told to stop; notices it within a tenth of a second, after a step.

        Raises:
            EngineLost: by the engine; the scheduler has been told that its steps failed.
        """
        self._say_hello()
        while not stop.is_set():
            self.turn(_POLL_MS)
        self._finish_all()
        _log.info("worker_stopped")

    def turn(self, timeout_ms: int) -> None:
        """Waits for one message, or for a step in flight, and answers; keeps the scheduler
        informed meanwhile."""
        data = self._receive(timeout_ms)
        if data is not None:
            self._on_bytes(data)
        self._finish_done()
        if self._now_ns() - self._last_sent_ns >= BEAT_NS:
            if self._is_ready:
                self._send(self._epoch, Ping(instance_id=self._instance_id))
            else:
                self._say_hello()

    def _receive(self, timeout_ms: int) -> bytes | None:
        """The next message; None when none came in time, or a step is done."""
        if not self._in_flight:
            return self._channel.receive(timeout_ms)
        deadline_ns = time.monotonic_ns() + timeout_ms * 1_000_000
        while True:
            data = self._channel.receive(0)
            if data is not None or self._in_flight[0][1].is_done():
                return data
            if time.monotonic_ns() >= deadline_ns:
                return None
            time.sleep(GLANCE_S)

    def _on_bytes(self, data: bytes) -> None:
        try:
            envelope = wire.decode(data)
        except WireError as error:
            self.num_undecodable += 1
            _log.warning(
                "message_undecodable",
                problem=str(error),
                num_bytes=len(data),
                count=self.num_undecodable,
            )
            return
        message = envelope.message
        if isinstance(message, Ready):
            self._on_ready(envelope.epoch)
        elif isinstance(message, BatchPlan):
            self._on_plan(envelope.epoch, message)
        elif envelope.epoch != self._epoch:
            self._on_stranger(envelope.epoch)

    def _on_ready(self, epoch: int) -> None:
        self._in_flight.clear()
        self._engine.reset()
        self._epoch, self._is_ready, self._next_step_id = epoch, True, None
        _log.info("worker_ready", epoch=epoch, instance_id=self._instance_id)

    def _on_stranger(self, epoch: int) -> None:
        """A scheduler that does not know us: what we hold is of an earlier one."""
        self._finish_all()
        _log.info("scheduler_changed", epoch=epoch, known_epoch=self._epoch)
        self._is_ready = False
        self._say_hello()

    def _on_plan(self, epoch: int, plan: BatchPlan) -> None:
        if epoch != self._epoch:
            self._finish_all()
            self._send(epoch, Fault(step_id=plan.step_id, message="the plan's epoch is unknown"))
            self._on_stranger(epoch)
        elif not self._is_ready:
            self._fail(plan.step_id, _NOT_READY)
        elif self._next_step_id not in (None, plan.step_id):
            self._fail(plan.step_id, f"step {self._next_step_id} should follow, not {plan.step_id}")
        else:
            self._begin(plan)

    def _begin(self, plan: BatchPlan) -> None:
        while len(self._in_flight) >= MAX_IN_FLIGHT:
            self._finish_first()
        if not self._is_ready:
            self._fail(plan.step_id, _NOT_READY)
            return
        try:
            step = self._engine.begin(plan)
        except Exception as error:
            self._fail(plan.step_id, _problem(plan.step_id, error))
            if isinstance(error, EngineLost):
                raise
        else:
            self._next_step_id = plan.step_id + 1
            self._in_flight.append((plan.step_id, step))

    def _finish_done(self) -> None:
        while self._in_flight and self._in_flight[0][1].is_done():
            self._finish_first()

    def _finish_all(self) -> None:
        while self._in_flight:
            self._finish_first()

    def _finish_first(self) -> None:
        """Answers the plan of the first step in flight, when it is done."""
        step_id, step = self._in_flight.popleft()
        if not self._is_ready:
            self._send_fault(step_id, _NOT_READY)
            return
        try:
            result = step.result()
        except Exception as error:
            self._is_ready = False
            self._send_fault(step_id, _problem(step_id, error))
            self._finish_all()
            if isinstance(error, EngineLost):
                raise
        else:
            self._send(self._epoch, replace(result, peak_rss_bytes=peak_rss_bytes()))

    def _fail(self, step_id: int, problem: str) -> None:
        """Refuses a plan, after what came before it is answered."""
        self._finish_all()
        self._is_ready = False
        self._send_fault(step_id, problem)

    def _send_fault(self, step_id: int, problem: str) -> None:
        _log.error("step_failed", step_id=step_id, problem=problem)
        self._send(self._epoch, Fault(step_id=step_id, message=problem[:_MAX_FAULT_CHARS]))

    def _say_hello(self) -> None:
        self._send(self._epoch, replace(self._engine.hello(), instance_id=self._instance_id))

    def _send(self, epoch: int, message: Message) -> None:
        self._channel.send(wire.encode(Envelope(epoch=epoch, message=message)))
        self._last_sent_ns = self._now_ns()


def _problem(step_id: int, error: Exception) -> str:
    """What the scheduler is told of a step that failed, whatever it is: the next plan is served."""
    if isinstance(error, RadixdError):
        return str(error)
    _log.error("step_crashed", step_id=step_id, exc_info=error)
    return f"{type(error).__name__}: {error}"
