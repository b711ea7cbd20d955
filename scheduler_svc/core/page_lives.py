"""How cached pages fare: how long they live, lie idle, and wait for their next use.

Outlives the trees it counts for.  Decides nothing.
"""

from __future__ import annotations

from scheduler_svc.core.histogram import Histogram
from scheduler_svc.core.radix_node import RadixNode


class PageLives:
    """Three histograms, in milliseconds."""

    def __init__(self) -> None:
        self.lifetimes_ms = Histogram()
        """Of evicted pages: from their insertion."""
        self.idle_ms = Histogram()
        """Of evicted pages: from their last use."""
        self.reuse_gaps_ms = Histogram()
        """Of matches: from the use before."""

    def note_evicted(self, node: RadixNode, num_pages: int, now_ms: int) -> None:
        """Pages from the tail of a node are gone."""
        self.lifetimes_ms.note(now_ms - node.created_ms, num_pages)
        self.idle_ms.note(now_ms - node.used_ms, num_pages)

    def note_used(self, node: RadixNode, now_ms: int) -> None:
        """A node has served one more request."""
        self.reuse_gaps_ms.note(now_ms - node.used_ms)
        node.used_ms = now_ms
