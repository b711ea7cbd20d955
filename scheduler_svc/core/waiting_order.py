"""Orders the fresh requests that wait: who is better placed, and why.  Keeps no queue.

An order sorts requests into *lanes*.  Within a lane they stand by a key that does not change with
time, and the heads of the lanes are compared by a rank that may.  So one pick costs what the
number of lanes costs, not the number of requests.  The docstring of each class is what GetPolicy
shows to operators.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from enum import Enum, IntEnum
from typing import ClassVar, Protocol

from scheduler_svc.core.request import Request
from scheduler_svc.core.splitmix import MASK, draw_lot

Key = tuple[float, ...]
"""Smaller goes first."""

MOST_EXPECTED_OUTPUTS = 1024
"""Of `hrrn`: who names no `max_tokens` asks for the model's length and rarely uses it."""


class Standing(IntEnum):
    """Where a tenant stands with what it holds now."""

    ENTITLED = 0
    """Below its guaranteed share: goes before the others."""
    ORDINARY = 1
    CAPPED = 2
    """May hold no more now: is no candidate."""


class OrderConfig(Protocol):
    """The knobs that orders read."""

    @property
    def weight_prefix(self) -> float:
        """Worth of a cached token."""
        ...

    @property
    def weight_age(self) -> float:
        """Worth of a second of waiting."""
        ...

    @property
    def weight_cost(self) -> float:
        """Price of a token to compute."""
        ...

    @property
    def policy_seed(self) -> int:
        """Of `random`."""
        ...

    @property
    def most_passes(self) -> int:
        """Admissions a request may be passed over by when nobody waited before it."""
        ...

    @property
    def tenants(self) -> Mapping[str, object]:
        """By name: those with a share of their own."""
        ...


class WaitingFacts(Protocol):
    """What an order may know of a waiting request besides itself."""

    @property
    def now_ns(self) -> int:
        """The clock of this step."""
        ...

    @property
    def config(self) -> OrderConfig:
        """The knobs in force."""
        ...

    @property
    def everything_fits(self) -> bool:
        """Whether all that waits could be admitted at once."""
        ...

    def cached_tokens(self, request: Request) -> int:
        """How long a prefix of it the tree holds now."""
        ...

    def match_path(self, request: Request) -> tuple[int, ...]:
        """Serial numbers of the tree nodes it matches, from the root's child down; () when cold."""
        ...

    def num_passes(self, request: Request) -> int:
        """Requests admitted since it arrived."""
        ...

    def standing(self, tenant: str) -> Standing:
        """Asked only of tenants that the configuration names."""
        ...

    def is_entitled(self, request: Request) -> bool:
        """Whether its tenant is guaranteed the room it needs now."""
        ...

    def take_as_ordinary(self, tenant: str) -> None:
        """Its next request is larger than what is guaranteed: in this step it is not entitled."""
        ...

    def tenant_service(self, tenant: str) -> float:
        """Uncached tokens it was served, divided by its weight; admissions count at once."""
        ...


class LaneKind(Enum):
    """How the best lane is found."""

    FEW = 1
    """By looking at all of them: at most some dozens; ranks change as they like."""
    GROWING = 2
    """Any number, whose ranks only grow while their head stays."""
    BRANCHES = 3
    """Any number; a lane is a path in the tree, and the heaviest branch is walked depth first."""


class WaitingOrder:
    """What all orders share; one lane, first come, first served."""

    is_fair: ClassVar[bool] = True
    """Claims that nobody starves."""
    bounds_passes: ClassVar[bool] = True
    """The queue's bound on passes holds."""
    needs_refresh: ClassVar[bool] = False
    """Lanes or keys depend on the tree, so they go stale when it changes."""
    lanes: ClassVar[LaneKind] = LaneKind.FEW

    def goes_by_arrival(self, facts: WaitingFacts) -> bool:
        """Whether the oldest is next, whatever the lanes say."""
        return False

    def lane(self, request: Request, facts: WaitingFacts) -> Hashable:
        """The lane it stands in."""
        return ()

    def key(self, request: Request, facts: WaitingFacts) -> Key:
        """Its place within the lane; arrival breaks ties."""
        return ()

    def rank(self, lane: Hashable, key: Key, size: int, facts: WaitingFacts) -> Key:
        """The place among lanes of one that holds `size` requests, the first of them with `key`."""
        return ()

    def terms(self, request: Request, facts: WaitingFacts) -> dict[str, float]:
        """What it goes by, named, for whoever asks why."""
        return {"age_s": age_s(request, facts)}


def age_s(request: Request, facts: WaitingFacts) -> float:
    """Seconds since it was submitted."""
    return (facts.now_ns - request.submitted_ns) / 1e9


class Adaptive(WaitingOrder):
    """While everything that waits fits, first come, first served; otherwise by a score of shared
    prefix, age and uncached cost: weight_prefix * cached tokens + weight_age * seconds waited
    - weight_cost * tokens to compute, highest first.  Cheap and warm requests go ahead under
    pressure and age lifts the others past them.  The default; suits mixed traffic."""

    needs_refresh = True

    def goes_by_arrival(self, facts: WaitingFacts) -> bool:
        """While there is room for all, nobody need be passed over."""
        return facts.everything_fits

    def key(self, request: Request, facts: WaitingFacts) -> Key:
        """The negated score at time zero: age grows alike for all, so the order stays."""
        config, cached = facts.config, facts.cached_tokens(request)
        uncached = request.num_tokens - cached
        born = config.weight_age * request.submitted_ns / 1e9
        return (born - config.weight_prefix * cached + config.weight_cost * uncached,)

    def terms(self, request: Request, facts: WaitingFacts) -> dict[str, float]:
        """The score and what it is made of."""
        config, cached = facts.config, facts.cached_tokens(request)
        age, uncached = age_s(request, facts), request.num_tokens - cached
        score = config.weight_prefix * cached + config.weight_age * age
        return {
            "score": score - config.weight_cost * uncached,
            "cached_tokens": cached,
            "age_s": age,
            "uncached_tokens": uncached,
        }


class FirstCome(WaitingOrder):
    """First come, first served.  Predictable and fair by the clock, blind to what is cached and
    to what a request costs.  Suits traffic without shared prefixes, and comparisons."""

    def terms(self, request: Request, facts: WaitingFacts) -> dict[str, float]:
        """Arrival alone."""
        return {"arrival": request.arrival}


class LongestPrefix(WaitingOrder):
    """Longest cached prefix first; among equals, first come, first served.  Computes least, as
    whoever shares what is in memory uses it before it is evicted; cold requests wait up to the
    bound on passes.  Suits a few hot prompts under load that tolerates uneven waits."""

    needs_refresh = True

    def key(self, request: Request, facts: WaitingFacts) -> Key:
        """Most cached tokens first."""
        return (-facts.cached_tokens(request),)

    def terms(self, request: Request, facts: WaitingFacts) -> dict[str, float]:
        """The cached prefix."""
        return {"cached_tokens": facts.cached_tokens(request)}


class ResponseRatio(WaitingOrder):
    """Highest response ratio next: (time waited + time it needs) / time it needs, where the need
    is its uncached prompt plus the outputs it may ask for, in tokens.  Short requests go first,
    and long ones gain as they wait, in proportion to their length.  Suits mixed lengths where
    waiting should be in keeping with what one asks for."""

    needs_refresh = True

    def lane(self, request: Request, facts: WaitingFacts) -> Hashable:
        """The quarter of an octave its need lies in: few lanes, whose members differ little."""
        need = _need(request, facts)
        octave = need.bit_length() - 1
        return 4 * octave + ((need << 2 >> octave) & 3)

    def key(self, request: Request, facts: WaitingFacts) -> Key:
        """Among about equal needs the oldest goes first; the need is kept for the rank."""
        return request.submitted_ns, _need(request, facts)

    def rank(self, lane: Hashable, key: Key, size: int, facts: WaitingFacts) -> Key:
        """The exact ratio at this moment."""
        submitted_ns, need = key
        return (-_ratio(facts.now_ns - submitted_ns, need),)

    def terms(self, request: Request, facts: WaitingFacts) -> dict[str, float]:
        """The ratio and what it is made of."""
        age_ns, need = facts.now_ns - request.submitted_ns, _need(request, facts)
        return {
            "response_ratio": _ratio(age_ns, need),
            "age_s": age_ns / 1e9,
            "needed_tokens": need,
        }


def _need(request: Request, facts: WaitingFacts) -> int:
    """Tokens to compute and to generate."""
    outputs = min(request.num_left, MOST_EXPECTED_OUTPUTS)
    return max(1, request.num_tokens - facts.cached_tokens(request) + outputs)


def _ratio(age_ns: float, need: float) -> float:
    # A millisecond a token: the order is the same at any speed, and the figure is a ratio.
    return 1.0 + age_ns / (need * 1e6)


class BranchWeight(WaitingOrder):
    """Requests that share a branch of the tree run together, the branch with most waiting requests
    first, walked depth first and finished before the next is begun.  A prefix is then used by all
    who need it while it is in memory, even when its users arrive scattered.  Suits many groups of
    requests over deep shared prefixes, such as trees of thought and batch evaluation."""

    needs_refresh = True
    lanes = LaneKind.BRANCHES

    def lane(self, request: Request, facts: WaitingFacts) -> Hashable:
        """The path it matches."""
        return facts.match_path(request)

    def rank(self, lane: Hashable, key: Key, size: int, facts: WaitingFacts) -> Key:
        """Between the trees of tenants; within one the branches decide."""
        return (-size,)

    def terms(self, request: Request, facts: WaitingFacts) -> dict[str, float]:
        """How deep its branch is, and what it shares."""
        depth = len(facts.match_path(request))
        return {"branch_depth": depth, "cached_tokens": facts.cached_tokens(request)}


class LongestOutput(WaitingOrder):
    """Longest output first, by max_tokens.  The long ones start early and the short ones fill the
    gaps at the end, which shortens the whole of a finite batch; short ones may starve while long
    ones keep coming.  Suits offline batches, not people."""

    is_fair = False
    bounds_passes = False

    def key(self, request: Request, facts: WaitingFacts) -> Key:
        """Most outputs first."""
        return (-request.submission.max_tokens,)

    def terms(self, request: Request, facts: WaitingFacts) -> dict[str, float]:
        """The wish."""
        return {"max_tokens": request.submission.max_tokens}


class Priority(WaitingOrder):
    """Higher priority first, as the request names it; among equals, first come, first served.  Low
    priorities wait as long as higher ones keep coming, on purpose.  Suits callers that may be
    trusted to rank their own work, such as interactive before background."""

    is_fair = False
    bounds_passes = False

    def key(self, request: Request, facts: WaitingFacts) -> Key:
        """Highest first."""
        return (-request.submission.priority,)

    def terms(self, request: Request, facts: WaitingFacts) -> dict[str, float]:
        """The rank its caller gave it."""
        return {"priority": request.submission.priority}


class Random(WaitingOrder):
    """By lot: a pure function of policy_seed and arrival, so a replay draws the same lots.  Treats
    all alike on average, whatever they ask for and however they arrive.  Suits measuring what the
    other orders are worth."""

    def key(self, request: Request, facts: WaitingFacts) -> Key:
        """Its lot."""
        return (draw_lot(facts.config.policy_seed, request.arrival),)

    def terms(self, request: Request, facts: WaitingFacts) -> dict[str, float]:
        """Its lot, in 0..1."""
        return {"lot": draw_lot(facts.config.policy_seed, request.arrival) / MASK}


class TenantTokens(WaitingOrder):
    """The tenant that was served fewest tokens for its weight goes first, within a tenant first
    come, first served (Sheng et al. 2024, Fairness in Serving Large Language Models).  Cached
    tokens are free, so sharing pays for whoever shares, and a flood of one tenant delays only
    itself.  Suits several tenants on one server."""

    # A tenant that floods is passed over by the others, which is the point; nobody starves, as
    # the least served tenant is always next and its oldest request with it.
    bounds_passes = False
    lanes = LaneKind.GROWING

    def lane(self, request: Request, facts: WaitingFacts) -> Hashable:
        """One a tenant."""
        return request.submission.tenant

    def rank(self, lane: Hashable, key: Key, size: int, facts: WaitingFacts) -> Key:
        """Least service first."""
        assert isinstance(lane, str)
        return (facts.tenant_service(lane),)

    def terms(self, request: Request, facts: WaitingFacts) -> dict[str, float]:
        """What its tenant was served."""
        return {"tenant_service": facts.tenant_service(request.submission.tenant)}


WAITING_ORDERS: dict[str, WaitingOrder] = {
    "adaptive": Adaptive(),
    "fcfs": FirstCome(),
    "lpm": LongestPrefix(),
    "hrrn": ResponseRatio(),
    "dfs_weight": BranchWeight(),
    "lof": LongestOutput(),
    "priority": Priority(),
    "random": Random(),
    "vtc": TenantTokens(),
}
"""By the name of the policy; none keeps state."""
