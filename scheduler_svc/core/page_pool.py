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

from scheduler_svc.core.free_runs import FEW, FreeRuns


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


_FREE, _PRIVATE = int(Owner.FREE), int(Owner.PRIVATE)  # numpy is slow with members of an enum
_BYTES = tuple(bytes((owner,)) for owner in range(256))


class PagePool:
    """The books of pages: free, private, tree, in flight.

    Columns of pages are arrays of typecode "i", four bytes a page.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.owners = bytearray(num_pages + 2)
        """Owner of each page; the last byte is behind the last page, and never free."""
        self.owners[0] = self.owners[-1] = Owner.DUMP
        self._owners = np.frombuffer(self.owners, np.uint8)  # the same bytes, for many at once
        self._counting = array("i", range(num_pages + 1))  # runs of neighbors look like a slice
        self._front = np.zeros(0, np.intp)
        """The pages that were taken for each of several requests last."""
        self._runs = FreeRuns(self.owners, self._counting)
        self._in_flight: deque[tuple[int, array[int]]] = deque()
        self.num_in_flight = 0
        self.num_freed = 0
        """Monotone: pages that became free since the start."""

    @property
    def num_free(self) -> int:
        """Pages that may be taken now."""
        return self._runs.num_free

    def take(self, num_pages: int, behind: int = 0, room: int = 0) -> array[int]:
        """Pages for one request, FREE to PRIVATE; the caller has checked `num_free`.

        Args:
            num_pages: how many, side by side if possible.
            behind: the page they are to follow if possible, or 0.
            room: free pages that should lie behind them, for the request to grow into.
        """
        assert num_pages <= self.num_free, (num_pages, self.num_free)
        return self._runs.take(num_pages, behind, room)

    def take_each(self, last: array[int], room: int = 0) -> array[int]:
        """[n] a page for each of n requests, the one behind its last one if possible, FREE to
        PRIVATE; the caller has checked `num_free`.

        Args:
            last: [n] the last page of each.
            room: as in `take`, for those that cannot go on where they are.
        """
        owners = self.owners
        pages, blocked = array("i"), []
        for at, page in enumerate(last):
            pages.append(page + 1)
            if owners[page + 1] == _FREE:
                owners[page + 1] = _PRIVATE
            else:
                blocked.append(at)
        self._begin_runs(pages, blocked, room)
        self._front = np.array(pages, np.intp)  # what numpy indexes by: other types are converted
        return pages

    def take_each_again(self, room: int = 0) -> array[int]:
        """[n] the same for the same requests, whose last pages are those they got last time: no
        two are the same, so that all can be looked at at once."""
        front = self._front
        front += 1
        found = self._owners[front]
        blocked = found.nonzero()[0].tolist()
        np.maximum(found, _PRIVATE, out=found)  # of FREE; other owners are above
        self._owners[front] = found
        pages = array("i", front.astype(np.intc).tobytes())
        self._begin_runs(pages, blocked, room)
        for at in blocked:
            front[at] = pages[at]
        return pages

    def _begin_runs(self, pages: array[int], blocked: list[int], room: int) -> None:
        """Replaces the pages at these indices, which are not free, when all others are taken."""
        assert len(pages) <= self.num_free, (len(pages), self.num_free)
        self._runs.num_free -= len(pages) - len(blocked)
        for at in blocked:
            pages[at] = self.take(1, 0, room)[0]

    def give_back(self, pages: array[int], owner: Owner) -> None:
        """Pages that nobody reads any more, `owner` to FREE."""
        self._move(pages, owner, Owner.FREE)
        self._runs.note(pages)
        self.num_freed += len(pages)

    def put_back(self, pages: array[int]) -> None:
        """Undoes `take` of pages that held nothing anybody may read, PRIVATE to FREE."""
        self._move(pages, Owner.PRIVATE, Owner.FREE)
        self._runs.note(pages)

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
        """Every free page that can be found, for the invariant check."""
        return self._runs.free_pages()

    def in_flight_pages(self) -> list[int]:
        """Every retired page, for the invariant check."""
        return [page for _, pages in self._in_flight for page in pages]

    def _move(self, pages: array[int], source: Owner, target: Owner) -> None:
        num_pages = len(pages)
        if num_pages <= FEW:
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
