"""The fresh requests that may be admitted now, by tenant and lane; finds the next one.

Costs the same at 10 and at 10 000 requests: what a change of the tree makes stale is put right a
little in every step, and once more before a request is named as the next.  Knows nothing of
twins, returned requests and preheats.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from itertools import count

from scheduler_svc.core.waiting_lanes import Place, PlaceHeap, PlaceKey, WalkKey, lanes_of
from scheduler_svc.core.waiting_order import Standing, WaitingFacts, WaitingOrder

REFRESH_PER_STEP = 16
"""Requests whose keys are formed anew in one step, in turn."""

NEW_PER_STEP = 64
"""Newcomers that get their first key in one step; the others stand behind them until then."""

_SPARE_NEW = 64
"""So many newcomers that left again may stay in the queue of them."""

CHECKS_PER_PICK = 8
"""Requests looked up in the tree before one is named as the next."""

PASSES_PER_WAITING = 2
"""The bound on passes grows by so much for each that waited when the request came.

A fixed number of admissions since its arrival would make every order first come, first served as
soon as more requests wait than that."""

_PickKey = tuple[Standing, PlaceKey]


class _Share:
    """Requests that count for one tenant's share, or all those that count for none."""

    def __init__(self, order: WaitingOrder, tenant: str | None) -> None:
        self.tenant = tenant
        self.lanes = lanes_of(order)
        self.by_arrival = PlaceHeap()
        self.by_due = PlaceHeap()
        self.size = 0

    def standing(self, facts: WaitingFacts) -> Standing:
        return Standing.ORDINARY if self.tenant is None else facts.standing(self.tenant)


class WaitingIndex:
    """Places of the fresh requests that are candidates."""

    def __init__(self, order: WaitingOrder) -> None:
        self.order = order
        self._shares: dict[str | None, _Share] = {}
        self._new: deque[Place] = deque()
        self._num_new = 0
        """Of these, places that were not removed meanwhile."""
        self._indexed: OrderedDict[int, Place] = OrderedDict()
        """By arrival; the first one is the next to be refreshed."""
        self._set_aside: dict[int, tuple[Place, Hashable]] = {}
        """By arrival: places with the lanes they were in."""
        self._checked: dict[int, None] = {}
        """Arrivals of those whose keys were formed in this step."""
        self._next_stamp = count(1).__next__

    # --- coming and going ---------------------------------------------------------------------

    def add(self, place: Place) -> None:
        """A newcomer."""
        place.is_new = True
        self._num_new += 1
        self._new.append(place)

    def add_back(self, place: Place) -> None:
        """One that was taken out; it is older than the newcomers."""
        place.is_new = True
        self._num_new += 1
        self._new.appendleft(place)

    def remove(self, place: Place) -> None:
        """Takes one out, wherever it stands."""
        if place.is_new:
            place.is_new = False
            self._num_new -= 1
            if len(self._new) > 2 * self._num_new + _SPARE_NEW:
                # Nobody is taken in while the worker is away, and clients come and go.
                self._new = deque(dict.fromkeys(each for each in self._new if each.is_new))
        arrival = place.request.arrival
        if place.lane is not None:
            self._leave(place)
            del self._indexed[arrival]
        elif arrival in self._set_aside:
            del self._set_aside[arrival]

    def set_aside(self, place: Place) -> None:
        """It is no candidate until the next `tend`."""
        lane, arrival = place.lane, place.request.arrival
        assert lane is not None
        self._leave(place)
        del self._indexed[arrival]
        self._set_aside[arrival] = place, lane.lane_id

    def restore(self) -> None:
        """Those set aside are candidates again, where they stood."""
        for arrival, (place, lane_id) in self._set_aside.items():
            self._indexed[arrival] = place
            self._enter(place, lane_id)
        self._set_aside.clear()

    def tend(self, facts: WaitingFacts) -> None:
        """Does the step's share of the work that keeps the order right."""
        self._checked.clear()
        self.restore()
        self.take_in(facts)
        if not self.order.needs_refresh or self.order.goes_by_arrival(facts):
            return
        for _ in range(min(REFRESH_PER_STEP, len(self._indexed))):
            arrival, place = next(iter(self._indexed.items()))
            self._indexed.move_to_end(arrival)
            if arrival not in self._checked:
                self._form_key(place, facts)

    def take_in(self, facts: WaitingFacts) -> None:
        """Gives newcomers their places, as many as a step may cost."""
        self._take_in(facts, NEW_PER_STEP if self.order.needs_refresh else len(self._new))

    # --- the next one -------------------------------------------------------------------------

    def best(self, facts: WaitingFacts) -> Place | None:
        """The request to admit next, or None when there is no candidate."""
        while True:
            place = self._overdue(facts) or self._first(facts)
            if place is not None or not self._new:
                return place
            self._take_in(facts, NEW_PER_STEP)

    def _overdue(self, facts: WaitingFacts) -> Place | None:
        """Whoever was passed over too often."""
        if not self.order.bounds_passes:
            return None
        found = []
        for share in self._shares.values():
            place = share.by_due.head()
            if place is None or not _is_overdue(place, facts):
                continue
            if share.standing(facts) is not Standing.CAPPED:
                found.append(place)
        return min(found, key=_due_key, default=None)

    def _first(self, facts: WaitingFacts) -> Place | None:
        """The first by the order; bounded work, however much is stale."""
        in_order = not self.order.goes_by_arrival(facts)
        num_checks = 0
        while True:
            place = self._head(facts, in_order)
            if place is None or not in_order or not self.order.needs_refresh:
                return place
            if place.request.arrival in self._checked or num_checks == CHECKS_PER_PICK:
                return place
            num_checks += 1
            if not self._form_key(place, facts):
                return place

    def _head(self, facts: WaitingFacts, in_order: bool) -> Place | None:
        """The first by lanes and keys as they stand."""
        if len(self._shares) == 1 and None in self._shares:
            return self._head_of(self._shares[None], facts, in_order)
        best: tuple[_PickKey, Place] | None = None
        for share in self._shares.values():
            standing = share.standing(facts)
            if standing is Standing.CAPPED or (best is not None and standing > best[0][0]):
                continue
            place = self._head_of(share, facts, in_order)
            if place is None:
                continue
            arrival = place.request.arrival
            key = share.lanes.place_key(place, facts) if in_order else ((), (), arrival)
            if best is None or (standing, key) < best[0]:
                best = (standing, key), place
        return best[1] if best is not None else None

    def _head_of(self, share: _Share, facts: WaitingFacts, in_order: bool) -> Place | None:
        if not in_order:
            return share.by_arrival.head()
        lane = share.lanes.best(facts)
        return lane.head() if lane is not None else None

    # --- places -------------------------------------------------------------------------------

    def _take_in(self, facts: WaitingFacts, limit: int) -> None:
        """Gives at most `limit` newcomers their places, oldest first."""
        while self._new and limit > 0:
            place = self._new.popleft()
            if not place.is_new:
                continue
            limit -= 1
            place.is_new = False
            self._num_new -= 1
            tenant = place.request.submission.tenant
            place.tenant = tenant if tenant in facts.config.tenants else None
            self._indexed[place.request.arrival] = place
            self._form_key(place, facts)

    def _form_key(self, place: Place, facts: WaitingFacts) -> bool:
        """Looks again at what a place goes by; True when it stands elsewhere now."""
        request = place.request
        self._checked[request.arrival] = None
        lane_id, key = self.order.lane(request, facts), self.order.key(request, facts)
        if place.lane is not None:
            if place.key == key and place.lane.lane_id == lane_id:
                return False
            place.key = key
            self._move(place, lane_id)
            return True
        place.key = key
        self._enter(place, lane_id)
        return True

    def _move(self, place: Place, lane_id: Hashable) -> None:
        lanes = self._shares[place.tenant].lanes
        lanes.leave(place)
        place.stamp = self._next_stamp()
        lanes.enter(place, lane_id)

    def _enter(self, place: Place, lane_id: Hashable) -> None:
        share = self._shares.get(place.tenant)
        if share is None:
            share = self._shares[place.tenant] = _Share(self.order, place.tenant)
        place.stamp, place.since = self._next_stamp(), self._next_stamp()
        share.size += 1
        share.lanes.enter(place, lane_id)
        share.by_arrival.push((), place, place.since, share.size)
        share.by_due.push((place.due,), place, place.since, share.size)

    def _leave(self, place: Place) -> None:
        share = self._shares[place.tenant]
        place.stamp = place.since = 0
        share.lanes.leave(place)
        share.size -= 1

    # --- for people ---------------------------------------------------------------------------

    def sort_key(self, facts: WaitingFacts) -> Callable[[Place], tuple[int, WalkKey]]:
        """What all places sort by now, from the keys as they stand."""
        self.restore()
        by_arrival = self.order.goes_by_arrival(facts)
        standings = {tenant: share.standing(facts) for tenant, share in self._shares.items()}
        orders = {tenant: share.lanes.whole_order(facts) for tenant, share in self._shares.items()}

        def sort_key(place: Place) -> tuple[int, WalkKey]:
            arrived: WalkKey = (((), (), place.request.arrival), (), 0)
            if place.lane is None:  # held, or not looked at yet
                return _LAST, arrived
            standing = standings[place.tenant]
            if standing is not Standing.CAPPED:
                if self.order.bounds_passes and _is_overdue(place, facts):
                    return _OVERDUE, (_due_key(place), (), 0)
                if not by_arrival:
                    return standing, orders[place.tenant](place)
            return standing, arrived

        return sort_key


_OVERDUE = -1
_LAST = 1 + max(Standing)


def _due_key(place: Place) -> PlaceKey:
    return (place.due,), (), place.request.arrival


def _is_overdue(place: Place, facts: WaitingFacts) -> bool:
    num_admitted = place.request.num_admitted_before + facts.num_passes(place.request)
    return num_admitted - place.due >= facts.config.most_passes
