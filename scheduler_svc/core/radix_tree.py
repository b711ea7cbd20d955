"""Compressed radix tree of computed prefixes, grain one page.

Knows tokens and pages; not requests or tensors.  Recency is a logical clock; `now_ms` is a fact it
is told, for the histograms alone.  No walk is recursive, so depth costs time but no stack.
Technique after the radix caches of SGLang and TGI; holds that stop at the first held ancestor,
facts that a removed child hands to its parent, and flush by detaching are our own.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from scheduler_svc.core.eviction import EvictionRank
from scheduler_svc.core.eviction_queue import EvictionQueue
from scheduler_svc.core.page_lives import PageLives
from scheduler_svc.core.page_pool import Owner, PagePool
from scheduler_svc.core.radix_node import (
    NO_CHILDREN,
    NOT_QUEUED,
    TOKEN_BYTES,
    Inserted,
    Lease,
    Namespace,
    PrefixKey,
    RadixNode,
    common_pages,
)


class RadixTree:
    """Prefixes by namespace; every page in it is owned by exactly one node."""

    def __init__(
        self,
        pool: PagePool,
        page_size: int,
        rank: EvictionRank,
        lives: PageLives | None = None,
    ) -> None:
        self._pool = pool
        self._lives = lives or PageLives()
        self._page_bytes = page_size * TOKEN_BYTES
        self._queue = EvictionQueue(rank)
        self._roots: dict[Namespace, RadixNode] = {}
        self._tick = 0
        self._serial = 0
        self.now_ms = 0
        """Time of the present call; whoever calls sets it."""
        self.version = 0
        """Changes whenever a match may have become longer or shorter."""
        self.num_nodes = 0
        self.num_evictable_pages = 0
        self.num_locked_pages = 0
        self.num_evicted_pages = 0
        """Monotone: pages evicted since the start."""

    # --- looking up ---------------------------------------------------------------------------

    def peek(self, key: PrefixKey) -> int:
        """Pages of the longest match; touches, splits and locks nothing."""
        root = self._roots.get(key.namespace)
        return 0 if root is None else self._walk(root, key.tokens, 0)[2]

    def find(self, key: PrefixKey) -> RadixNode | None:
        """The node that ends exactly where `key` does, if there is one."""
        root = self._roots.get(key.namespace)
        if root is None:
            return None
        node, inside, matched = self._walk(root, key.tokens, 0)
        ends_here = inside == len(node.pages) and matched * self._page_bytes == len(key.tokens)
        return node if ends_here else None

    def match_path(self, key: PrefixKey) -> tuple[int, ...]:
        """Serial numbers of the nodes of the longest match, from the stem down."""
        root = self._roots.get(key.namespace)
        if root is None:
            return ()
        path = self._walk(root, key.tokens, 0)[0].path()
        return tuple(node.serial for node in reversed(path))

    def acquire(self, key: PrefixKey) -> Lease:
        """Locks the longest match and returns its receipt; an empty match is a lease too."""
        node, inside, matched = self._walk(self._root(key.namespace), key.tokens, 0)
        if inside < len(node.pages):
            node = self._split(node, inside)
        return self._lease(node, matched)

    def count_hit(self, lease: Lease, priority: int) -> None:
        """A match has served one more request."""
        node = lease.node
        if node.parent is None:
            return
        self._lives.note_used(node, self.now_ms)
        node.hits += 1
        if priority > node.priority:
            node.priority = priority

    def path_pages(self, lease: Lease) -> array[int]:
        """[lease.num_pages] pages of the whole path of a lease, from the root."""
        pages = array("i")
        for node in reversed(lease.node.path()):
            pages.extend(node.pages)
        return pages

    def num_unheld_pages(self, key: PrefixKey) -> int:
        """Pages of the longest match that nobody holds: what acquiring it would lock."""
        root = self._roots.get(key.namespace)
        if root is None:
            return 0
        node, inside, _ = self._walk(root, key.tokens, 0)
        num_pages = 0 if node.num_holds else inside
        climber = node.parent
        while climber is not None and not climber.num_holds:
            num_pages += len(climber.pages)
            climber = climber.parent
        return num_pages

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

    def insert(
        self, key: PrefixKey, pages: array[int], *, below: Lease | None = None, priority: int = 0
    ) -> Inserted:
        """Puts a computed prefix into the tree and locks it.

        Args:
            key: the tokens; whole pages.
            pages: [num_pages] the caller's pages for these tokens.  Those beyond the existing
                part must be PRIVATE and become the tree's.
            below: a live lease of the caller's on a prefix of `key`; the walk starts there.
            priority: of the request it was computed for.
        """
        page_bytes = self._page_bytes
        num_pages = len(key.tokens) // page_bytes
        assert len(pages) == num_pages, (len(pages), num_pages)
        if below is None:
            node, inside, matched = self._walk(self._root(key.namespace), key.tokens, 0)
        else:
            node, inside, matched = self._walk(below.node, key.tokens, below.num_pages * page_bytes)
        if inside < len(node.pages):
            node = self._split(node, inside)
        if matched < num_pages:
            fresh = pages[matched:]
            self._pool.adopt(fresh)
            node = self._attach(node, key.tokens[matched * page_bytes :], fresh)
            node.priority = priority
        node.used_ms = self.now_ms
        return Inserted(self._lease(node, num_pages), matched)

    # --- emptying -----------------------------------------------------------------------------

    def evict(self, num_pages: int) -> int:
        """Frees up to `num_pages` unlocked pages, from the tails of the lowest-ranked leaves.

        Returns:
            Pages freed; fewer only when nothing evictable is left.
        """
        freed = 0
        while freed < num_pages:
            node = self._queue.pop()
            if node is None:
                break
            freed += self._evict_from(node, num_pages - freed)
        return freed

    def drop_tail(self, node: RadixNode, num_pages: int) -> int:
        """Frees up to `num_pages` pages from the end of one path upward, as far as nobody else
        holds, continues or has pinned it.

        Returns:
            Pages freed.
        """
        freed = 0
        climber: RadixNode | None = node
        while climber is not None and freed < num_pages:
            parent = climber.parent
            if parent is None or climber.dead:
                break
            if climber.num_holds or climber.children or climber.pins:
                break
            freed += self._evict_from(climber, num_pages - freed)
            climber = parent
        return freed

    def flush(self) -> int:
        """Forgets everything: frees unlocked nodes now, locked ones when their leases end.

        Returns:
            Pages that can never be matched again.
        """
        forgotten = 0
        nodes = list(self.nodes())
        self.version += 1
        self._roots = {}
        self._queue.clear()
        for node in nodes:
            node.dead, node.queued = True, NOT_QUEUED
            forgotten += len(node.pages)
        for node in reversed(nodes):  # children before parents
            if node.parent is not None and not node.num_holds:
                self._trim(node, len(node.pages))
        return forgotten

    def set_rank(self, rank: EvictionRank) -> None:
        """Ranks by another policy from now on."""
        self._queue = EvictionQueue(rank)
        for node in self.nodes():
            node.queued = NOT_QUEUED
            node.age_base = 0.0
            self.requeue(node)

    def requeue(self, node: RadixNode) -> None:
        """Lets eviction know a leaf that nobody holds; its pins may have changed."""
        if node.parent is not None and not (node.children or node.num_holds or node.dead):
            self._queue.push(node)

    # --- reading it all -----------------------------------------------------------------------

    def nodes(self) -> Iterator[RadixNode]:
        """Every live node, roots included, parents before children, in order of creation."""
        for root in self._roots.values():
            stack = [root]
            while stack:
                node = stack.pop()
                yield node
                stack.extend(reversed(node.children.values()))

    @property
    def num_roots(self) -> int:
        """Namespaces with anything in them."""
        return len(self._roots)

    # --- inside -------------------------------------------------------------------------------

    def _root(self, namespace: Namespace) -> RadixNode:
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = RadixNode(b"", array("i"), None, 0)
            root.namespace = namespace
        return root

    def _walk(self, node: RadixNode, tokens: bytes, offset: int) -> tuple[RadixNode, int, int]:
        """Follows `tokens` down from `node`, which ends at byte `offset` of them.

        Returns:
            The last node reached, how many of its pages match, and the pages matched in all.
        """
        page_bytes, end = self._page_bytes, len(tokens)
        inside = len(node.pages)
        while offset < end:
            child = node.children.get(tokens[offset : offset + page_bytes])
            if child is None:
                break
            node = child
            if tokens.startswith(child.key, offset):
                inside = len(child.pages)
                offset += len(child.key)
                continue
            inside = common_pages(child.key, tokens, offset, page_bytes)
            offset += inside * page_bytes
            break
        return node, inside, offset // page_bytes

    def _split(self, node: RadixNode, num_pages: int) -> RadixNode:
        """Cuts the first `num_pages` of a node off into a new parent, and returns that."""
        parent = node.parent
        assert parent is not None
        assert 0 < num_pages < len(node.pages)
        page_bytes = self._page_bytes
        cut = num_pages * page_bytes
        upper = RadixNode(node.key[:cut], node.pages[:num_pages], parent, self._next_serial())
        parent.children[upper.key[:page_bytes]] = upper
        node.key, node.pages, node.parent = node.key[cut:], node.pages[num_pages:], upper
        upper.children = {node.key[:page_bytes]: node}
        upper.last_used, upper.priority = node.last_used, node.priority
        upper.created_ms, upper.used_ms = node.created_ms, node.used_ms
        upper.num_holds = 1 if node.num_holds else 0
        self.num_nodes += 1
        return upper

    def _attach(self, parent: RadixNode, key: bytes, pages: array[int]) -> RadixNode:
        self.version += 1
        leaf = RadixNode(key, pages, parent, self._next_serial())
        leaf.created_ms = leaf.used_ms = self.now_ms
        if parent.children is NO_CHILDREN:
            parent.children = {}
        parent.children[key[: self._page_bytes]] = leaf
        self.num_nodes += 1
        self.num_evictable_pages += len(pages)  # a hold follows at once
        return leaf

    def _lease(self, node: RadixNode, num_pages: int) -> Lease:
        """Touches `node` and locks the path to it."""
        self._tick += 1
        if node.parent is not None:
            node.last_used = self._tick
            node.age_base = self._queue.age
        node.num_leases += 1
        climber: RadixNode | None = node
        while climber is not None:
            climber.num_holds += 1
            if climber.num_holds > 1:
                break
            num_held = len(climber.pages)
            self.num_evictable_pages -= num_held
            self.num_locked_pages += num_held
            climber = climber.parent
        return Lease(node, num_pages)

    def _drop_hold(self, node: RadixNode) -> None:
        climber: RadixNode | None = node
        while climber is not None:
            climber.num_holds -= 1
            if climber.num_holds:
                return
            num_held = len(climber.pages)
            self.num_evictable_pages += num_held
            self.num_locked_pages -= num_held
            parent = climber.parent
            if parent is None:
                self._forget_empty_root(climber)
            elif not climber.children:
                if climber.dead:
                    self._trim(climber, num_held)
                else:
                    self._queue.push(climber)
            climber = parent

    def _evict_from(self, node: RadixNode, num_pages: int) -> int:
        num_pages = min(num_pages, len(node.pages))
        self._lives.note_evicted(node, num_pages, self.now_ms)
        self.num_evicted_pages += num_pages
        self._trim(node, num_pages)
        return num_pages

    def _trim(self, node: RadixNode, num_pages: int) -> None:
        """Frees the last `num_pages` pages of an unheld leaf; removes it when that is all."""
        assert not node.children, node.serial
        assert not node.num_holds, node.serial
        self.version += 1
        kept = len(node.pages) - num_pages
        self.num_evictable_pages -= num_pages
        if kept:
            self._pool.give_back(node.pages[kept:], Owner.TREE)
            node.pages = node.pages[:kept]
            node.key = node.key[: kept * self._page_bytes]
            self._queue.push(node)
        else:
            self._pool.give_back(node.pages, Owner.TREE)
            self._remove(node)

    def _remove(self, node: RadixNode) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.key[: self._page_bytes]]
        if not parent.children:
            parent.children = NO_CHILDREN
        node.parent = None
        node.pages = array("i")
        self.num_nodes -= 1
        for pin in node.pins:
            pin.node = None if parent.parent is None else parent
        if parent.parent is None:
            self._forget_empty_root(parent)
            return
        parent.inherit(node)
        if not parent.children and not parent.num_holds and not parent.dead:
            self._queue.push(parent)

    def _forget_empty_root(self, root: RadixNode) -> None:
        """An empty namespace costs nothing: callers invent domains freely."""
        if not (root.children or root.num_holds or root.dead):
            assert root.namespace is not None
            del self._roots[root.namespace]

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial
