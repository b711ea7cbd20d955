"""Nodes, keys and leases of the radix tree: the words, without the grammar."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import NamedTuple

TOKEN_BYTES = 4


class Namespace(NamedTuple):
    """What must be equal before two prefixes may be compared at all."""

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
    ancestor that is held already.
    """

    __slots__ = (
        "children",
        "dead",
        "hits",
        "key",
        "last_used",
        "namespace",
        "num_holds",
        "num_leases",
        "pages",
        "parent",
        "queued",
        "serial",
    )

    def __init__(self, key: bytes, pages: list[int], parent: RadixNode | None, serial: int) -> None:
        self.key = key
        self.pages = pages
        self.parent = parent
        """None for a root and, so that no cycle outlives it, for a removed node."""
        self.children: dict[bytes, RadixNode] = {}
        """By the first page of the child's key."""
        self.namespace: Namespace | None = None
        """Set on roots only."""
        self.serial = serial
        """Order of creation; breaks ties of rank."""
        self.last_used = 0
        self.hits = 0
        self.num_leases = 0
        self.num_holds = 0
        self.queued = False
        """An entry of this node is in the eviction queue."""
        self.dead = False
        """Flushed: still read by its lease holders, never matched again."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Receipt for a locked path.  It stays right when the path is split later: a split leaves
    the lower part, where the lease ends, in place."""

    node: RadixNode
    pages: list[int]
    """Pages of the whole path from the root."""


@dataclass(frozen=True, slots=True)
class Inserted:
    """What an insertion found and did."""

    lease: Lease
    """Of the whole inserted path; to be released like any other."""
    num_existing_pages: int
    """The first pages were in the tree already; the rest was adopted from the caller."""
