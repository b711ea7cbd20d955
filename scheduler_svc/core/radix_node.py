"""Nodes, keys and leases of the radix tree: the words, without the grammar."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from scheduler_svc.core.pin import Pin

TOKEN_BYTES = 4

NOT_QUEUED, QUEUED_PLAIN, QUEUED_PINNED = 0, 1, 2

NO_CHILDREN: dict[bytes, RadixNode] = {}
"""Of every leaf, so that a leaf costs no dictionary; never written to."""


class Namespace(NamedTuple):
    """What must be equal before two prefixes may be compared at all."""

    tenant: str
    cache_domain: str
    adapter_id: str
    weights: str
    kv_dtype: str


class PrefixKey(NamedTuple):
    """Tokens to look up, cut to whole pages.  Bytes, because memory compares faster than lists."""

    namespace: Namespace
    tokens: bytes
    """[num_tokens * TOKEN_BYTES], a whole number of pages."""

    @staticmethod
    def of(namespace: Namespace, tokens: array[int], num_tokens: int, page_size: int) -> PrefixKey:
        """Key of the first `num_tokens` tokens, rounded down to whole pages."""
        whole = num_tokens - num_tokens % page_size
        return PrefixKey(namespace, tokens[:whole].tobytes())


class RadixNode:
    """An edge of the tree and the point where it ends.

    `num_holds` counts leases on this very node plus children that are held, so a node is held
    exactly when a lease ends in its subtree, and taking a lease stops climbing at the first
    ancestor that is held already.  In the same way `last_used`, `hits` and `priority` are of this
    very point: what a removed child had is handed to its parent, which cannot be evicted before.
    """

    __slots__ = (
        "age_base",
        "children",
        "created_ms",
        "dead",
        "hits",
        "key",
        "last_used",
        "namespace",
        "num_holds",
        "num_leases",
        "pages",
        "parent",
        "pins",
        "priority",
        "queued",
        "serial",
        "used_ms",
    )

    def __init__(
        self, key: bytes, pages: array[int], parent: RadixNode | None, serial: int
    ) -> None:
        self.key = key
        self.pages = pages
        """[num_pages], typecode "i"."""
        self.parent = parent
        """None for a root and, so that no cycle outlives it, for a removed node."""
        self.children = NO_CHILDREN
        """By the first page of the child's key."""
        self.namespace: Namespace | None = None
        """Set on roots only."""
        self.serial = serial
        """Order of creation; breaks ties of rank."""
        self.last_used = 0
        """On the tree's logical clock."""
        self.created_ms = 0
        self.used_ms = 0
        """On the caller's clock; for the histograms, never for a decision."""
        self.hits = 0
        """Requests whose match ended here."""
        self.priority = 0
        """Highest priority of the requests that used it."""
        self.age_base = 0.0
        """What evicted nodes were worth when this one was last used; see eviction.cost."""
        self.pins: tuple[Pin, ...] = ()
        self.num_leases = 0
        self.num_holds = 0
        self.queued = NOT_QUEUED
        """In which part of the eviction queue an entry of this node is."""
        self.dead = False
        """Flushed: still read by its lease holders, never matched again."""

    def __lt__(self, other: RadixNode) -> bool:
        """For heaps: breaks the tie between two entries of one node."""
        return self.serial < other.serial

    def path(self) -> list[RadixNode]:
        """From this node up to the child of its root."""
        nodes = []
        climber: RadixNode | None = self
        while climber is not None and climber.parent is not None:
            nodes.append(climber)
            climber = climber.parent
        return nodes

    def inherit(self, child: RadixNode) -> None:
        """What a removed child knew of its use counts for the path that led to it."""
        self.hits += child.hits
        self.last_used = max(self.last_used, child.last_used)
        self.used_ms = max(self.used_ms, child.used_ms)
        self.priority = max(self.priority, child.priority)
        self.age_base = max(self.age_base, child.age_base)
        if child.pins:
            self.pins += child.pins


class Lease(NamedTuple):
    """Receipt for a locked path.  It stays right when the path is split later: a split leaves
    the lower part, where the lease ends, in place."""

    node: RadixNode
    num_pages: int
    """Of the whole path from the root."""


class Inserted(NamedTuple):
    """What an insertion found and did."""

    lease: Lease
    """Of the whole inserted path; to be released like any other."""
    num_existing_pages: int
    """The first pages were in the tree already; the rest was adopted from the caller."""


def common_pages(key: bytes, tokens: bytes, offset: int, page_bytes: int) -> int:
    """Whole pages of `key` that equal `tokens` from `offset` on; the first one is known to."""
    most = min(len(key), len(tokens) - offset) // page_bytes
    low, high = 1, most + 1  # pages [0, low) are equal, [0, high) are not, or not there
    while high - low > 1:
        middle = (low + high) // 2
        start, end = low * page_bytes, middle * page_bytes
        if key[start:end] == tokens[offset + start : offset + end]:
            low = middle
        else:
            high = middle
    return low
