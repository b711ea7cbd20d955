"""Takes free pages that lie side by side, where there are any.  The owner bytes are the truth.

Stretches [start, end) of pages that became free together are kept in two piles, the long and the
short.  Every free page lies in a stretch, but a stretch may also name pages that were taken since:
whoever looks for a run asks the owner bytes, and stretches without a free page are dropped when
they are met.  So taking the page behind a page costs no books at all, and nothing is searched for
longer than a window; once enough came back, one pass over all bytes joins what has grown together.
An extent allocator whose extents may be stale, after the lazy deletion of heaps.
"""

from __future__ import annotations

from array import array
from collections import deque

import numpy as np

LEAST_LONG = 16
"""Pages of a run that is worth beginning another one in."""

FEW = 32
"""Up to so many pages a plain loop is faster than setting numpy up (measured)."""

_TRIES = 4
"""Long stretches that are looked at for one run."""

_WINDOW = 1 << 14
"""Pages of a stretch that are looked at once."""

_FREE, _PRIVATE = 0, 1
_MANY = 4096
_FREE_BYTES, _PRIVATE_BYTES = bytes(_MANY), b"\1" * _MANY


class FreeRuns:
    """The free pages of a pool.  `owners` are [num_pages + 2] owner bytes, of which the first and
    the last are of no page; `counting` are the numbers of all pages from 0, to compare with."""

    def __init__(self, owners: bytearray, counting: array[int]) -> None:
        self._owners = owners
        self._bytes = np.frombuffer(owners, np.uint8)  # the same, for many at once
        self._counting = counting
        self.num_free = owners.count(_FREE)
        """Whoever takes a page here without asking counts it, too."""
        self._unsorted: list[array[int]] = []
        """Pages that came back and were not split into runs yet."""
        self._long: deque[tuple[int, int]] = deque()
        self._short: deque[tuple[int, int]] = deque()
        self._num_noted = 0
        """Pages noted since the last pass over all of them."""
        self._most_stretches = 0
        self._gather()

    def note(self, pages: array[int]) -> None:
        """These pages have become free; the array is not the caller's any more."""
        num_pages = len(pages)
        if not num_pages:
            return
        self.num_free += num_pages
        self._num_noted += num_pages
        self._unsorted.append(pages)
        if len(self._unsorted) + len(self._long) + len(self._short) > self._most_stretches:
            self._gather()

    def take(self, num_pages: int, behind: int, room: int) -> array[int]:
        """[num_pages] pages, FREE to PRIVATE; there are so many.

        As many as can be follow the page `behind`, unless that is 0.  The others are one run where
        one is found, with `room` free pages behind it if possible; else several.
        """
        pages = array("i")
        if behind and num_pages:
            self._claim(pages, behind + 1, self._length_at(behind + 1, num_pages))
        missing = num_pages - len(pages)
        if missing and self._unsorted:
            pages.extend(self._take_unsorted(missing))
            missing = num_pages - len(pages)
        if not missing:
            return pages
        run = self._find_long(missing, room)
        if run < 0 and self._is_worth_gathering():
            self._gather()
            run = self._find_long(missing, room)
        if run >= 0:
            self._claim(pages, run, missing)
        while len(pages) < num_pages:
            self._claim(pages, *self._find_any(num_pages - len(pages)))
        return pages

    def free_pages(self) -> list[int]:
        """Every free page that is in a stretch, for the invariant check."""
        reached = bytearray(len(self._owners))
        for start, end in (*self._long, *self._short):
            reached[start:end] = b"\1" * (end - start)
        for pages in self._unsorted:
            for page in pages:
                reached[page] = 1
        owners = self._owners
        return [page for page, yes in enumerate(reached) if yes and owners[page] == _FREE]

    def _find_long(self, num_pages: int, room: int) -> int:
        """Where a run begins: with room if one is near the top of the pile, else with less; -1 when
        there is none."""
        stretches = self._long
        if not stretches:
            return -1
        wanted = num_pages + room
        least = max(num_pages, min(wanted, LEAST_LONG))
        second: tuple[int, int] | None = None
        depth = 1
        for _ in range(min(_TRIES, len(stretches))):
            start, end = stretches[-depth]
            at = self._search(start, end, wanted)
            if at >= 0:
                return self._begin(depth, at, num_pages, room)
            at = -1 if second else self._search(start, end, least)
            if at >= 0:
                second = depth, at
            elif not second and least == LEAST_LONG:  # nothing here is long any more
                self._shorten(depth)
                continue
            depth += 1
        if second:
            return self._begin(*second, num_pages, room)
        stretches.rotate(depth - 1)
        return -1

    def _search(self, start: int, end: int, wanted: int) -> int:
        """Where so many free pages begin; -1 when not in the first window of the stretch."""
        if end - start < wanted:
            return -1
        free = _FREE_BYTES[:wanted] if wanted <= _MANY else bytes(wanted)
        return self._owners.find(free, start, min(end, start + max(_WINDOW, 2 * wanted)))

    def _begin(self, depth: int, at: int, num_pages: int, room: int) -> int:
        """Takes a run out of the stretch so deep in the pile; what comes next begins behind its
        room, and behind that of whoever ends where it would begin."""
        start, end = self._long[-depth]
        del self._long[-depth]
        if room and self._owners[at - 1] == _PRIVATE:
            behind = self._search(at + room, end, num_pages + room)
            at = behind if behind >= 0 else at
        next_start = min(end, at + num_pages + room)
        for part, part_end in ((start, at), (at + num_pages, next_start)):
            if part < part_end:
                self._short.append((part, part_end))
        if next_start < end:
            self._pile(next_start, end).append((next_start, end))
        return at

    def _shorten(self, depth: int) -> None:
        """Moves the first window of a long stretch to the short ones."""
        start, end = self._long[-depth]
        cut = start + _WINDOW - LEAST_LONG
        if cut + LEAST_LONG < end:
            self._long[-depth] = cut, end
            self._short.append((start, cut))
        else:
            del self._long[-depth]
            self._short.append((start, end))

    def _find_any(self, num_pages: int) -> tuple[int, int]:
        """The oldest short stretch first, as its neighbor has likely ended; whoever needs much
        takes long ones."""
        while True:
            if self._short and (num_pages < LEAST_LONG or not self._long):
                pile = self._short
                start, end = pile.popleft()
            else:
                pile = self._long
                start, end = pile.pop()
            at = self._owners.find(_FREE, start, end)
            if at < 0:
                continue
            length = self._length_at(at, min(max(num_pages, LEAST_LONG**2), end - at))
            next_start = at + length
            if num_pages < length and self._owners[at - 1] == _PRIVATE:
                self._short.append((at, at + length // 2))  # may grow into this half
                at += min(length // 2, length - num_pages)
            length = min(num_pages, next_start - at)
            if at + length < end:
                pile.append((at + length, end))
            return at, length

    def _length_at(self, page: int, most: int) -> int:
        """How many pages from this one on are free, up to `most`."""
        found = self._owners[page : page + most]
        return len(found) - len(found.lstrip(b"\0"))

    def _claim(self, pages: array[int], start: int, length: int) -> None:
        end = start + length
        self.num_free -= length
        self._owners[start:end] = _PRIVATE_BYTES[:length] if length <= _MANY else b"\1" * length
        pages.extend(self._counting[start:end])

    def _take_unsorted(self, num_pages: int) -> array[int]:
        """Takes up to so many pages just as they came back, if several are wanted and there are no
        others to choose from; sorts what is left."""
        taken, unsorted = array("i"), self._unsorted
        # Every free page is in a stretch or here; without stretches, and with as many pages here as
        # are free, each is here exactly once.
        is_all = not (self._long or self._short) and sum(map(len, unsorted)) == self.num_free
        if num_pages > 1 and is_all:
            while unsorted and len(taken) + len(unsorted[-1]) <= num_pages:
                taken.extend(unsorted.pop())
            self._claim_all(taken)
        for pages in unsorted:
            self._sort(pages)
        unsorted.clear()
        return taken

    def _claim_all(self, pages: array[int]) -> None:
        """Takes these, all of which are free."""
        owners, length = self._owners, len(pages)
        self.num_free -= length
        if length <= FEW:
            for page in pages:
                assert owners[page] == _FREE, page
                owners[page] = _PRIVATE
        else:
            index = np.array(pages, np.intp)  # what numpy indexes by: any other is converted twice
            assert not self._bytes[index].tobytes().strip(b"\0"), pages
            self._bytes[index] = _PRIVATE

    def _sort(self, pages: array[int]) -> None:
        """Puts the runs of these pages on their piles."""
        first, end = pages[0], pages[0] + len(pages)
        if pages[-1] == end - 1 and pages == self._counting[first:end]:
            self._push(first, end)
            return
        column = np.frombuffer(pages, np.intc)
        start = 0
        for last in (column[1:] - column[:-1] != 1).nonzero()[0].tolist():
            self._push(pages[start], pages[last] + 1)
            start = last + 1
        self._push(pages[start], pages[-1] + 1)

    def _is_worth_gathering(self) -> bool:
        """There are stretches that may have grown together, and enough was done to pay for it."""
        num_stretches = len(self._long) + len(self._short)
        return num_stretches > LEAST_LONG and self._num_noted * LEAST_LONG >= len(self._owners)

    def _push(self, start: int, end: int) -> None:
        for pile in (self._long, self._short):
            if pile and pile[-1][0] == end:  # tails of cached prefixes come back from behind
                end = pile.pop()[1]
        self._pile(start, end).append((start, end))

    def _pile(self, start: int, end: int) -> deque[tuple[int, int]]:
        return self._long if end - start >= LEAST_LONG else self._short

    def _gather(self) -> None:
        """All stretches anew, the lowest pages on top."""
        self._unsorted.clear()
        self._long.clear()
        self._short.clear()
        self._num_noted = 0
        free = self._bytes == _FREE
        edges = np.flatnonzero(free[1:] != free[:-1]) + 1
        for start, end in zip(edges[-2::-2].tolist(), edges[-1::-2].tolist(), strict=True):
            self._pile(start, end).append((start, end))
        self._most_stretches = len(edges) + len(self._owners) // LEAST_LONG + LEAST_LONG
