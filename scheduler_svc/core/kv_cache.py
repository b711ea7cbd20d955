"""Moves pages between the pool, requests and the tree.  Chooses nobody.

Who owns a request's pages, as half-open ranges of its positions:

    [0, leased)           the tree's, locked by the request's lease
    [leased, computed)    private, written or being written
    [computed, capacity)  private, rest of the last page
"""

from __future__ import annotations

from array import array

from scheduler_svc.core.page_pool import Owner, PagePool
from scheduler_svc.core.radix_node import PrefixKey
from scheduler_svc.core.radix_tree import RadixTree
from scheduler_svc.core.request import Request


class KVCache:
    """The pool, the tree, and the passage between them."""

    def __init__(self, pool: PagePool, tree: RadixTree, page_size: int) -> None:
        self.pool = pool
        self.tree = tree
        self.page_size = page_size

    @property
    def num_available_pages(self) -> int:
        """Pages that can be had now: free, or cached and read by nobody."""
        return self.pool.num_free + self.tree.num_evictable_pages

    def num_pages(self, num_tokens: int) -> int:
        """Pages that hold so many tokens."""
        return -(-num_tokens // self.page_size)

    def num_private_pages(self, request: Request) -> int:
        """Pages of a request that are not the tree's."""
        return len(request.pages) - len(request.lease.pages) if request.lease else 0

    def num_returning_pages(self, request: Request) -> int:
        """Pages that can be had once a leaving request is released."""
        if request.lease is None:
            return 0
        return self.num_private_pages(request) + self.tree.num_pages_held_alone(request.lease)

    def match_key(self, request: Request) -> PrefixKey:
        """What a request may reuse: all but the token whose logits it needs."""
        num_tokens = len(request.tokens) - (0 if request.submission.preheat else 1)
        return PrefixKey.of(request.namespace, request.tokens, num_tokens, self.page_size)

    def attach(self, request: Request) -> None:
        """Gives a request the longest cached prefix of its tokens, locked."""
        assert request.lease is None
        request.lease = self.tree.acquire(self.match_key(request))
        request.pages = list(request.lease.pages)
        request.num_computed = request.num_acked = len(request.pages) * self.page_size

    def detach(self, request: Request) -> None:
        """Undoes `attach` before anything was computed."""
        assert request.lease is not None
        assert len(request.pages) == len(request.lease.pages)
        self.tree.release(request.lease)
        request.forget_kv()

    def grow(self, request: Request, num_tokens: int) -> bool:
        """Makes room for the first `num_tokens` positions, evicting if it must.

        Returns:
            False, with nothing taken, when there is not enough.
        """
        missing = self.num_pages(num_tokens) - len(request.pages)
        if missing <= 0:
            return True
        if missing > self.num_available_pages:
            return False
        if missing > self.pool.num_free:
            self.tree.evict(missing - self.pool.num_free)
        request.pages.extend(self.pool.take(missing))
        return True

    def commit(self, request: Request, last_step_id: int) -> tuple[int, list[int]] | None:
        """Puts the computed whole pages of a running request into the tree.

        Where the tree already had some of them, the request moves over to the tree's copies and
        its own are retired until plan `last_step_id`, the last that may name them, is answered.

        Returns:
            (first page index, pages) that replace the request's own, or None.
        """
        lease = request.lease
        assert lease is not None
        num_leased = len(lease.pages)
        num_whole, key = self._computed(request)
        if num_whole <= num_leased:
            return None
        if lease.node.dead:  # computed before a flush: may not be shared any more
            return None
        inserted = self.tree.insert(key, request.pages[:num_whole])
        self.tree.release(lease)
        request.lease = inserted.lease
        # [0, leased)        the tree's before and after
        # [leased, existing) ours, but the tree has a twin -> retire, take the twin
        # [existing, whole)  ours, first of its kind       -> now the tree's
        existing = inserted.num_existing_pages
        if existing <= num_leased:
            return None
        self.pool.retire(request.pages[num_leased:existing], last_step_id)
        twins = inserted.lease.pages[num_leased:existing]
        request.pages[num_leased:existing] = twins
        return num_leased, twins

    def release(self, request: Request) -> None:
        """Takes back all a request holds; its computed whole pages stay in the tree as warm.

        No plan in flight may name the request.
        """
        lease = request.lease
        assert lease is not None
        assert not request.num_in_flight
        num_tree = len(lease.pages)
        if not request.submission.no_store and not lease.node.dead:
            num_whole, key = self._computed(request)
            if num_whole > num_tree:
                inserted = self.tree.insert(key, request.pages[:num_whole])
                self.pool.give_back(
                    request.pages[num_tree : inserted.num_existing_pages], Owner.PRIVATE
                )
                num_tree = num_whole
                self.tree.release(inserted.lease)
        self.pool.give_back(request.pages[num_tree:], Owner.PRIVATE)
        self.tree.release(lease)
        request.forget_kv()

    def slots(self, request: Request, start: int, end: int) -> array[int]:
        """Slots of positions [start, end) of a request."""
        if self.page_size == 1:
            return array("i", request.pages[start:end])
        size, pages = self.page_size, request.pages
        return array("i", [pages[i // size] * size + i % size for i in range(start, end)])

    def _computed(self, request: Request) -> tuple[int, PrefixKey]:
        """Whole pages whose computation the worker has reported, and their key."""
        num_tokens = min(request.num_acked, len(request.tokens))
        key = PrefixKey.of(request.namespace, request.tokens, num_tokens, self.page_size)
        return num_tokens // self.page_size, key
