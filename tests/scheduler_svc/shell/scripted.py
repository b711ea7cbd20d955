"""Scripted stand-ins for what the shell talks to: a channel, a clock, a link, a core.  Fakes."""

from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from protos import wire
from protos.plan import BatchPlan, BatchResult, Envelope, Hello, Message
from scheduler_svc.core.config import SchedulerConfig
from scheduler_svc.core.messages import Ending, Output, SlotBooks, Step, Submission
from scheduler_svc.core.policy_change import changed
from scheduler_svc.core.views import (
    EconomyView,
    Explanation,
    HistogramView,
    PinView,
    RequestView,
    TenantView,
    WaitingReason,
)
from tests.scheduler_svc.shell.views import (
    a_histogram,
    a_pin,
    a_request,
    a_tenant,
    an_economy,
    an_explanation,
)


def a_hello(**changes) -> Hello:
    values = {
        "instance_id": 7,
        "model_id": "fake",
        "model_hash": "hash",
        "vocab_size": 264,
        "eos_token_ids": (257,),
        "num_slots": 64,
        "max_rows": 4,
        "max_length": 64,
        "kv_dtype": "int32",
        "device": "none",
        "kind": "fake",
    }
    return Hello(**(values | changes))


def a_plan(step_id: int) -> BatchPlan:
    return BatchPlan(
        step_id=step_id,
        rows=array("i", [0]),
        prefix_lens=array("i", [0]),
        extend_lens=array("i", [1]),
        samples=b"\1",
        input_ids=array("i", [5]),
        out_slots=array("i", [1]),
        freed_rows=array("i"),
    )


def a_result(step_id: int, token: int = 9, **changes) -> BatchResult:
    return BatchResult(step_id=step_id, token_ids=array("i", [token]), **changes)


def a_submission(request_id: str, **changes) -> Submission:
    values = {"prompt_ids": array("i", [1, 2]), "max_tokens": 4}
    return Submission(request_id=request_id, **(values | changes))


@dataclass
class Clock:
    now: int = 1_000_000_000

    def __call__(self) -> int:
        return self.now

    def pass_s(self, seconds: float) -> None:
        self.now += int(seconds * 1e9)


@dataclass
class FakeChannel:
    """Peers in a dict; what they say is queued by `hear`, what they are told is in `told`."""

    told: list[tuple[bytes, Envelope]] = field(default_factory=list)
    gone: list[bytes] = field(default_factory=list)
    suspicious: bool = False
    num_malformed: int = 0
    inbox: deque[tuple[bytes, bytes]] = field(default_factory=deque)
    timeouts_ms: list[int] = field(default_factory=list)

    def hear(self, peer: bytes, message: Message, epoch: int = 0) -> None:
        self.inbox.append((peer, wire.encode(Envelope(epoch=epoch, message=message))))

    def send(self, peer: bytes, data: bytes) -> bool:
        if peer in self.gone:
            return False
        self.told.append((peer, wire.decode(data)))
        return True

    def receive(self, timeout_ms: int) -> tuple[bytes, bytes] | None:
        self.timeouts_ms.append(timeout_ms)
        return self.inbox.popleft() if self.inbox else None

    def peer_may_be_gone(self) -> bool:
        return self.suspicious

    def take_told(self) -> list[tuple[bytes, Envelope]]:
        told, self.told = self.told, []
        return told


@dataclass
class FakeLink:
    """Gives the events of its script, one list a poll."""

    script: deque = field(default_factory=deque)
    sent: list[BatchPlan] = field(default_factory=list)
    given_up: list[str] = field(default_factory=list)
    timeouts_ms: list[int] = field(default_factory=list)
    num_malformed: int = 0
    num_ignored: int = 0
    worker_peak_rss_bytes: int = 0

    def poll(self, timeout_ms: int):
        self.timeouts_ms.append(timeout_ms)
        return self.script.popleft() if self.script else []

    def send(self, plan: BatchPlan) -> None:
        self.sent.append(plan)

    def give_up(self, reason: str) -> None:
        self.given_up.append(reason)


class FakeCore:
    """One token a step for each live request, up to two plans in flight; notes every call."""

    def __init__(self, config: SchedulerConfig, hello: Hello) -> None:
        self.config = config
        self.hello = hello
        self.pins = [a_pin("p1"), a_pin("p2", tenant="acme")]
        self.requests = [a_request("r1"), a_request("r2", tenant="acme")]
        self.calls: list[str] = []
        self.live: dict[str, int] = {}
        self.steps: deque[tuple[int, list[str]]] = deque()
        self.next_step_id = 1
        self.worker_is_here = True
        self.deadline_ns: int | None = None
        self.num_running = 0

    @property
    def state(self) -> "FakeCore":
        return self

    @property
    def running(self) -> dict[str, int]:
        return self.live

    @property
    def num_waiting(self) -> int:
        return len(self.live)

    def submit(self, submission: Submission, now_ns: int) -> list[Output]:
        self.calls.append(f"submit {submission.request_id}")
        if submission.max_tokens == 0:
            return [self._end(submission.request_id, Ending.REJECTED_INVALID)]
        self.live[submission.request_id] = submission.max_tokens
        return []

    def cancel(self, request_id: str, now_ns: int, *, finished: bool = False) -> list[Output]:
        self.calls.append(f"cancel {request_id}")
        if self.live.pop(request_id, None) is None:
            return []
        return [self._end(request_id, Ending.CANCELLED)]

    def fail(self, request_id: str, message: str) -> list[Output]:
        del self.live[request_id]
        return [self._end(request_id, Ending.FAILED)._replace(message=message)]

    def schedule(self, now_ns: int) -> Step:
        if not (self.live and self.worker_is_here and len(self.steps) < 2):
            return Step(plan=None, outputs=[])
        plan = a_plan(self.next_step_id)
        self.next_step_id += 1
        self.steps.append((plan.step_id, list(self.live)))
        return Step(plan=plan, outputs=[])

    def apply(self, result: BatchResult, now_ns: int) -> list[Output]:
        if not self.steps or self.steps[0][0] != result.step_id:
            raise ValueError("answers no plan in flight")
        _, request_ids = self.steps.popleft()
        outputs = []
        for request_id in request_ids:
            if request_id in self.live:
                self.live[request_id] -= 1
                done = self.live[request_id] == 0
                if done:
                    del self.live[request_id]
                ending = Ending.LENGTH if done else None
                outputs.append(
                    Output(request_id=request_id, token_ids=result.token_ids, ending=ending)
                )
        return outputs

    def lose_worker(self, now_ns: int) -> list[Output]:
        self.calls.append("lose_worker")
        self.worker_is_here = False
        self.steps.clear()
        return []

    def regain_worker(self, hello: Hello, now_ns: int) -> list[Output]:
        self.calls.append("regain_worker")
        self.worker_is_here = True
        return []

    def next_deadline_ns(self) -> int | None:
        return self.deadline_ns

    # --- what operators ask; the views are the same at every moment -------------------------------

    num_tree_nodes = 5
    num_sessions = 6
    num_session_tokens = 70

    def set_policy(self, changes: Mapping[str, object]) -> SchedulerConfig:
        self.config = changed(self.config, changes)
        return self.config

    def slot_books(self) -> SlotBooks:
        return SlotBooks(total=60, free=10, private=11, evictable=12, locked=13, in_flight=14)

    def counters(self) -> dict[str, int]:
        return {"submitted": 9, "prompt_tokens": 100, "cached_tokens": 40, "freed_slots": 47}

    def economy(self, now_ns: int) -> EconomyView:
        return an_economy()

    def histograms(self) -> dict[str, HistogramView]:
        return {"block_lifetime_ms": a_histogram()}

    def tenant_books(self) -> dict[str, TenantView]:
        return {"acme": a_tenant()}

    def waiting_by_reason(self) -> dict[str, int]:
        return {reason.name: int(reason is WaitingReason.TWIN) for reason in WaitingReason}

    def list_pins(self, now_ns: int, tenant: str | None = None) -> list[PinView]:
        return [pin for pin in self.pins if tenant in (None, pin.tenant)]

    def unpin(
        self,
        pin_ids: Sequence[str],
        now_ns: int,
        *,
        every: bool = False,
        tenant: str | None = None,
    ) -> tuple[list[str], list[str]]:
        theirs = [pin.pin_id for pin in self.list_pins(now_ns, tenant)]
        removed = theirs if every else [pin_id for pin_id in pin_ids if pin_id in theirs]
        self.pins = [pin for pin in self.pins if pin.pin_id not in removed]
        return removed, [pin_id for pin_id in pin_ids if pin_id not in removed]

    def list_requests(
        self, now_ns: int, max_requests: int, tenant: str | None = None
    ) -> tuple[list[RequestView], int]:
        theirs = [view for view in self.requests if tenant in (None, view.tenant)]
        return theirs[:max_requests], len(theirs[max_requests:])

    def explain(
        self, request_id: str, now_ns: int, tenant: str | None = None
    ) -> Explanation | None:
        views = self.list_requests(now_ns, 99, tenant)[0]
        found = [view for view in views if view.request_id == request_id]
        return an_explanation(found[0], now_ns) if found else None

    @staticmethod
    def _end(request_id: str, ending: Ending) -> Output:
        return Output(request_id=request_id, token_ids=array("i"), ending=ending)
