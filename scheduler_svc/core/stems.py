"""Which streams share the beginning of their contexts, in an order that makes sharers neighbours.

Streams stand in the order of their cached pages, compared page by page: depth first through the
tree, whoever splits or flushes nodes meanwhile.  Beside each stands how many pages it has in common
with the one before it.  Stems are the intervals of that column (the lcp-intervals of Abouelhoda,
Kurtz and Ohlebusch, Replacing suffix trees with enhanced suffix arrays, 2004).  Pages are shared
through the tree alone, and what is in the tree is computed; equal tokens in other pages (twins) are
no stem.  Not here: which stems pay, which the worker knows; the order in which the core itself goes
through its streams, which stays that of their coming.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from scheduler_svc.core.radix_node import RadixNode
from scheduler_svc.core.request import Request

MOST_LEVELS = 16
"""Stems within stems; deeper ones are not told.  Each level is a pass over the rows that share."""

_ENDS_HERE = 0
"""For the page behind a path's last one; no page has this number."""

IntArray = np.ndarray[Any, np.dtype[np.signedinteger[Any]]]


class Arrangement(NamedTuple):
    """How a plan lists its streams."""

    entries: IntArray
    """int64 [streams] of each entry, which of the streams it is."""
    stems: array[int]
    """See BatchPlan.stems."""


class StemBook:
    """Those that decode, sharers side by side, and the stems among them.

    A stream gets its place when its prompt is in the tree (`place`); until then it stands behind
    all others.  From then on its lease does not change.
    """

    def __init__(self, page_size: int, least_tokens: int) -> None:
        self._page_size = page_size
        self._least_pages = -(-least_tokens // page_size)
        assert self._least_pages > 0
        self._num_joined = 0
        self._placed: list[Request] = []
        self._common = array("i")
        """[placed] pages that each has in common with the one before it; the first has none."""
        self._tickets = array("q")
        """[placed] as how manieth each has joined."""
        self._behind: dict[str, int] = {}
        """By id: tickets of those that have no place yet."""
        self._stems: IntArray | None = None
        """[stems, 4] of `_entries`, in tokens; None: not known."""
        self._whole: Arrangement | None = None
        """Of all of them; None where there are no stems."""

    def join(self, request: Request) -> None:
        """It decodes from now on."""
        self._num_joined += 1
        self._behind[request.request_id] = self._num_joined
        self._stems = None

    def place(self, request: Request) -> None:
        """All of its prompt that will be in the tree is there."""
        path = _Path(request)
        at = self._end_of(path)
        self._tickets.insert(at, self._behind.pop(request.request_id))
        self._common.insert(at, path.common_pages(self._placed[at - 1]) if at else 0)
        self._placed.insert(at, request)
        if at + 1 < len(self._placed):
            self._common[at + 1] = path.common_pages(self._placed[at + 1])
        self._stems = None

    def leave(self, request: Request) -> None:
        """It decodes no more; its lease is as it was when it was placed."""
        self._stems = None
        if self._behind.pop(request.request_id, None) is not None:
            return
        at = self._end_of(_Path(request)) - 1
        assert self._placed[at] is request, request.request_id
        del self._placed[at], self._tickets[at]
        common = self._common.pop(at)
        if at < len(self._common):
            self._common[at] = min(common, self._common[at])

    def arrange(self, some: list[Request], streams: Iterable[Request]) -> Arrangement | None:
        """How a plan lists `some` of all `streams`; None: as they are, as no two share a stem.

        streams: those that decode, in the order in which they joined; `some` are in it, too.
        """
        stems = self._find_stems() if self._stems is None else self._stems
        if self._whole is None or len(some) == len(self._whole.entries):
            return self._whole
        return _without(_missing(list(streams), some), self._whole.entries, stems)

    def _find_stems(self) -> IntArray:
        stems = _nested(np.array(self._common, np.int64), self._least_pages)
        stems[:, 2:] *= self._page_size
        self._stems, self._whole = stems, None
        if len(stems):
            tickets = np.array(self._tickets + array("q", self._behind.values()))
            entries = np.empty(len(tickets), np.int64)
            entries[np.argsort(tickets)] = np.arange(len(tickets))
            self._whole = Arrangement(entries, _column(stems))
        return stems

    def _end_of(self, path: _Path) -> int:
        """How many of the placed stand before a path, or are the very stream it is of."""
        low, high = 0, len(self._placed)
        while low < high:
            middle = (low + high) // 2
            if path.is_before(self._placed[middle]):
                high = middle
            else:
                low = middle + 1
        return low


class _Path:
    """The way of a stream's lease through the tree, to be compared with those of others."""

    def __init__(self, request: Request) -> None:
        lease = request.lease
        assert lease is not None
        self._arrival = request.arrival
        self._points: dict[RadixNode, tuple[int, int]] = {}
        """Pages up to the end of each node, and the next page."""
        depth, page = lease.num_pages, _ENDS_HERE
        for node in lease.node.path():
            self._points[node] = depth, page
            depth -= len(node.pages)
            page = node.pages[0]
        self._root = 0, page

    def common_pages(self, other: Request) -> int:
        """Pages that both begin with."""
        return self._fork(other)[0]

    def is_before(self, other: Request) -> bool:
        """Whether it stands before another."""
        _, page, their_page = self._fork(other)
        return (page, self._arrival) < (their_page, other.arrival)

    def _fork(self, other: Request) -> tuple[int, int, int]:
        """Pages up to where two paths part, and the page that follows on either."""
        assert other.lease is not None
        node, their_page = other.lease.node, _ENDS_HERE
        while node.parent is not None and node not in self._points:
            their_page = node.pages[0]
            node = node.parent
        return *self._points.get(node, self._root), their_page


def _nested(common: IntArray, least: int) -> IntArray:
    """int64 [stems, 4] first stream, number of streams, begin and end in pages; level by level.

    common: int64 [streams] pages that each has in common with the one before it.
    least: pages of a stem at least; what is shorter is left to those within it.
    """
    joined = np.flatnonzero(common >= least)  # each of these with the stream before it
    covered = np.zeros(len(joined), np.int64)
    found = [np.empty((0, 4), np.int64)]
    while len(joined) and len(found) <= MOST_LEVELS:
        starts = np.flatnonzero(np.diff(joined, prepend=-1) > 1)
        counts = np.diff(starts, append=len(joined))
        shared = common[joined]
        ends = np.minimum.reduceat(shared, starts)
        found.append(np.column_stack([joined[starts] - 1, counts + 1, covered[starts], ends]))
        covered = np.repeat(ends, counts)
        is_deeper = shared >= covered + least
        joined, covered = joined[is_deeper], covered[is_deeper]
    return np.concatenate(found)


def _without(missing: list[int], entries: IntArray, stems: IntArray) -> Arrangement | None:
    """An arrangement of all streams, when some are not computed."""
    is_left = np.ones(len(entries), np.bool_)
    is_left[missing] = False
    new_place = np.cumsum(is_left) - 1  # of each stream that is left
    is_left = is_left[entries]
    num_before = np.concatenate([[0], np.cumsum(is_left)])  # each entry
    first, end = num_before[stems[:, 0]], num_before[stems[:, 0] + stems[:, 1]]
    left = np.column_stack([first, end - first, stems[:, 2:]])[end - first > 1]
    return Arrangement(new_place[entries[is_left]], _column(left)) if len(left) else None


def _missing(streams: list[Request], some: list[Request]) -> list[int]:
    """Places in `streams` of those that `some` of them, in the same order, are without."""
    missing: list[int] = []
    for num_before in range(len(streams) - len(some)):
        # Up to the next one that is missing both agree, and nowhere behind it.
        low, high = (missing[-1] + 1 - num_before if missing else 0), len(some)
        while low < high:
            middle = (low + high) // 2
            if some[middle] is streams[middle + num_before]:
                low = middle + 1
            else:
                high = middle
        missing.append(low + num_before)
    return missing


def taken(column: array[int], places: IntArray) -> array[int]:
    """[places] what a column has there."""
    return array("i", np.frombuffer(column, np.int32)[places].tobytes())


def put_back(column: array[int], places: IntArray) -> array[int]:
    """The column of which `taken` took this one from all places."""
    whole = np.empty(len(places), np.int32)
    whole[places] = np.frombuffer(column, np.int32)
    return array("i", whole.tobytes())


def _column(stems: IntArray) -> array[int]:
    return array("i", stems.astype(np.int32).tobytes())
