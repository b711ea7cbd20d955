"""The worker's side of the conversation with the scheduler.

One thread: receive, execute, answer.  Knows messages, epochs and step ids; the engine knows the
rest.  Not here: tensors, sockets, deciding anything.
"""

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import structlog

from gpu_worker.engine import Engine
from protos import wire
from protos.errors import RadixdError, WireError
from protos.plan import BatchPlan, Envelope, Fault, Message, Ping, Ready
from radixd.chassis.memory import peak_rss_bytes

_log = structlog.get_logger(__name__)

BEAT_NS = 1_000_000_000
"""Between two hellos while not ready, and between two pings while idle."""
_POLL_MS = 100
"""How long a stop may go unnoticed."""
_MAX_FAULT_CHARS = 500


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
    A Fault ends readiness, as the scheduler then takes the pool as empty, until the next Ready.
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
        self._last_sent_ns = now_ns()
        self.num_undecodable = 0
        """Messages that were no envelope; counted, logged, dropped."""

    def run(self, stop: threading.Event) -> None:
        """Serves until told to stop; notices it within a tenth of a second, after a step."""
        self._say_hello()
        while not stop.is_set():
            self.turn(_POLL_MS)
        _log.info("worker_stopped")

    def turn(self, timeout_ms: int) -> None:
        """Waits for one message and answers it; keeps the scheduler informed meanwhile."""
        data = self._channel.receive(timeout_ms)
        if data is not None:
            self._on_bytes(data)
        if self._now_ns() - self._last_sent_ns >= BEAT_NS:
            if self._is_ready:
                self._send(self._epoch, Ping(instance_id=self._instance_id))
            else:
                self._say_hello()

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
        self._engine.reset()
        self._epoch, self._is_ready, self._next_step_id = epoch, True, None
        _log.info("worker_ready", epoch=epoch, instance_id=self._instance_id)

    def _on_stranger(self, epoch: int) -> None:
        """A scheduler that does not know us: what we hold is of an earlier one."""
        _log.info("scheduler_changed", epoch=epoch, known_epoch=self._epoch)
        self._is_ready = False
        self._say_hello()

    def _on_plan(self, epoch: int, plan: BatchPlan) -> None:
        if epoch != self._epoch:
            self._send(epoch, Fault(step_id=plan.step_id, message="the plan's epoch is unknown"))
            self._on_stranger(epoch)
        elif not self._is_ready:
            self._fail(plan, "not ready: an earlier step failed")
        elif self._next_step_id not in (None, plan.step_id):
            self._fail(plan, f"step {self._next_step_id} should follow, not {plan.step_id}")
        else:
            self._execute(plan)

    def _execute(self, plan: BatchPlan) -> None:
        try:
            result = self._engine.execute(plan)
        except RadixdError as error:
            self._fail(plan, str(error))
        except Exception as error:
            # Whatever it is, the scheduler must hear of it, and the next plan be served.
            _log.exception("step_crashed", step_id=plan.step_id)
            self._fail(plan, f"{type(error).__name__}: {error}")
        else:
            self._next_step_id = plan.step_id + 1
            self._send(self._epoch, replace(result, peak_rss_bytes=peak_rss_bytes()))

    def _fail(self, plan: BatchPlan, problem: str) -> None:
        _log.error("step_failed", step_id=plan.step_id, problem=problem)
        self._is_ready = False
        fault = Fault(step_id=plan.step_id, message=problem[:_MAX_FAULT_CHARS])
        self._send(self._epoch, fault)

    def _say_hello(self) -> None:
        self._send(self._epoch, replace(self._engine.hello(), instance_id=self._instance_id))

    def _send(self, epoch: int, message: Message) -> None:
        self._channel.send(wire.encode(Envelope(epoch=epoch, message=message)))
        self._last_sent_ns = self._now_ns()
