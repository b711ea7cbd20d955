"""The thread that owns the core and the worker's link, and alone calls either.

Each turn: hear the worker, take commands, plan, send, deliver.  It decides nothing about requests
and knows nothing of gRPC; commands come in by a bounded inbox, news go out in one piece a turn.
"""

import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from protos.plan import BatchPlan, BatchResult, Hello
from scheduler_svc.core.config import SchedulerConfig
from scheduler_svc.core.messages import Ending, Output, Submission
from scheduler_svc.core.policy_change import changed
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.lobby import Lobby
from scheduler_svc.step_profile import StepProfile
from scheduler_svc.worker_link import Attached, Event, Lost

MAX_INBOX = 8192
"""Commands that may wait for the loop; the stream they come from waits when there are more."""

MAX_COMMANDS_PER_TURN = 256
"""So that a flood of requests cannot hold up the steps of those that run."""

IDLE_TURN_MS = 500
"""Longest wait, so that a silent worker is noticed."""

MAX_FAULTS = 3
FAULT_WINDOW_NS = 60_000_000_000
"""So many failed steps within this time, and the requests that run are ended as failed."""

_NS_PER_MS = 1_000_000
log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """A front hands in a request."""

    front_id: int
    submission: Submission


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """A front gives up a request; without effect when the request is not its own."""

    front_id: int
    request_id: str
    finished: bool = False
    """Its output is complete; see `Scheduler.cancel`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """A front is gone: nobody waits for its requests."""

    front_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A question that only the owner of the core can answer."""

    question: Callable[["EngineLoop"], Any]
    answer: Future[Any]


Command = Submit | Cancel | Leave | Ask


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What one turn brought, for the side that talks to fronts."""

    outputs: dict[int, list[Output]]
    """By front id, each in order."""
    worker_changed: bool
    hello: Hello | None
    """Who is attached now; None: nobody."""


class Link(Protocol):
    """`scheduler_svc.worker_link.WorkerLink`, as far as the loop needs it."""

    num_ignored: int
    worker_peak_rss_bytes: int

    @property
    def num_malformed(self) -> int:
        """Messages dropped because nobody could read them."""

    def poll(self, timeout_ms: int) -> list[Event]:
        """What happened; waits up to `timeout_ms` when nothing has."""

    def send(self, plan: BatchPlan) -> None:
        """Sends a plan."""

    def give_up(self, reason: str) -> None:
        """Takes the attached worker for lost."""


class EngineLoop:
    """Runs in a thread of its own between `start` and `stop`; `post` may be called from any."""

    def __init__(
        self,
        link: Link,
        make_core: Callable[[SchedulerConfig, Hello], Scheduler],
        *,
        config: SchedulerConfig,
        lobby: Lobby,
        now_ns: Callable[[], int],
        wake: Callable[[], None],
        deliver: Callable[[Delivery], None],
        on_crash: Callable[[BaseException], None],
    ) -> None:
        """The loop's thread calls `deliver` and `on_crash`; `wake` ends a poll of the link."""
        self.link = link
        self.core: Scheduler | None = None
        """None until the first worker has connected."""
        self.hello: Hello | None = None
        """The attached worker's, or None while there is none."""
        self.config = config
        """The policies in force; what is set before the first worker holds for its core."""
        self.lobby = lobby
        self.now_ns = now_ns
        self.profile = StepProfile()
        self._make_core = make_core
        self._wake = wake
        self._deliver = deliver
        self._on_crash = on_crash
        self._inbox: deque[Command] = deque()
        self._owners: dict[str, int] = {}
        self._news: dict[int, list[Output]] = {}
        self._faults_ns: list[int] = []
        self._worker_changed = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine_loop", daemon=True)

    # --- from any thread --------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to turn."""
        self._thread.start()

    def stop(self) -> None:
        """Ends after the present turn and waits for that."""
        self._stopping = True
        self._wake()
        self._thread.join()

    def post(self, command: Submit | Cancel | Ask) -> bool:
        """Hands in a command; False when too many wait already."""
        if len(self._inbox) >= MAX_INBOX:
            return False
        self._inbox.append(command)
        self._wake()
        return True

    def leave(self, front_id: int) -> None:
        """Gives up all of a front's requests; never refused, as there are few fronts."""
        self._inbox.append(Leave(front_id=front_id))
        self._wake()

    # --- in the loop's thread ---------------------------------------------------------------------

    def turn(self) -> None:
        """One turn; waits for something to happen when there is nothing to do."""
        for event in self.link.poll(self._patience_ms()):
            self._digest(event)
        self._take_commands()
        self._plan()
        if self._news or self._worker_changed:
            self._deliver(
                Delivery(outputs=self._news, worker_changed=self._worker_changed, hello=self.hello)
            )
            self._news, self._worker_changed = {}, False

    @property
    def num_running(self) -> int:
        """Requests that hold slots."""
        return self.core.num_running if self.core is not None else 0

    @property
    def num_waiting(self) -> int:
        """Requests that wait, in the core or for the first worker."""
        return self.core.num_waiting if self.core is not None else len(self.lobby)

    def set_policy(self, changes: Mapping[str, object]) -> SchedulerConfig:
        """Changes policies, all of the given or none; see `core.policy_change`.

        Raises:
            ValueError: names the field.
        """
        if self.core is None:
            self.config = changed(self.config, changes)
        else:
            self.config = self.core.set_policy(changes)
        return self.config

    def _run(self) -> None:
        try:
            while not self._stopping:
                self.turn()
        except BaseException as error:
            # Books that may be wrong must not serve anybody: the process ends and starts afresh.
            log.exception("engine_loop_crashed")
            self._on_crash(error)

    def _patience_ms(self) -> int:
        if self._inbox:
            return 0
        keeper = self.core or self.lobby
        deadline_ns = keeper.next_deadline_ns()
        if deadline_ns is None:
            return IDLE_TURN_MS
        left_ms = -((self.now_ns() - deadline_ns) // _NS_PER_MS)
        return max(0, min(IDLE_TURN_MS, left_ms))

    def _digest(self, event: Event) -> None:
        now_ns = self.now_ns()
        if isinstance(event, BatchResult):
            self._apply(event, now_ns)
        elif isinstance(event, Lost):
            self._lose_worker(event, now_ns)
        else:
            self._welcome(event, now_ns)

    def _apply(self, result: BatchResult, now_ns: int) -> None:
        assert self.core is not None
        try:
            outputs = self.core.apply(result, now_ns)
        except ValueError as error:
            self.link.give_up(str(error))
        else:
            self.profile.answered(result, now_ns, self.now_ns())
            self._route(outputs)

    def _lose_worker(self, event: Lost, now_ns: int) -> None:
        assert self.core is not None
        self.hello, self._worker_changed = None, True
        suspects = list(self.core.state.running) if self._faults_again(event, now_ns) else []
        self._route(self.core.lose_worker(now_ns))
        for request_id in suspects:
            # Otherwise one request that no worker can bear would hold up all others for ever.
            self._route(self.core.fail(request_id, event.reason))

    def _faults_again(self, event: Lost, now_ns: int) -> bool:
        """Whether steps fail so often that what runs now is to be given up."""
        if not event.is_fault:
            return False
        self._faults_ns = [at for at in self._faults_ns if now_ns - at < FAULT_WINDOW_NS]
        self._faults_ns.append(now_ns)
        if len(self._faults_ns) < MAX_FAULTS:
            return False
        self._faults_ns.clear()
        return True

    def _welcome(self, event: Attached, now_ns: int) -> None:
        self.hello, self._worker_changed = event.hello, True
        self.profile.forget_in_flight()
        if self.core is not None:
            self._route(self.core.regain_worker(event.hello, now_ns))
            return
        self.core = self._make_core(self.config, event.hello)
        self._route(self.lobby.expire(now_ns))
        for submission in self.lobby.empty():
            self._route(self.core.submit(submission, now_ns))

    def _take_commands(self) -> None:
        for _ in range(min(len(self._inbox), MAX_COMMANDS_PER_TURN)):
            command = self._inbox.popleft()
            if isinstance(command, Submit):
                self._submit(command)
            elif isinstance(command, Cancel):
                if self._owners.get(command.request_id) == command.front_id:
                    self._cancel(command.request_id, finished=command.finished)
            elif isinstance(command, Leave):
                left = [key for key, front in self._owners.items() if front == command.front_id]
                for request_id in left:
                    self._cancel(request_id)
            else:
                self._answer(command)

    def _submit(self, command: Submit) -> None:
        submission = command.submission
        request_id = submission.request_id
        if request_id in self._owners:
            # To the one who asked, who need not be the one who owns the live request.
            refusal = Output(
                request_id=request_id,
                token_ids=array("i"),
                ending=Ending.REJECTED_DUPLICATE_ID,
                field="request_id",
                message="a live request has this id",
            )
            self._news.setdefault(command.front_id, []).append(refusal)
            return
        self._owners[request_id] = command.front_id
        if self.core is None:
            self._route(self.lobby.submit(submission, self.now_ns()))
        else:
            self._route(self.core.submit(submission, self.now_ns()))

    def _cancel(self, request_id: str, *, finished: bool = False) -> None:
        if self.core is None:
            self._route(self.lobby.cancel(request_id))
        else:
            self._route(self.core.cancel(request_id, self.now_ns(), finished=finished))

    def _answer(self, ask: Ask) -> None:
        if not ask.answer.set_running_or_notify_cancel():
            return  # whoever asked has given up
        try:
            answer = ask.question(self)
        except Exception as error:
            ask.answer.set_exception(error)
        else:
            ask.answer.set_result(answer)

    def _plan(self) -> None:
        if self.core is None:
            self._route(self.lobby.expire(self.now_ns()))
            return
        while True:
            started_ns = self.now_ns()
            step = self.core.schedule(started_ns)
            self._route(step.outputs)
            if step.plan is None:
                return
            self.profile.sent(step.plan, started_ns, self.now_ns())
            self.link.send(step.plan)

    def _route(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            front_id = self._owners[output.request_id]
            if output.ending is not None:
                del self._owners[output.request_id]
            self._news.setdefault(front_id, []).append(output)
