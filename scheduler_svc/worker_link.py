"""The conversation with the worker: who is attached, what is in flight, whether it still lives.

Turns frames into facts (`Attached`, `Lost`, a `BatchResult`) and plans into frames.  Knows neither
requests nor slots, and never decides what to do about a loss.

Every attachment has an epoch of its own, drawn at random.  A worker that sees an epoch it does not
know says Hello, so drawing a new one is all it takes to start over with a worker that hung or
failed, and what it still answers to the old one is told apart.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from protos import wire
from protos.errors import WireError
from protos.plan import BatchPlan, BatchResult, Envelope, Fault, Hello, Message, Ping, Ready

SILENCE_NS = 10_000_000_000
"""An idle worker pings every second; one that is silent for longer than this is lost."""

MAX_MESSAGES_PER_POLL = 64

log = structlog.get_logger()


class Channel(Protocol):
    """Frames to and from peers; `radixd.chassis.channel.SchedulerChannel` is the real one."""

    num_malformed: int

    def send(self, peer: bytes, data: bytes) -> bool:
        """Queues a message; False when the peer is gone."""

    def receive(self, timeout_ms: int) -> tuple[bytes, bytes] | None:
        """The next (peer, message), or None."""

    def peer_may_be_gone(self) -> bool:
        """True shortly after some peer disconnected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """A worker is ready; its pool is empty and all its rows are free."""

    hello: Hello


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The attached worker is gone, or as good as gone; nothing in flight will be answered."""

    reason: str
    is_fault: bool = False
    """It lives, and said itself that a step failed."""


Event = Attached | Lost | BatchResult


def draw_epoch() -> int:
    """A random epoch, never 0."""
    return secrets.randbits(63) + 1


class WorkerLink:
    """One worker at a time, over a channel to any number of peers.  Belongs to one thread."""

    def __init__(
        self,
        channel: Channel,
        *,
        step_timeout_ns: int,
        now_ns: Callable[[], int],
        next_epoch: Callable[[], int] = draw_epoch,
    ) -> None:
        """Nobody is attached at first."""
        self._channel = channel
        self._step_timeout_ns = step_timeout_ns
        self._now_ns = now_ns
        self._next_epoch = next_epoch
        self._epoch = next_epoch()
        self._peer: bytes | None = None
        self._hello: Hello | None = None
        self._in_flight: list[int] = []
        self._oldest_since_ns = 0
        self._heard_ns = 0
        self._refused: dict[bytes, int] = {}
        self._events: list[Event] = []
        self._num_unreadable = 0
        self.num_ignored = 0
        """Messages of another epoch, of a step not in flight, or of a peer not attached."""
        self.worker_peak_rss_bytes = 0

    @property
    def num_malformed(self) -> int:
        """Messages dropped because of their frames, or because no codec of ours could read them."""
        return self._channel.num_malformed + self._num_unreadable

    def poll(self, timeout_ms: int) -> list[Event]:
        """What happened; waits up to `timeout_ms` when nothing has."""
        for _ in range(MAX_MESSAGES_PER_POLL):
            message = self._channel.receive(0 if self._events else timeout_ms)
            if message is None:
                break
            timeout_ms = 0
            self._read(*message)
        # Only now: after a pause of this process, signs of life may have been waiting.
        self._check_life()
        events, self._events = self._events, []
        return events

    def send(self, plan: BatchPlan) -> None:
        """Sends a plan; a worker that turns out to be gone is reported by the next poll."""
        if self._peer is None:
            return
        if not self._in_flight:
            self._oldest_since_ns = self._now_ns()
        self._in_flight.append(plan.step_id)
        if not self._say(self._peer, plan):
            self._lose("it disconnected")

    def give_up(self, reason: str) -> None:
        """Takes the attached worker for lost, as it answers nonsense; the next poll says so."""
        if self._peer is not None:
            self._lose(reason, is_fault=True)

    def _read(self, peer: bytes, data: bytes) -> None:
        try:
            envelope = wire.decode(data)
        except WireError as error:
            self._num_unreadable += 1
            # At 1, 2, 4, 8, ...: noise must not flood the log.
            if self._num_unreadable.bit_count() == 1:
                log.warning("message_malformed", problem=str(error), count=self._num_unreadable)
            return
        message = envelope.message
        if isinstance(message, Hello):
            self._meet(peer, message)
        elif peer != self._peer:
            self.num_ignored += 1
            # It knows another scheduler start, or an attachment that is over: make it say Hello.
            if self._peer is None:
                self._say(peer, Ping(instance_id=0))
        elif envelope.epoch != self._epoch:
            self.num_ignored += 1
        else:
            self._heard_ns = self._now_ns()
            self._hear(message)

    def _hear(self, message: Message) -> None:
        assert self._hello is not None
        if isinstance(message, BatchResult):
            self._take_result(message)
        elif isinstance(message, Fault):
            self._lose(f"step {message.step_id} failed: {message.message}", is_fault=True)
        elif isinstance(message, Ping):
            if message.instance_id != self._hello.instance_id:
                self._lose("another instance speaks on its connection")
        else:
            self.num_ignored += 1

    def _take_result(self, result: BatchResult) -> None:
        self.worker_peak_rss_bytes = max(self.worker_peak_rss_bytes, result.peak_rss_bytes)
        if result.step_id not in self._in_flight:
            self.num_ignored += 1
        elif result.step_id != self._in_flight[0]:
            self._lose(f"step {result.step_id} was answered before step {self._in_flight[0]}")
        else:
            del self._in_flight[0]
            self._oldest_since_ns = self._now_ns()
            self._events.append(result)

    def _meet(self, peer: bytes, hello: Hello) -> None:
        if self._peer is None or self._hello is None:
            self._attach(peer, hello)
            return
        is_same = hello.instance_id == self._hello.instance_id
        if peer == self._peer and is_same:
            # Said again before it had read our Ready, which is on its way.
            self.num_ignored += 1
        elif is_same or peer == self._peer:
            self._lose("it connected anew")
            self._attach(peer, hello)
        elif self._say(self._peer, Ping(instance_id=0)):
            self._refuse(peer, hello)
        else:
            self._lose("it disconnected")
            self._attach(peer, hello)

    def _attach(self, peer: bytes, hello: Hello) -> None:
        if not self._say(peer, Ready()):
            return
        self._peer, self._hello = peer, hello
        self._heard_ns = self._now_ns()
        self._refused.clear()
        log.info(
            "worker_attached",
            instance_id=f"{hello.instance_id:016x}",
            model=hello.model_id,
            kind=hello.kind,
            device=hello.device,
            num_slots=hello.num_slots,
        )
        self._events.append(Attached(hello=hello))

    def _refuse(self, peer: bytes, hello: Hello) -> None:
        self.num_ignored += 1
        if self._refused.get(peer) == hello.instance_id:
            return
        if len(self._refused) >= MAX_MESSAGES_PER_POLL:
            self._refused.clear()
        self._refused[peer] = hello.instance_id
        log.warning(
            "worker_refused",
            instance_id=f"{hello.instance_id:016x}",
            reason="another worker is attached",
        )

    def _check_life(self) -> None:
        if self._peer is None:
            return
        now_ns = self._now_ns()
        if self._channel.peer_may_be_gone() and not self._say(self._peer, Ping(instance_id=0)):
            self._lose("it disconnected")
        elif self._in_flight and now_ns - self._oldest_since_ns > self._step_timeout_ns:
            seconds = self._step_timeout_ns / 1e9
            self._lose(f"step {self._in_flight[0]} took longer than {seconds:g} s")
        elif not self._in_flight and now_ns - self._heard_ns > SILENCE_NS:
            self._lose(f"it was silent for {SILENCE_NS / 1e9:g} s")

    def _lose(self, reason: str, *, is_fault: bool = False) -> None:
        peer, self._peer, self._hello = self._peer, None, None
        num_in_flight = len(self._in_flight)
        self._in_flight.clear()
        self._epoch = self._next_epoch()
        log.warning("worker_lost", reason=reason, num_in_flight=num_in_flight)
        self._events.append(Lost(reason=reason, is_fault=is_fault))
        if peer is not None:
            # If it lives after all, the new epoch makes it say Hello.
            self._say(peer, Ping(instance_id=0))

    def _say(self, peer: bytes, message: Message) -> bool:
        return self._channel.send(peer, wire.encode(Envelope(epoch=self._epoch, message=message)))
