"""Moves pages between the pool, requests and the tree.  Chooses nobody.

Who owns a request's pages, as half-open ranges of its positions:

    [0, leased)           the tree's, locked by the request's lease
    [leased, computed)    private, written or being written
    [computed, capacity)  private, rest of the last page; while drafts are in flight, they count
                          as computed, and are given up again with the answer
"""

from __future__ import annotations

from array import array

from scheduler_svc.core.free_runs import LEAST_LONG
from scheduler_svc.core.page_pool import Owner, PagePool
from scheduler_svc.core.radix_node import Inserted, Lease, PrefixKey
from scheduler_svc.core.radix_tree import RadixTree
from scheduler_svc.core.request import Request

MOST_ROOM = 256
"""Tokens for which whoever begins a run of pages finds room to grow, if there is as much."""

_EVICTED_TOGETHER = 1024
"""Tokens that eviction frees beyond what is asked for: of a cold leaf these lie side by side, and
would be next.  Freed one at a time, as they are needed, they would never make a run."""
_MOST_TOGETHER = 1 / 32
"""Of the pool; no more than that is kept from those who might still ask for it."""


class KVCache:
    """The pool, the tree, and the passage between them."""

    def __init__(self, pool: PagePool, tree: RadixTree, page_size: int) -> None:
        self.pool = pool
        self.tree = tree
        self.page_size = page_size
        self._room = max(LEAST_LONG, MOST_ROOM // page_size)
        together = min(_EVICTED_TOGETHER // page_size, int(pool.num_pages * _MOST_TOGETHER))
        self._together = together if together >= 4 * LEAST_LONG else 0  # else too few for runs
        self._num_holders = 0
        """Requests that hold pages."""
        self._grown: list[Request] = []
        """Those that got a page each last, while that page is the last one of each."""

    @property
    def num_available_pages(self) -> int:
        """Pages that can be had now: free, or cached and read by nobody."""
        return self.pool.num_free + self.tree.num_evictable_pages

    def num_pages(self, num_tokens: int) -> int:
        """Pages that hold so many tokens."""
        return -(-num_tokens // self.page_size)

    def num_private_pages(self, request: Request) -> int:
        """Pages of a request that are not the tree's."""
        return len(request.pages) - request.lease.num_pages if request.lease else 0

    def num_pages_held_alone(self, request: Request) -> int:
        """Pages that can be had once this request, and no other, is gone."""
        if request.lease is None:
            return 0
        return self.num_private_pages(request) + self.tree.num_pages_held_alone(request.lease)

    def match_key(self, request: Request) -> PrefixKey:
        """What a request may reuse: all but the tokens whose logits it needs, the last one's and,
        where the prompt is scored, those whose next token is not scored yet."""
        num_tokens = len(request.tokens) - (0 if request.submission.preheat else 1)
        if request.num_unscored:
            num_tokens = request.num_scored
        return PrefixKey.of(request.namespace, request.tokens, num_tokens, self.page_size)

    def attach(self, request: Request) -> None:
        """Gives a request the longest cached prefix of its tokens, locked."""
        assert request.lease is None
        self._num_holders += 1
        request.lease = self.tree.acquire(self.match_key(request))
        request.pages = self.tree.path_pages(request.lease)
        request.num_computed = len(request.pages) * self.page_size

    def detach(self, request: Request) -> None:
        """Undoes `attach` before anything was computed."""
        assert request.lease is not None
        assert len(request.pages) == request.lease.num_pages
        self.tree.release(request.lease)
        request.num_computed = 0
        self._num_holders -= 1
        self._grown = []
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
        behind = request.pages[-1] if request.pages else 0
        rest = self.num_pages(len(request.tokens)) - len(request.pages) - missing
        request.pages.extend(self.take(missing, behind, max(0, rest)))
        self._grown = []
        return True

    def grow_each(self, requests: list[Request]) -> array[int]:
        """[num_requests] one more page for each of these, evicting if it must; the caller knows
        that they can be had."""
        if not requests:
            return array("i")
        self._evict_for(len(requests))
        room = self._room_for_each()
        if requests == self._grown:  # as in most steps; reading all last pages costs more than this
            pages = self.pool.take_each_again(room)
        else:
            last = array("i", [request.pages[-1] for request in requests])
            pages = self.pool.take_each(last, room)
            self._grown = requests
        for request, page in zip(requests, pages, strict=True):
            request.pages.append(page)
        return pages

    def give_up(self, request: Request, num_tokens: int) -> None:
        """The last `num_tokens` computed positions hold drafts that were wrong: they are not
        computed, and pages that hold nothing else are as if never taken.

        No plan in flight may name the request.
        """
        request.num_computed -= num_tokens
        end = self.num_pages(request.num_computed)
        self.pool.put_back(request.pages[end:])
        del request.pages[end:]
        self._grown = []

    def take(self, num_pages: int, behind: int = 0, rest: int = 0) -> array[int]:
        """[num_pages] private pages, evicting for them; the caller knows that they can be had.

        Args:
            num_pages: how many, side by side if possible.
            behind: the page they are to follow if possible, or 0.
            rest: pages that the request is known to need after these.
        """
        self._evict_for(num_pages)
        return self.pool.take(num_pages, behind, rest + self._room_for_each())

    def commit(self, request: Request, last_step_id: int) -> tuple[int, array[int]] | None:
        """Puts the computed whole pages of a running request into the tree.

        Where the tree already had some of them, the request moves over to the tree's copies and
        its own are retired until plan `last_step_id`, the last that may name them, is answered.

        Returns:
            (first page index, pages) that replace the request's own, or None.
        """
        lease = request.lease
        assert lease is not None
        num_leased = lease.num_pages
        num_whole, key = self._computed(request)
        if num_whole <= num_leased:
            return None
        if lease.node.dead:  # computed before a flush: may not be shared any more
            return None
        inserted = self._insert(request, key, num_whole, lease)
        self.tree.release(lease)
        request.lease = inserted.lease
        # [0, leased)        the tree's before and after
        # [leased, existing) ours, but the tree has a twin -> retire, take the twin
        # [existing, whole)  ours, first of its kind       -> now the tree's
        existing = inserted.num_existing_pages
        if existing <= num_leased:
            return None
        request.num_found_pages = max(request.num_found_pages, existing)
        self.pool.retire(request.pages[num_leased:existing], last_step_id)
        twins = self.tree.path_pages(inserted.lease)[num_leased:existing]
        request.pages[num_leased:existing] = twins
        return num_leased, twins

    def release(self, request: Request) -> Lease | None:
        """Takes back all a request holds; its computed whole pages stay in the tree as warm.

        No plan in flight may name the request.

        Returns:
            Where its tokens end in the tree, already released; None when nothing of it is there.
        """
        lease = request.lease
        assert lease is not None
        assert not request.num_unacked
        num_tree, end = lease.num_pages, lease
        if not request.submission.no_store and not lease.node.dead:
            num_whole, key = self._computed(request)
            if num_whole > num_tree:
                inserted = self._insert(request, key, num_whole, lease)
                existing = inserted.num_existing_pages
                if existing > num_tree:
                    request.num_found_pages = max(request.num_found_pages, existing)
                twins = request.pages[num_tree:existing]
                self.pool.give_back(twins, Owner.PRIVATE)
                num_tree, end = num_whole, inserted.lease
                self.tree.release(end)
        self.pool.give_back(request.pages[num_tree:], Owner.PRIVATE)
        self.tree.release(lease)
        self._num_holders -= 1
        self._grown = []
        request.forget_kv()
        return None if end.node.parent is None else end

    def slots(self, request: Request, start: int, end: int) -> array[int]:
        """Slots of positions [start, end) of a request."""
        if self.page_size == 1:
            return request.pages[start:end]
        size, pages = self.page_size, request.pages
        return array("i", [pages[i // size] * size + i % size for i in range(start, end)])

    def _evict_for(self, num_pages: int) -> None:
        """Makes so many pages free, and some more that lie beside them."""
        short = num_pages - self.pool.num_free
        if short > 0:
            self.tree.evict(short + min(self._together, self.tree.num_evictable_pages - short))

    def _room_for_each(self) -> int:
        """Pages: half of what is free is left to those that run now, half to those to come."""
        return min(self._room, self.pool.num_free // (2 * self._num_holders + 1))

    def _insert(self, request: Request, key: PrefixKey, num_whole: int, below: Lease) -> Inserted:
        priority = request.submission.priority
        pages = request.pages[:num_whole]
        return self.tree.insert(key, pages, below=below, priority=priority)

    def _computed(self, request: Request) -> tuple[int, PrefixKey]:
        """Whole pages whose computation the worker has reported, and their key."""
        num_tokens = min(request.num_acked, len(request.tokens))
        key = PrefixKey.of(request.namespace, request.tokens, num_tokens, self.page_size)
        return num_tokens // self.page_size, key
