"""Who is computing a prefix that somebody who waits will share.  Holds nobody; the planner does.

Two requests with one prompt that start together would both compute it.  The second waits instead
until the tree holds what the first has computed, which it can then read.
"""

from __future__ import annotations

from scheduler_svc.core.radix_node import TOKEN_BYTES, Namespace, common_pages
from scheduler_svc.core.request import Request

LEAST_TWIN_TOKENS = 32
"""Less than so many tokens to share are computed twice rather than waited for."""

_Stem = tuple[Namespace, bytes]


class Twins:
    """Running requests that compute a prompt others may share, by how the prompt begins."""

    def __init__(self, page_size: int) -> None:
        self._page_bytes = page_size * TOKEN_BYTES
        self._stem_tokens = max(LEAST_TWIN_TOKENS, page_size)
        self._leaders: dict[_Stem, dict[str, Request]] = {}

    def lead(self, request: Request) -> None:
        """A request begins to compute its prompt."""
        if request.submission.no_store or request.is_preheat:
            return  # nobody waits for what is not kept, or for those who run behind all others
        stem = self._stem(request)
        if stem is not None and request.num_owed >= self._stem_tokens:
            self._leaders.setdefault(stem, {})[request.request_id] = request

    def stop_leading(self, request: Request) -> None:
        """It has computed its prompt, or it stopped."""
        stem = self._stem(request)
        if stem is None:
            return
        leaders = self._leaders.get(stem)
        if leaders is None:
            return
        leaders.pop(request.request_id, None)
        if not leaders:
            del self._leaders[stem]

    def leader_of(self, request: Request, cached_tokens: int) -> tuple[Request, int] | None:
        """Who computes enough of what this request still lacks to be worth waiting for, and how
        many tokens the two share."""
        if not self._leaders:
            return None
        stem = self._stem(request)
        leaders = None if stem is None else self._leaders.get(stem)
        if not leaders:
            return None
        key = request.tokens[:-1].tobytes()
        best, most = None, cached_tokens + self._stem_tokens - 1
        for leader in leaders.values():
            if leader.lease is None or leader.lease.node.dead:
                continue  # what it computes was flushed, and nobody will find it
            theirs = leader.tokens.tobytes()
            if len(theirs) < self._page_bytes or len(key) < self._page_bytes:
                continue
            pages = common_pages(theirs, key, 0, self._page_bytes)
            shared = pages * self._page_bytes // TOKEN_BYTES
            if shared > most:
                best, most = leader, shared
        return None if best is None else (best, most)

    def _stem(self, request: Request) -> _Stem | None:
        if request.num_prompt < self._stem_tokens:
            return None
        return request.namespace, request.tokens[: self._stem_tokens].tobytes()
