"""Lanes of waiting requests, and three ways to find the best one.  Knows no tenants and no tree."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count

from scheduler_svc.core.request import Request
from scheduler_svc.core.waiting_order import Key, LaneKind, WaitingFacts, WaitingOrder

_SPARE_ENTRIES = 64
"""Outdated entries a heap may hold beyond as many as it has valid ones."""

PlaceKey = tuple[Key, Key, int]
"""Of the first place of a lane among those of all: rank of the lane, key, arrival."""

WalkKey = tuple[PlaceKey, Key, int]
"""Of any place: that of whoever it waits for in its lane, then its own key and arrival."""


class Place:
    """A fresh request and where it stands."""

    __slots__ = (
        "due",
        "is_new",
        "key",
        "lane",
        "num_shared",
        "request",
        "since",
        "stamp",
        "tenant",
    )

    def __init__(self, request: Request, due: int) -> None:
        self.request = request
        self.due = due
        """Admissions, counted from the start, from which on its being passed over is counted."""
        self.num_shared = 0
        """While it is held: tokens it shares with its leader."""
        self.is_new = False
        """Waits to be given a lane and a key."""
        self.tenant: str | None = None
        """The tenant whose share it counts for; None: one without."""
        self.lane: Lane | None = None
        """None: no candidate."""
        self.key: Key = ()
        self.stamp = 0
        """Number of its lane and key, unlike any other number; entries of heaps with an old one
        are outdated."""
        self.since = 0
        """The same for what holds as long as it is a candidate."""


class PlaceHeap:
    """A heap of places that is never searched: outdated entries go when they come up."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[tuple[Key, int, int, Place]] = []

    def push(self, key: Key, place: Place, stamp: int, num_valid: int) -> None:
        """Adds a place under one of its stamps, to a heap with `num_valid` places."""
        entries = self._entries
        if len(entries) > 2 * num_valid + _SPARE_ENTRIES:
            entries[:] = [
                entry for entry in entries if entry[2] in (entry[3].stamp, entry[3].since)
            ]
            heapify(entries)
        heappush(entries, (key, place.request.arrival, stamp, place))

    def head(self) -> Place | None:
        """The first one."""
        entries = self._entries
        while entries:
            _, _, stamp, place = entries[0]
            if stamp in (place.stamp, place.since):
                return place
            heappop(entries)
        return None

    def in_order(self) -> list[Place]:
        """All of them, for people."""
        valid = (entry for entry in self._entries if entry[2] in (entry[3].stamp, entry[3].since))
        return [entry[3] for entry in sorted(valid)]


class Lane:
    """Requests that stand by a key that time does not change."""

    __slots__ = ("heap", "lane_id", "queued", "size")

    def __init__(self, lane_id: Hashable) -> None:
        self.lane_id = lane_id
        self.heap = PlaceHeap()
        self.size = 0
        self.queued = 0
        """Number of its one valid entry among `GrowingLanes`."""

    def head(self) -> Place:
        """Its first place; it has one, or it would be gone."""
        place = self.heap.head()
        assert place is not None
        return place


class FewLanes:
    """Finds the best lane by looking at all."""

    def __init__(self, order: WaitingOrder) -> None:
        self._order = order
        self._lanes: dict[Hashable, Lane] = {}

    def enter(self, place: Place, lane_id: Hashable) -> None:
        """Puts a place, stamped and with its key, into a lane."""
        lane = self._lanes.get(lane_id)
        if lane is None:
            lane = self._lanes[lane_id] = Lane(lane_id)
        place.lane = lane
        lane.size += 1
        lane.heap.push(place.key, place, place.stamp, lane.size)

    def leave(self, place: Place) -> None:
        """Takes it out; its stamp is outdated already."""
        lane = place.lane
        assert lane is not None
        place.lane = None
        lane.size -= 1
        if not lane.size:
            del self._lanes[lane.lane_id]

    def best(self, facts: WaitingFacts) -> Lane | None:
        """The lane whose head is next."""
        if len(self._lanes) == 1:
            return next(iter(self._lanes.values()))
        rank, best, best_key = self._order.rank, None, None
        for lane in self._lanes.values():
            place = lane.head()
            key = place.key
            own = rank(lane.lane_id, key, lane.size, facts), key, place.request.arrival
            if best_key is None or own < best_key:
                best, best_key = lane, own
        return best

    def place_key(self, place: Place, facts: WaitingFacts) -> PlaceKey:
        """What a place is compared by as the head of its lane."""
        lane = place.lane
        assert lane is not None
        rank = self._order.rank(lane.lane_id, place.key, lane.size, facts)
        return rank, place.key, place.request.arrival

    def whole_order(self, facts: WaitingFacts) -> Callable[[Place], WalkKey]:
        """What all places sort by, for people: it looks at all of them.

        A place is next when all before it in its lane are gone, so it comes no earlier than the
        worst placed of them.
        """
        worst: dict[int, PlaceKey] = {}
        for lane in self._lanes.values():
            so_far: PlaceKey | None = None
            for place in lane.heap.in_order():
                own = self.place_key(place, facts)
                so_far = own if so_far is None else max(so_far, own)
                worst[place.stamp] = so_far
        return lambda place: (worst[place.stamp], place.key, place.request.arrival)


class GrowingLanes(FewLanes):
    """Any number of lanes whose ranks only grow: the first that still has its rank is best."""

    def __init__(self, order: WaitingOrder) -> None:
        super().__init__(order)
        self._queue: list[tuple[PlaceKey, int, Lane]] = []
        self._numbers = count(1)

    def enter(self, place: Place, lane_id: Hashable) -> None:
        """As above; a lane with a new head stands anew."""
        super().enter(place, lane_id)
        lane = place.lane
        assert lane is not None
        if lane.head() is place:
            # Its rank is found when it comes up: nothing is smaller than no rank.
            lane.queued = next(self._numbers)
            heappush(self._queue, (((), (), 0), lane.queued, lane))

    def best(self, facts: WaitingFacts) -> Lane | None:
        """The first lane that has the rank it is queued with."""
        queue = self._queue
        while queue:
            queued_key, number, lane = queue[0]
            if not lane.size or number != lane.queued:
                heappop(queue)
                continue
            key = self.place_key(lane.head(), facts)
            if key == queued_key:
                return lane
            lane.queued = next(self._numbers)
            heapreplace(queue, (key, lane.queued, lane))
        return None


class _Branch:
    """A tree node that waiting requests match, with what waits beneath it."""

    __slots__ = ("begun", "children", "heap", "lane", "serial", "weight")

    def __init__(self, serial: int) -> None:
        self.serial = serial
        self.weight = 0
        """Places in lanes of this branch and beneath."""
        self.lane: Lane | None = None
        """Of those that match no further."""
        self.children: dict[int, _Branch] = {}
        self.heap: list[tuple[int, int, int, _Branch]] = []
        """Children by weight, serial and number of the entry, outdated ones among them."""
        self.begun: _Branch | None = None
        """The child that is walked until nothing waits beneath it."""

    def begin(self) -> _Branch | None:
        """The child to walk now."""
        if self.begun is not None and self.begun.weight:
            return self.begun
        self.begun = None
        while self.heap:
            negated, _, _, child = self.heap[0]
            if child.weight and -negated == child.weight:
                self.begun = child
                return child
            heappop(self.heap)
        return None

    def in_order(self) -> list[_Branch]:
        """Its children, first to be walked first; begins none."""
        begun = self.begun if self.begun is not None and self.begun.weight else None
        return sorted(
            self.children.values(),
            key=lambda child: (child is not begun, -child.weight, child.serial),
        )


class BranchLanes(FewLanes):
    """Lanes that are paths of the tree: the heaviest branch first, depth first.

    A branch that was begun is finished first: its weight falls with every request that leaves,
    and two groups of one size would take turns and evict each other's prefix.
    """

    def __init__(self, order: WaitingOrder) -> None:
        super().__init__(order)
        self._root = _Branch(0)
        self._numbers = count()

    def enter(self, place: Place, lane_id: Hashable) -> None:
        """As above; `lane_id` is a tuple of node numbers."""
        super().enter(place, lane_id)
        self._weigh(lane_id, 1).lane = place.lane

    def leave(self, place: Place) -> None:
        """As above."""
        lane = place.lane
        assert lane is not None
        super().leave(place)
        self._weigh(lane.lane_id, -1).lane = lane if lane.size else None

    def best(self, facts: WaitingFacts) -> Lane | None:
        """Down the branches that are begun; lanes further down come before those above them."""
        branch = self._root
        while (child := branch.begin()) is not None:
            branch = child
        return branch.lane

    def whole_order(self, facts: WaitingFacts) -> Callable[[Place], WalkKey]:
        """By the place of the lane in the walk."""
        turns: dict[Hashable, int] = {}
        stack = [(self._root, False)]
        while stack:
            branch, was_entered = stack.pop()
            if was_entered:
                if branch.lane is not None:
                    turns[branch.lane.lane_id] = len(turns)
                continue
            stack.append((branch, True))
            stack += [(child, False) for child in reversed(branch.in_order())]

        def turn(place: Place) -> WalkKey:
            assert place.lane is not None
            return ((turns[place.lane.lane_id],), (), 0), place.key, place.request.arrival

        return turn

    def _weigh(self, lane_id: Hashable, change: int) -> _Branch:
        """Adds to the weight of every branch of a path; gives the last one."""
        assert isinstance(lane_id, tuple)
        branch = self._root
        for serial in lane_id:
            child = branch.children.get(serial)
            if child is None:
                child = branch.children[serial] = _Branch(serial)
            child.weight += change
            if not child.weight:
                del branch.children[serial]
            self._queue(branch, child)
            branch = child
        return branch

    def _queue(self, branch: _Branch, child: _Branch) -> None:
        heap = branch.heap
        if len(heap) > 2 * len(branch.children) + _SPARE_ENTRIES:
            heap[:] = [
                (-each.weight, each.serial, next(self._numbers), each)
                for each in branch.children.values()
            ]
            heapify(heap)
        if child.weight:
            heappush(heap, (-child.weight, child.serial, next(self._numbers), child))


def lanes_of(order: WaitingOrder) -> FewLanes:
    """Empty lanes of the kind an order wants."""
    kinds = {
        LaneKind.FEW: FewLanes,
        LaneKind.GROWING: GrowingLanes,
        LaneKind.BRANCHES: BranchLanes,
    }
    return kinds[order.lanes](order)
