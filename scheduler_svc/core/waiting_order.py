"""Orders the fresh requests that wait.  Sees numbers of requests; admits nobody.

An order is one function: it gets the waiting requests in order of arrival and how long a prefix
of each is cached, and returns at most `limit` of them, first to be admitted first.
"""

from collections.abc import Callable, Iterable
from itertools import islice

from scheduler_svc.core.request import Request

CachedTokens = Callable[[Request], int]
WaitingOrder = Callable[[Iterable[Request], CachedTokens, int], list[Request]]


def fcfs(waiting: Iterable[Request], cached_tokens: CachedTokens, limit: int) -> list[Request]:
    """First come, first served."""
    return list(islice(waiting, limit))


def lpm(waiting: Iterable[Request], cached_tokens: CachedTokens, limit: int) -> list[Request]:
    """Longest cached prefix first; among equals, first come, first served."""
    return sorted(waiting, key=lambda request: -cached_tokens(request))[:limit]


WAITING_ORDERS: dict[str, WaitingOrder] = {"fcfs": fcfs, "lpm": lpm}
