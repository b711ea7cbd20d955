"""Compressed radix tree of computed prefixes, grain one page.

Knows tokens and pages; not requests, time or tensors.  Recency is a logical clock.  No walk is
recursive, so depth costs time but no stack.  Technique after the radix caches of SGLang and TGI;
holds that stop at the first held ancestor, tail trimming and flush by detaching are our own.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from scheduler_svc.core.eviction import EvictionRank
from scheduler_svc.core.page_pool import Owner, PagePool
from scheduler_svc.core.radix_node import (
    TOKEN_BYTES,
    Inserted,
    Lease,
    Namespace,
    PrefixKey,
    RadixNode,
)


class RadixTree:
    """Prefixes by namespace; every page in it is owned by exactly one node."""

    def __init__(self, pool: PagePool, page_size: int, rank: EvictionRank) -> None:
        self._pool = pool
        self._page_bytes = page_size * TOKEN_BYTES
        self._rank = rank
        self._roots: dict[Namespace, RadixNode] = {}
        self._queue: list[tuple[int, int, RadixNode]] = []
        self._tick = 0
        self._serial = 0
        self.num_nodes = 0
        self.num_evictable_pages = 0
        self.num_locked_pages = 0
        self.num_evicted_pages = 0
        """Monotone: pages evicted since the start."""

    # --- looking up ---------------------------------------------------------------------------

    def peek(self, key: PrefixKey) -> int:
        """Pages of the longest match; touches, splits and locks nothing."""
        root = self._roots.get(key.namespace)
        if root is None:
            return 0
        return self._walk(root, key.tokens)[2]

    def acquire(self, key: PrefixKey) -> Lease:
        """Locks the longest match and returns its receipt; an empty match is a lease too."""
        root = self._root(key.namespace)
        node, inside, _ = self._walk(root, key.tokens)
        if inside < len(node.pages):
            node = self._split(node, inside)
        return self._lease(node)

    def count_hit(self, lease: Lease) -> None:
        """The path of a lease has served one more request."""
        climber = lease.node
        while climber.parent is not None:
            climber.hits += 1
            climber = climber.parent

    def num_pages_held_alone(self, lease: Lease) -> int:
        """Pages that become evictable when this lease, and no other, is released."""
        num_pages = 0
        climber: RadixNode | None = lease.node
        while climber is not None and climber.num_holds == 1:
            num_pages += len(climber.pages)
            climber = climber.parent
        return num_pages

    def release(self, lease: Lease) -> None:
        """Gives a receipt back; what nobody else holds becomes evictable."""
        node = lease.node
        assert node.num_leases > 0, node.serial
        node.num_leases -= 1
        self._drop_hold(node)

    # --- filling ------------------------------------------------------------------------------

    def insert(self, key: PrefixKey, pages: list[int]) -> Inserted:
        """Puts a computed prefix into the tree and locks it.

        Args:
            key: the tokens; whole pages.
            pages: [num_pages] the caller's pages for these tokens.  Those beyond the existing
                part must be PRIVATE and become the tree's.
        """
        num_pages = len(key.tokens) // self._page_bytes
        assert len(pages) == num_pages, (len(pages), num_pages)
        node, inside, matched = self._walk(self._root(key.namespace), key.tokens)
        if inside < len(node.pages):
            node = self._split(node, inside)
        if matched < num_pages:
            fresh = pages[matched:]
            self._pool.adopt(fresh)
            node = self._attach(node, key.tokens[matched * self._page_bytes :], fresh)
        return Inserted(self._lease(node), matched)

    # --- emptying -----------------------------------------------------------------------------

    def evict(self, num_pages: int) -> int:
        """Frees up to `num_pages` unlocked pages, from the tails of the lowest-ranked leaves.

        Returns:
            Pages freed; fewer only when nothing evictable is left.
        """
        freed = 0
        while freed < num_pages and self._queue:
            rank, _, node = heapq.heappop(self._queue)
            node.queued = False
            if node.parent is None or node.children or node.num_holds:
                continue
            if rank != self._rank(node):  # touched since it was queued
                self._enqueue(node)
                continue
            freed += self._trim(node, num_pages - freed)
        self.num_evicted_pages += freed
        return freed

    def flush(self) -> int:
        """Forgets everything: frees unlocked nodes now, locked ones when their leases end.

        Returns:
            Pages that can never be matched again.
        """
        forgotten = 0
        nodes = list(self.nodes())
        self._roots = {}
        self._queue = []
        for node in nodes:
            node.dead, node.queued = True, False
            forgotten += len(node.pages)
        for node in reversed(nodes):  # children before parents
            if node.parent is not None and not node.num_holds:
                self._trim(node, len(node.pages))
        return forgotten

    # --- reading it all -----------------------------------------------------------------------

    def nodes(self) -> Iterator[RadixNode]:
        """Every live node, roots included, parents before children, in order of creation."""
        for root in self._roots.values():
            stack = [root]
            while stack:
                node = stack.pop()
                yield node
                stack.extend(reversed(node.children.values()))

    # --- inside -------------------------------------------------------------------------------

    def _root(self, namespace: Namespace) -> RadixNode:
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = RadixNode(b"", [], None, 0)
            root.namespace = namespace
        return root

    def _walk(self, root: RadixNode, tokens: bytes) -> tuple[RadixNode, int, int]:
        """Follows `tokens` down.

        Returns:
            The last node reached, how many of its pages match, and the pages matched in all.
        """
        page_bytes = self._page_bytes
        node, offset, inside = root, 0, 0
        while offset < len(tokens):
            child = node.children.get(tokens[offset : offset + page_bytes])
            if child is None:
                break
            node = child
            if tokens.startswith(child.key, offset):
                inside = len(child.pages)
                offset += len(child.key)
                continue
            inside = self._common_pages(child.key, tokens, offset)
            offset += inside * page_bytes
            break
        return node, inside, offset // page_bytes

    def _common_pages(self, key: bytes, tokens: bytes, offset: int) -> int:
        """Whole pages of `key` that equal `tokens` from `offset` on; at least the first one."""
        page_bytes = self._page_bytes
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

    def _split(self, node: RadixNode, num_pages: int) -> RadixNode:
        """Cuts the first `num_pages` of a node off into a new parent, and returns that."""
        parent = node.parent
        assert parent is not None
        assert 0 < num_pages < len(node.pages)
        cut = num_pages * self._page_bytes
        upper = RadixNode(node.key[:cut], node.pages[:num_pages], parent, self._next_serial())
        parent.children[upper.key[: self._page_bytes]] = upper
        node.key, node.pages, node.parent = node.key[cut:], node.pages[num_pages:], upper
        upper.children[node.key[: self._page_bytes]] = node
        upper.last_used, upper.hits = node.last_used, node.hits
        upper.num_holds = 1 if node.num_holds else 0
        self.num_nodes += 1
        return upper

    def _attach(self, parent: RadixNode, key: bytes, pages: list[int]) -> RadixNode:
        leaf = RadixNode(key, pages, parent, self._next_serial())
        leaf.last_used = self._tick
        parent.children[key[: self._page_bytes]] = leaf
        self.num_nodes += 1
        self.num_evictable_pages += len(pages)  # a hold follows at once
        return leaf

    def _lease(self, node: RadixNode) -> Lease:
        """Touches the path to `node`, locks it, and gathers its pages."""
        self._tick += 1
        node.num_leases += 1
        segments: list[list[int]] = []
        climber: RadixNode | None = node
        while climber is not None and climber.parent is not None:
            climber.last_used = self._tick
            segments.append(climber.pages)
            climber = climber.parent
        self._add_hold(node)
        return Lease(node, [page for pages in reversed(segments) for page in pages])

    def _add_hold(self, node: RadixNode) -> None:
        climber: RadixNode | None = node
        while climber is not None:
            climber.num_holds += 1
            if climber.num_holds > 1:
                return
            self.num_evictable_pages -= len(climber.pages)
            self.num_locked_pages += len(climber.pages)
            climber = climber.parent

    def _drop_hold(self, node: RadixNode) -> None:
        climber: RadixNode | None = node
        while climber is not None:
            climber.num_holds -= 1
            if climber.num_holds:
                return
            self.num_evictable_pages += len(climber.pages)
            self.num_locked_pages -= len(climber.pages)
            parent = climber.parent
            if parent is None:
                self._forget_empty_root(climber)
            elif not climber.children:
                if climber.dead:
                    self._trim(climber, len(climber.pages))
                else:
                    self._enqueue(climber)
            climber = parent

    def _enqueue(self, node: RadixNode) -> None:
        if not node.queued:
            node.queued = True
            heapq.heappush(self._queue, (self._rank(node), node.serial, node))

    def _trim(self, node: RadixNode, num_pages: int) -> int:
        """Frees up to `num_pages` pages from the tail of an unheld leaf; removes it when empty."""
        assert not node.children, node.serial
        assert not node.num_holds, node.serial
        num_pages = min(num_pages, len(node.pages))
        kept = len(node.pages) - num_pages
        self._pool.give_back(node.pages[kept:], Owner.TREE)
        self.num_evictable_pages -= num_pages
        if kept:
            node.pages = node.pages[:kept]
            node.key = node.key[: kept * self._page_bytes]
            self._enqueue(node)
        else:
            self._remove(node)
        return num_pages

    def _remove(self, node: RadixNode) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.key[: self._page_bytes]]
        node.parent = None
        node.pages = []
        self.num_nodes -= 1
        if parent.parent is None:
            self._forget_empty_root(parent)
        elif not parent.children and not parent.num_holds and not parent.dead:
            self._enqueue(parent)

    def _forget_empty_root(self, root: RadixNode) -> None:
        """An empty namespace costs nothing: callers invent domains freely."""
        if not (root.children or root.num_holds or root.dead):
            assert root.namespace is not None
            del self._roots[root.namespace]

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial
