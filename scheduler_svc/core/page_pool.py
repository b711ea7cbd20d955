"""Who owns each page of token slots.  Knows pages, not tokens; decides nothing.

A page is `page_size` consecutive slots: page k holds slots [k * page_size, (k + 1) * page_size).
Page 0 holds the dump slot and is never handed out.  One byte a page names its owner, and every
transition checks it, so that a double free stops where it happens and not where it hurts.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from enum import IntEnum


class Owner(IntEnum):
    """Owner byte of a page."""

    FREE = 0
    PRIVATE = 1
    """Of one live request, outside the tree."""
    TREE = 2
    """Of one tree node; the node knows whether it is locked."""
    IN_FLIGHT = 3
    """Given back, but a plan that the worker has not answered may still name it."""
    DUMP = 255


class PagePool:
    """The books of pages: free, private, tree, in flight."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.owners = bytearray(num_pages + 1)
        self.owners[0] = Owner.DUMP
        # A stack with the lowest page on top: runs of neighbours come out in order.
        self._free = list(range(num_pages, 0, -1))
        self._in_flight: deque[tuple[int, list[int]]] = deque()
        self.num_in_flight = 0

    @property
    def num_free(self) -> int:
        """Pages that may be taken now."""
        return len(self._free)

    def take(self, num_pages: int) -> list[int]:
        """Pages for one request, FREE to PRIVATE; the caller has checked `num_free`."""
        assert num_pages <= len(self._free), (num_pages, len(self._free))
        if not num_pages:
            return []
        pages = self._free[: -num_pages - 1 : -1]
        del self._free[-num_pages:]
        self._move(pages, Owner.FREE, Owner.PRIVATE)
        return pages

    def give_back(self, pages: Sequence[int], owner: Owner) -> None:
        """Pages that nobody reads any more, `owner` to FREE."""
        self._move(pages, owner, Owner.FREE)
        self._free.extend(reversed(pages))

    def adopt(self, pages: Sequence[int]) -> None:
        """Pages that move from a request into the tree, PRIVATE to TREE."""
        self._move(pages, Owner.PRIVATE, Owner.TREE)

    def retire(self, pages: Sequence[int], last_step_id: int) -> None:
        """Private pages that plans up to `last_step_id` may still read, PRIVATE to IN_FLIGHT."""
        assert not self._in_flight or self._in_flight[-1][0] <= last_step_id
        self._move(pages, Owner.PRIVATE, Owner.IN_FLIGHT)
        self._in_flight.append((last_step_id, list(pages)))
        self.num_in_flight += len(pages)

    def settle(self, step_id: int) -> None:
        """The worker answered plan `step_id`: what was retired for it becomes FREE."""
        while self._in_flight and self._in_flight[0][0] <= step_id:
            _, pages = self._in_flight.popleft()
            self.num_in_flight -= len(pages)
            self.give_back(pages, Owner.IN_FLIGHT)

    def free_pages(self) -> list[int]:
        """Copy of the free list, for the invariant check."""
        return list(self._free)

    def in_flight_pages(self) -> list[int]:
        """Every retired page, for the invariant check."""
        return [page for _, pages in self._in_flight for page in pages]

    def _move(self, pages: Iterable[int], source: Owner, target: Owner) -> None:
        owners = self.owners
        for page in pages:
            assert owners[page] == source, (page, owners[page], source)
            owners[page] = target
