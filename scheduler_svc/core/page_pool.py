"""Who owns each page of token slots.  Knows pages, not tokens; decides nothing.

A page is `page_size` consecutive slots: page k holds slots [k * page_size, (k + 1) * page_size).
Page 0 holds the dump slot and is never handed out.  One byte a page names its owner, and every
transition checks it, so that a double free stops where it happens and not where it hurts.
"""

from __future__ import annotations

from array import array
from collections import deque
from enum import IntEnum

import numpy as np

_FEW = 32
"""Up to so many pages a plain loop is faster than setting numpy up (measured)."""


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


_BYTES = tuple(bytes((owner,)) for owner in range(256))


class PagePool:
    """The books of pages: free, private, tree, in flight.

    Columns of pages are arrays of typecode "i", four bytes a page.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.owners = bytearray(num_pages + 1)
        self.owners[0] = Owner.DUMP
        self._owners = np.frombuffer(self.owners, np.uint8)  # the same bytes, for many at once
        self._counting = array("i", range(num_pages + 1))  # runs of neighbors look like a slice
        # A stack with the lowest page on top: runs of neighbors come out in order.
        self._free = array("i", range(num_pages, 0, -1))
        self._in_flight: deque[tuple[int, array[int]]] = deque()
        self.num_in_flight = 0
        self.num_freed = 0
        """Monotone: pages that became free since the start."""

    @property
    def num_free(self) -> int:
        """Pages that may be taken now."""
        return len(self._free)

    def take(self, num_pages: int) -> array[int]:
        """Pages for one request, FREE to PRIVATE; the caller has checked `num_free`."""
        assert num_pages <= len(self._free), (num_pages, len(self._free))
        if not num_pages:
            return array("i")
        pages = self._free[: -num_pages - 1 : -1]
        del self._free[-num_pages:]
        self._move(pages, Owner.FREE, Owner.PRIVATE)
        return pages

    def give_back(self, pages: array[int], owner: Owner) -> None:
        """Pages that nobody reads any more, `owner` to FREE."""
        self._move(pages, owner, Owner.FREE)
        self._free.extend(pages[::-1])
        self.num_freed += len(pages)

    def adopt(self, pages: array[int]) -> None:
        """Pages that move from a request into the tree, PRIVATE to TREE."""
        self._move(pages, Owner.PRIVATE, Owner.TREE)

    def retire(self, pages: array[int], last_step_id: int) -> None:
        """Private pages that plans up to `last_step_id` may still read, PRIVATE to IN_FLIGHT."""
        assert not self._in_flight or self._in_flight[-1][0] <= last_step_id
        self._move(pages, Owner.PRIVATE, Owner.IN_FLIGHT)
        self._in_flight.append((last_step_id, pages))
        self.num_in_flight += len(pages)

    def settle(self, step_id: int) -> bool:
        """The worker answered plan `step_id`: what was retired for it becomes FREE.

        Returns:
            Whether anything did.
        """
        settled = False
        while self._in_flight and self._in_flight[0][0] <= step_id:
            _, pages = self._in_flight.popleft()
            self.num_in_flight -= len(pages)
            self.give_back(pages, Owner.IN_FLIGHT)
            settled = True
        return settled

    def free_pages(self) -> list[int]:
        """Copy of the free list, for the invariant check."""
        return list(self._free)

    def in_flight_pages(self) -> list[int]:
        """Every retired page, for the invariant check."""
        return [page for _, pages in self._in_flight for page in pages]

    def _move(self, pages: array[int], source: Owner, target: Owner) -> None:
        num_pages = len(pages)
        if num_pages <= _FEW:
            owners, wanted, new = self.owners, int(source), int(target)
            for page in pages:
                assert owners[page] == wanted, (page, owners[page], source)
                owners[page] = new
            return
        first, end = pages[0], pages[0] + num_pages
        if pages[-1] == end - 1 and pages == self._counting[first:end]:
            found = bytes(self.owners[first:end])
            self.owners[first:end] = _BYTES[target] * num_pages
        else:
            index = np.array(pages, np.intp)  # what numpy indexes by: any other is converted twice
            found = self._owners[index].tobytes()
            self._owners[index] = int(target)
        assert found == _BYTES[source] * num_pages, (pages, found, source)
