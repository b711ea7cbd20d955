"""Orders the fresh requests that wait.  Sees numbers of requests; admits nobody.

An order is one function: it gets the waiting requests in order of arrival and a few facts about
each, and returns at most `limit` of them, first to be admitted first.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Protocol

from scheduler_svc.core.request import Request

LPM_MOST_PASSES = 64
"""So many admissions after its arrival, a cold request goes before all that have a prefix."""


class WaitingFacts(Protocol):
    """What an order may know of a waiting request besides itself."""

    def cached_tokens(self, request: Request) -> int:
        """How long a prefix of it the tree holds."""
        ...

    def num_passes(self, request: Request) -> int:
        """Requests admitted since it arrived."""
        ...


WaitingOrder = Callable[[Iterable[Request], WaitingFacts, int], list[Request]]


def fcfs(waiting: Iterable[Request], facts: WaitingFacts, limit: int) -> list[Request]:
    """First come, first served."""
    return list(islice(waiting, limit))


def lpm(waiting: Iterable[Request], facts: WaitingFacts, limit: int) -> list[Request]:
    """Longest cached prefix first; among equals, first come, first served.

    Without a bound, a stream of requests that share a prefix starves all others.
    """
    overdue, others = [], []
    for request in waiting:
        if facts.num_passes(request) >= LPM_MOST_PASSES:
            overdue.append(request)
        else:
            others.append(request)
    others.sort(key=lambda request: -facts.cached_tokens(request))
    return (overdue + others)[:limit]


WAITING_ORDERS: dict[str, WaitingOrder] = {"fcfs": fcfs, "lpm": lpm}
