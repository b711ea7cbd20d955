"""Who waits: cut-back requests first, then fresh ones by policy, then preheats.

Knows order; knows neither slots nor the tree.
"""

from itertools import islice

from scheduler_svc.core.request import Request
from scheduler_svc.core.waiting_order import CachedTokens, WaitingOrder


class WaitingQueue:
    """Requests in state WAITING."""

    def __init__(self, order: WaitingOrder) -> None:
        self._order = order
        self._resuming: dict[str, Request] = {}
        self._fresh: dict[str, Request] = {}
        self._preheats: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._resuming) + len(self._fresh) + len(self._preheats)

    @property
    def num_fresh(self) -> int:
        """Those that count against the limit of the queue."""
        return len(self._fresh) + len(self._preheats)

    def add(self, request: Request) -> None:
        """A new request."""
        lane = self._preheats if request.submission.preheat else self._fresh
        lane[request.request_id] = request

    def add_returning(self, returning: list[Request]) -> None:
        """Requests that ran before: ahead of all fresh ones, among themselves by arrival."""
        for request in returning:
            if request.submission.preheat:
                self.add(request)
            else:
                self._resuming[request.request_id] = request
        by_arrival = sorted(self._resuming.values(), key=lambda request: request.arrival)
        self._resuming = {request.request_id: request for request in by_arrival}

    def remove(self, request: Request) -> None:
        """It was admitted, or it ended."""
        for lane in (self._resuming, self._fresh, self._preheats):
            if lane.get(request.request_id) is request:
                del lane[request.request_id]
                return
        raise AssertionError(request.request_id)

    def candidates(self, cached_tokens: CachedTokens, limit: int) -> list[Request]:
        """At most `limit` requests in the order in which they are to be admitted."""
        chosen = list(islice(self._resuming.values(), limit))
        if len(chosen) < limit and self._fresh:
            chosen += self._order(self._fresh.values(), cached_tokens, limit - len(chosen))
        if not chosen:
            chosen = list(islice(self._preheats.values(), limit))
        return chosen

    def requests(self) -> list[Request]:
        """All that wait."""
        return [*self._resuming.values(), *self._fresh.values(), *self._preheats.values()]
