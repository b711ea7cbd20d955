"""All live requests of this front, by the client's id and by the name of the attempt.

A request for several choices is as many live requests with one id.

An attempt's name is the (start of the) client's id with a suffix that never repeats.  So late
news of an attempt that is over (a cancelled request, a stream that broke) can never reach a newer
one with the same id, and a scheduler still busy forgetting an attempt does not refuse the next.
"""

import secrets
from collections.abc import Iterator

from protos.errors import DuplicateRequestId, QueueFull, UnknownRequestId
from tokenizer_svc.live_request import LiveRequest

MAX_READABLE_LENGTH = 96
"""Characters of the client's id in an attempt's name, which has 128 at most."""


class LiveRequests:
    """The books of the front: empty when idle."""

    def __init__(self, *, max_live: int) -> None:
        self._max_live = max_live
        self._by_id: dict[str, list[LiveRequest]] = {}
        self._num_live = 0
        self._by_wire_id: dict[str, LiveRequest] = {}
        self._front_id = secrets.token_hex(4)
        self._num_attempts = 0

    def __len__(self) -> int:
        """Requests whose handlers run, each choice one."""
        return self._num_live

    @property
    def num_attempts_out(self) -> int:
        """Attempts that the scheduler may still speak of."""
        return len(self._by_wire_id)

    def open(self, request_id: str) -> LiveRequest:
        """Enters a new request.

        Raises:
            DuplicateRequestId: this id is live.
            QueueFull: as many are live as may be.
        """
        return self.open_all(request_id, 1)[0]

    def open_all(self, request_id: str, num_choices: int) -> list[LiveRequest]:
        """Enters all choices of a new request, or none.

        Raises:
            DuplicateRequestId: this id is live.
            QueueFull: more would be live than may be.
        """
        if request_id in self._by_id:
            raise DuplicateRequestId(f"request_id: a request with the id {request_id!r} is live")
        if self._num_live + num_choices > self._max_live:
            raise QueueFull(f"{self._num_live} of {self._max_live} requests are live; try later")
        lives = [LiveRequest(request_id) for _ in range(num_choices)]
        self._by_id[request_id] = list(lives)
        self._num_live += num_choices
        return lives

    def close(self, live: LiveRequest) -> None:
        """Forgets a request; its id is free again when the last of its choices is closed."""
        self.end_attempt(live)
        choices = self._by_id[live.request_id]
        choices.remove(live)
        self._num_live -= 1
        if not choices:
            del self._by_id[live.request_id]

    def find(self, request_id: str) -> LiveRequest:
        """The live request with this id; of several choices the first that goes on.

        Raises:
            UnknownRequestId: there is none, or it has ended.
        """
        return self.find_all(request_id)[0]

    def find_all(self, request_id: str) -> list[LiveRequest]:
        """All choices of the live request with this id that go on, at least one.

        Raises:
            UnknownRequestId: there is none, or it has ended.
        """
        found = [live for live in self._by_id.get(request_id, ()) if live.outcome is None]
        if not found:
            raise UnknownRequestId(f"request_id: no request with the id {request_id!r} is live")
        return found

    def start_attempt(self, live: LiveRequest) -> str:
        """A fresh name for the request towards the scheduler; the one before is forgotten."""
        self.end_attempt(live)
        self._num_attempts += 1
        readable = live.request_id[:MAX_READABLE_LENGTH]
        live.wire_id = f"{readable}/{self._front_id}.{self._num_attempts}"
        self._by_wire_id[live.wire_id] = live
        return live.wire_id

    def end_attempt(self, live: LiveRequest) -> None:
        """From here on nothing the scheduler says reaches this request."""
        self._by_wire_id.pop(live.wire_id, None)
        live.wire_id = ""

    def by_wire_id(self, wire_id: str) -> LiveRequest | None:
        """The request of this attempt; None once it is over."""
        return self._by_wire_id.get(wire_id)

    def submitted(self) -> Iterator[LiveRequest]:
        """Requests that the scheduler is to work on, in the order they came."""
        for live in self.all():
            if live.submission is not None and live.outcome is None:
                yield live

    def all(self) -> list[LiveRequest]:
        """Every live request, in the order they came."""
        return [live for choices in self._by_id.values() for live in choices]
