"""Where requests wait until the first worker has said how large its pool is.

The core sizes itself from a worker's Hello, so before that there is no core to ask.  Afterwards
the lobby stays empty: requests that wait for a lost worker wait in the core.
"""

from array import array
from dataclasses import dataclass

from scheduler_svc.core.messages import Ending, Output, Submission
from scheduler_svc.core.request import Event
from scheduler_svc.core.views import Explanation, Phase, RequestView, WaitingReason


@dataclass(frozen=True, slots=True, kw_only=True)
class _Guest:
    submission: Submission
    arrived_ns: int


class Lobby:
    """Bounded, first come first served."""

    def __init__(self, max_waiting: int) -> None:
        """Holds up to `max_waiting` requests."""
        self._max_waiting = max_waiting
        self._waiting: dict[str, _Guest] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, submission: Submission, now_ns: int) -> list[Output]:
        """Keeps a request whose id nobody else here has, or refuses it."""
        assert submission.request_id not in self._waiting, submission.request_id
        if len(self._waiting) >= self._max_waiting:
            message = f"{self._max_waiting} requests already wait for a worker to connect"
            return [_end(submission.request_id, Ending.REJECTED_QUEUE_FULL, message)]
        self._waiting[submission.request_id] = _Guest(submission=submission, arrived_ns=now_ns)
        return []

    def cancel(self, request_id: str) -> list[Output]:
        """Ends a request; nothing when it is unknown."""
        if self._waiting.pop(request_id, None) is None:
            return []
        return [_end(request_id, Ending.CANCELLED, "")]

    def expire(self, now_ns: int) -> list[Output]:
        """Ends every request whose deadline has passed."""
        late = [
            request_id
            for request_id, guest in self._waiting.items()
            if guest.submission.deadline_ns is not None and guest.submission.deadline_ns <= now_ns
        ]
        for request_id in late:
            del self._waiting[request_id]
        message = "the deadline passed before a worker connected"
        return [_end(request_id, Ending.DEADLINE, message) for request_id in late]

    def next_deadline_ns(self) -> int | None:
        """The earliest deadline among those who wait."""
        deadlines = [
            guest.submission.deadline_ns
            for guest in self._waiting.values()
            if guest.submission.deadline_ns is not None
        ]
        return min(deadlines, default=None)

    def empty(self) -> list[Submission]:
        """Everyone, in order of arrival; the lobby is empty afterwards."""
        everyone = [guest.submission for guest in self._waiting.values()]
        self._waiting.clear()
        return everyone

    def list_requests(
        self, now_ns: int, max_requests: int, tenant: str | None = None
    ) -> tuple[list[RequestView], int]:
        """Those of a tenant (None: of all) in order of arrival, and how many are left out."""
        theirs = [guest for guest in self._waiting.values() if _belongs(guest, tenant)]
        views = [_view(guest, now_ns) for guest in theirs[:max_requests]]
        return views, len(theirs) - len(views)

    def explain(
        self, request_id: str, now_ns: int, tenant: str | None = None
    ) -> Explanation | None:
        """Why a request waits, by our id of it or its client's; None: it is not here."""
        for rank, guest in enumerate(self._waiting.values(), start=1):
            submission = guest.submission
            ids = (submission.request_id, submission.client_request_id or submission.request_id)
            if request_id in ids and _belongs(guest, tenant):
                return Explanation(
                    request=_view(guest, now_ns),
                    summary=(
                        "It waits for the first worker to connect; "
                        f"it is number {rank} of the {len(self)} that do."
                    ),
                    rank=rank,
                    num_waiting=len(self),
                    history=(Event(guest.arrived_ns, "submitted", ""),),
                )
        return None


def _belongs(guest: _Guest, tenant: str | None) -> bool:
    return tenant is None or guest.submission.tenant == tenant


def _view(guest: _Guest, now_ns: int) -> RequestView:
    submission = guest.submission
    deadline_ns = submission.deadline_ns
    return RequestView(
        request_id=submission.client_request_id or submission.request_id,
        tenant=submission.tenant,
        phase=Phase.WAITING,
        waiting_reason=WaitingReason.NO_WORKER,
        priority=submission.priority,
        workload=submission.workload,
        prompt_tokens=len(submission.prompt_ids),
        output_tokens=len(submission.resume_output_ids or ()),
        computed_tokens=0,
        cached_tokens=None,
        retractions=0,
        age_ns=now_ns - guest.arrived_ns,
        deadline_in_ns=None if deadline_ns is None else deadline_ns - now_ns,
        slots=0,
        preheat=submission.preheat,
    )


def _end(request_id: str, ending: Ending, message: str) -> Output:
    return Output(request_id=request_id, token_ids=array("i"), ending=ending, message=message)
