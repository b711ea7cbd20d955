"""Leaves that may be evicted, lowest rank first; pinned ones after all others.

Lazy heaps: one entry a node counts, and is checked against the node when it comes up.  That is
O(log n) a leaf whatever the policy, and never a walk over the leaves (field case 12).
"""

from __future__ import annotations

import heapq

from scheduler_svc.core.eviction import EvictionRank, Rank, cost
from scheduler_svc.core.radix_node import (
    NOT_QUEUED,
    QUEUED_PINNED,
    QUEUED_PLAIN,
    RadixNode,
)

_SWEEP_FROM = 1024
"""Entries of nodes that are gone are swept out when the heap has doubled, from this length on."""

_Entry = tuple[Rank, int, RadixNode]


class EvictionQueue:
    """Knows which nodes are candidates; the tree says when one becomes or stops being one."""

    def __init__(self, rank: EvictionRank) -> None:
        self._rank = rank
        self._ages = rank is cost
        self._heap: list[_Entry] = []
        self._pinned: list[_Entry] = []
        self._sweep_at = _SWEEP_FROM
        self.age = 0.0
        """Under `cost`: worth of what was evicted last; what is used from now on starts from it."""

    def __len__(self) -> int:
        return len(self._heap) + len(self._pinned)

    def push(self, node: RadixNode) -> None:
        """A leaf that nobody holds."""
        part = QUEUED_PINNED if node.pins else QUEUED_PLAIN
        if node.queued != part:  # an entry in the other part, if there is one, is void now
            node.queued = part
            heap = self._pinned if node.pins else self._heap
            heapq.heappush(heap, (self._rank(node), node.serial, node))
            if len(self) > self._sweep_at:
                self._sweep()

    def pop(self) -> RadixNode | None:
        """The leaf to evict from next, taken out; None when there is none."""
        return self._pop(self._heap, QUEUED_PLAIN) or self._pop(self._pinned, QUEUED_PINNED)

    def clear(self) -> None:
        """Forgets all entries; the nodes' `queued` is the caller's to reset."""
        self._heap.clear()
        self._pinned.clear()

    def _sweep(self) -> None:
        self._heap = _swept(self._heap, QUEUED_PLAIN)
        self._pinned = _swept(self._pinned, QUEUED_PINNED)
        self._sweep_at = max(_SWEEP_FROM, 2 * len(self))

    def _pop(self, heap: list[_Entry], part: int) -> RadixNode | None:
        while heap:
            rank, _, node = heapq.heappop(heap)
            if node.queued != part:
                continue
            node.queued = NOT_QUEUED
            if node.parent is None or node.children or node.num_holds:
                continue
            if rank != self._rank(node):
                self.push(node)  # used since it was queued
                continue
            if self._ages:
                assert isinstance(rank, tuple)
                self.age = rank[0]
            return node
        return None


def _swept(heap: list[_Entry], part: int) -> list[_Entry]:
    """The entries that count, one a node: one that changed parts and came back has several."""
    valid = {
        entry[2]: entry for entry in heap if entry[2].queued == part and entry[2].parent is not None
    }
    swept = list(valid.values())
    heapq.heapify(swept)
    return swept
