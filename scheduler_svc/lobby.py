"""Where requests wait until the first worker has said how large its pool is.

The core sizes itself from a worker's Hello, so before that there is no core to ask.  Afterwards
the lobby stays empty: requests that wait for a lost worker wait in the core.
"""

from array import array

from scheduler_svc.core.messages import Ending, Output, Submission


class Lobby:
    """Bounded, first come first served."""

    def __init__(self, max_waiting: int) -> None:
        """Holds up to `max_waiting` requests."""
        self._max_waiting = max_waiting
        self._waiting: dict[str, Submission] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, submission: Submission) -> list[Output]:
        """Keeps a request whose id nobody else here has, or refuses it."""
        assert submission.request_id not in self._waiting, submission.request_id
        if len(self._waiting) >= self._max_waiting:
            message = f"{self._max_waiting} requests already wait for a worker to connect"
            return [_end(submission.request_id, Ending.REJECTED_QUEUE_FULL, message)]
        self._waiting[submission.request_id] = submission
        return []

    def cancel(self, request_id: str) -> list[Output]:
        """Ends a request; nothing when it is unknown."""
        if self._waiting.pop(request_id, None) is None:
            return []
        return [_end(request_id, Ending.CANCELLED, "")]

    def expire(self, now_ns: int) -> list[Output]:
        """Ends every request whose deadline has passed."""
        late = [
            submission.request_id
            for submission in self._waiting.values()
            if submission.deadline_ns is not None and submission.deadline_ns <= now_ns
        ]
        for request_id in late:
            del self._waiting[request_id]
        message = "the deadline passed before a worker connected"
        return [_end(request_id, Ending.DEADLINE, message) for request_id in late]

    def next_deadline_ns(self) -> int | None:
        """The earliest deadline among those who wait."""
        deadlines = [
            submission.deadline_ns
            for submission in self._waiting.values()
            if submission.deadline_ns is not None
        ]
        return min(deadlines, default=None)

    def empty(self) -> list[Submission]:
        """Everyone, in order of arrival; the lobby is empty afterwards."""
        everyone = list(self._waiting.values())
        self._waiting.clear()
        return everyone


def _end(request_id: str, ending: Ending, message: str) -> Output:
    return Output(request_id=request_id, token_ids=array("i"), ending=ending, message=message)
