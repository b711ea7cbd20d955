"""Who waits: cut-back requests first, then fresh ones by policy, then preheats.

Knows order; knows neither slots nor the tree.
"""

from bisect import insort
from collections.abc import Iterable
from itertools import islice

from scheduler_svc.core.request import Request
from scheduler_svc.core.waiting_order import WaitingFacts, WaitingOrder


class WaitingQueue:
    """Requests in state WAITING."""

    def __init__(self, order: WaitingOrder) -> None:
        self._order = order
        self._returned: list[Request] = []
        self._fresh: dict[str, Request] = {}
        self._preheats: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._returned) + len(self._fresh) + len(self._preheats)

    @property
    def num_fresh(self) -> int:
        """Requests that count against the limit of the queue."""
        return len(self._fresh)

    @property
    def num_preheats(self) -> int:
        """Preheats that count against theirs."""
        return len(self._preheats)

    def add(self, request: Request) -> None:
        """A new request."""
        lane = self._preheats if request.submission.preheat else self._fresh
        lane[request.request_id] = request

    def add_returning(self, returning: Iterable[Request]) -> None:
        """Requests that ran before: ahead of all fresh ones, among themselves by arrival."""
        for request in returning:
            if request.submission.preheat:
                self.add(request)
            else:
                insort(self._returned, request, key=lambda returned: returned.arrival)

    def remove(self, request: Request) -> None:
        """It was admitted, or it ended."""
        for lane in (self._fresh, self._preheats):
            if lane.get(request.request_id) is request:
                del lane[request.request_id]
                return
        self._returned.remove(request)

    def candidates(self, facts: WaitingFacts, limit: int) -> list[Request]:
        """At most `limit` requests in the order in which they are to be admitted."""
        chosen = self._returned[:limit]
        if len(chosen) < limit and self._fresh:
            chosen += self._order(self._fresh.values(), facts, limit - len(chosen))
        if not chosen:
            # One row stays free for a request that may come while they are computed.
            chosen = list(islice(self._preheats.values(), max(1, limit - 1)))
        return chosen

    def requests(self) -> list[Request]:
        """All that wait."""
        return [*self._returned, *self._fresh.values(), *self._preheats.values()]
