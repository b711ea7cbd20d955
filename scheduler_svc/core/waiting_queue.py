"""Who waits: cut-back requests first, then fresh ones by policy, then preheats.

Knows order; knows neither slots nor the tree.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import NamedTuple

from scheduler_svc.core.request import Request
from scheduler_svc.core.waiting_index import PASSES_PER_WAITING, WaitingIndex
from scheduler_svc.core.waiting_lanes import Place
from scheduler_svc.core.waiting_order import Standing, WaitingFacts, WaitingOrder


class WaitingCounts(NamedTuple):
    """Every waiting request once."""

    returned: int
    """Cut back; they come before all others."""
    fresh: int
    """May be admitted when there is room."""
    held: int
    """Wait for a running request to compute the prefix they share."""
    preheats: int
    capped: int
    """Of any kind but held: their tenant may hold no more now."""


class _Tally:
    """What waits of one tenant."""

    __slots__ = ("fresh", "held", "preheats", "returned")

    def __init__(self) -> None:
        self.returned = self.fresh = self.held = self.preheats = 0

    @property
    def num(self) -> int:
        """All of it; `fresh` counts held ones as well."""
        return self.returned + self.fresh + self.preheats


class WaitingQueue:
    """Requests in state WAITING."""

    def __init__(self, order: WaitingOrder) -> None:
        self._index = WaitingIndex(order)
        self._returned: list[Request] = []
        self._fresh: dict[str, Place] = {}
        self._preheats: dict[str, Request] = {}
        self._held: dict[str, dict[str, Place]] = {}
        """By the leader's id: those that wait for its prefix."""
        self._leaders: dict[str, str] = {}
        """Id of a held request to its leader's."""
        self._tallies: dict[str, _Tally] = {}
        """By tenant, while something of it waits."""

    def __len__(self) -> int:
        return len(self._returned) + len(self._fresh) + len(self._preheats)

    @property
    def num_fresh(self) -> int:
        """Requests that count against the limit of the queue, held ones among them."""
        return len(self._fresh)

    @property
    def num_preheats(self) -> int:
        """Preheats that count against theirs."""
        return len(self._preheats)

    @property
    def num_candidates(self) -> int:
        """Requests that wait for nothing but room, capped ones among them; no preheats."""
        return len(self._returned) + len(self._fresh) - len(self._leaders)

    def num_waiting_of(self, tenant: str) -> int:
        """All that waits of a tenant."""
        tally = self._tallies.get(tenant)
        return tally.num if tally is not None else 0

    def waiting_tenants(self) -> list[str]:
        """Tenants of whom something waits, in the order in which they came."""
        return list(self._tallies)

    def is_returning(self, request: Request) -> bool:
        """Whether it ran before, and waits ahead of all fresh ones."""
        return request in self._returned

    def leader_of(self, request: Request) -> str | None:
        """Id of the running request whose prefix it waits for."""
        return self._leaders.get(request.request_id)

    def requests(self) -> list[Request]:
        """All that wait."""
        fresh = (place.request for place in self._fresh.values())
        return [*self._returned, *fresh, *self._preheats.values()]

    def shorter_prompts(self, num_tokens: int, most: int) -> Iterator[Request]:
        """Those of less than `num_tokens` tokens among the `most` oldest that wait, without
        preheats and without twins, which wait for others."""
        fresh = (place.request for place in self._fresh.values())
        for request in islice(chain(self._returned, fresh), most):
            if request.num_tokens < num_tokens and request.request_id not in self._leaders:
                yield request

    def counts(self, facts: WaitingFacts) -> WaitingCounts:
        """How many wait and as what; costs what the number of configured tenants costs."""
        returned, preheats, capped = len(self._returned), len(self._preheats), 0
        fresh, held = len(self._fresh) - len(self._leaders), len(self._leaders)
        for tenant in facts.config.tenants:
            tally = self._tallies.get(tenant)
            if tally is not None and facts.standing(tenant) is Standing.CAPPED:
                returned -= tally.returned
                preheats -= tally.preheats
                fresh -= tally.fresh - tally.held
                capped += tally.num - tally.held
        return WaitingCounts(returned, fresh, held, preheats, capped)

    # --- coming and going ---------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """A new request."""
        tally = self._tally(request)
        if request.submission.preheat:
            tally.preheats += 1
            self._preheats[request.request_id] = request
            return
        tally.fresh += 1
        due = request.num_admitted_before + PASSES_PER_WAITING * len(self._fresh)
        place = Place(request, due)
        self._fresh[request.request_id] = place
        self._index.add(place)

    def add_returning(self, returning: Iterable[Request]) -> None:
        """Requests that ran before: ahead of all fresh ones, among themselves by arrival."""
        for request in returning:
            if request.submission.preheat:
                self.add(request)
            else:
                self._tally(request).returned += 1
                insort(self._returned, request, key=lambda returned: returned.arrival)

    def remove(self, request: Request) -> None:
        """It was admitted, or it ended."""
        request_id, tally = request.request_id, self._tally(request)
        place = self._fresh.get(request_id)
        if place is not None and place.request is request:
            self._let_go(place)
            self._index.remove(place)
            del self._fresh[request_id]
            tally.fresh -= 1
        elif self._preheats.get(request_id) is request:
            del self._preheats[request_id]
            tally.preheats -= 1
        else:
            self._returned.remove(request)
            tally.returned -= 1
        if not tally.num:
            del self._tallies[request.submission.tenant]

    def hold(self, request: Request, leader_id: str, num_shared: int = 0) -> None:
        """A fresh request is no candidate until its leader's are released."""
        place = self._fresh[request.request_id]
        place.num_shared = num_shared
        self._let_go(place)
        self._index.remove(place)
        self._held.setdefault(leader_id, {})[request.request_id] = place
        self._leaders[request.request_id] = leader_id
        self._tallies[request.submission.tenant].held += 1

    def release_held(self, leader_id: str, num_computed: int | None = None) -> None:
        """Its leader has computed what they share, or never will (None): they are candidates again.

        Those that share more than `num_computed` tokens go on waiting.
        """
        held = list(self._held.get(leader_id, {}).values())
        if num_computed is not None:
            held = [place for place in held if place.num_shared <= num_computed]
        # By arrival, as each goes before those that were put back earlier.
        for place in sorted(held, key=lambda place: place.request.arrival, reverse=True):
            self._let_go(place)
            self._index.add_back(place)

    def set_order(self, order: WaitingOrder, facts: WaitingFacts) -> None:
        """Orders all anew: another order, or the weights or the seed of this one have changed."""
        self._index = WaitingIndex(order)
        for place in self._fresh.values():
            place.lane = None
            if place.request.request_id not in self._leaders:
                self._index.add(place)
        self._index.tend(facts)

    def _let_go(self, place: Place) -> None:
        """It waits for nobody."""
        request_id = place.request.request_id
        leader_id = self._leaders.pop(request_id, None)
        if leader_id is None:
            return
        followers = self._held[leader_id]
        del followers[request_id]
        if not followers:
            del self._held[leader_id]
        self._tallies[place.request.submission.tenant].held -= 1

    def _tally(self, request: Request) -> _Tally:
        tenant = request.submission.tenant
        tally = self._tallies.get(tenant)
        if tally is None:
            tally = self._tallies[tenant] = _Tally()
        return tally

    # --- the next one -------------------------------------------------------------------------

    def take_in(self, facts: WaitingFacts) -> None:
        """Sorts newcomers in; for steps in which nobody asks for candidates, so that they do not
        pile up.  Costs nothing when there are none."""
        self._index.take_in(facts)

    def candidates(self, facts: WaitingFacts) -> Iterator[Request]:
        """Waiting requests in the order in which they are to be admitted, found one by one.

        Between two of them the caller may remove or hold the one it got; one that still waits
        when the next is asked for comes up again with the next call only.  Preheats come up only
        when nobody else is a candidate.
        """
        self._index.tend(facts)
        has_others = False
        for request in list(self._returned):
            if not _is_capped(request, facts):
                has_others = True
                yield request
        while (place := self._index.best(facts)) is not None:
            has_others = True
            yield place.request
            if place.lane is not None:
                self._index.set_aside(place)
        if has_others:
            return
        for request in list(self._preheats.values()):
            if not _is_capped(request, facts):
                yield request

    def entitled(self, facts: WaitingFacts) -> Iterator[Request]:
        """Candidates whose tenants are guaranteed the room they need, as long as such come next;
        to be asked for before all others, or whoever is cut back for them takes their room."""
        self._index.tend(facts)
        for request in list(self._returned):
            if not _is_capped(request, facts) and facts.is_entitled(request):
                yield request
        while (place := self._index.best(facts)) is not None:
            tenant = place.request.submission.tenant
            if tenant not in facts.config.tenants:
                return
            if facts.standing(tenant) is not Standing.ENTITLED:
                return
            if not facts.is_entitled(place.request):
                facts.take_as_ordinary(tenant)  # or its large request hides another's small one
                continue
            yield place.request
            if place.lane is not None:
                self._index.set_aside(place)

    def first(self, facts: WaitingFacts) -> Request | None:
        """Who comes first by the keys as they stand; for people: it looks at all that wait once."""
        if self._returned:
            return self._returned[0]
        if self._fresh:
            return min(self._fresh.values(), key=self._index.sort_key(facts)).request
        return next(iter(self._preheats.values()), None)

    def unpreheated(self) -> Iterator[Request]:
        """All that wait but preheats."""
        yield from self._returned
        for place in self._fresh.values():
            yield place.request

    @property
    def num_tenants(self) -> int:
        """Tenants of whom something waits."""
        return len(self._tallies)

    def rank(self, request: Request, facts: WaitingFacts) -> int:
        """Its place in the queue, 1 is next; for people: it looks at all that wait.

        Held and capped requests count behind those that may be admitted; keys are taken as they
        stand, which may be some steps old.
        """
        if request in self._returned:
            return 1 + self._returned.index(request)
        place = self._fresh.get(request.request_id)
        if place is None:
            ids = list(self._preheats)
            return 1 + len(self._returned) + len(self._fresh) + ids.index(request.request_id)
        sort_key = self._index.sort_key(facts)
        own = sort_key(place)
        before = sum(sort_key(other) < own for other in self._fresh.values())
        return 1 + len(self._returned) + before


def _is_capped(request: Request, facts: WaitingFacts) -> bool:
    tenant = request.submission.tenant
    return tenant in facts.config.tenants and facts.standing(tenant) is Standing.CAPPED
