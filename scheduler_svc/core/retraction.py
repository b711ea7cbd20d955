"""Chooses whom to cut back when the pool is full.  Sees requests; frees nothing itself.

A policy is one function from a running request to its score: the smallest goes first.  Every
score begins with the same two elements, whatever the policy: preheats go before everybody, and
who was cut back `MOST_RETRACTIONS` times goes after everybody, so that repeats are bounded.  It
ends with the arrival, which no two requests share, so that no two requests tie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Protocol

from scheduler_svc.core.request import Request
from scheduler_svc.core.splitmix import splitmix64

MOST_RETRACTIONS = 8
"""Cut back so often, a request goes after all others; it is chosen only where no other exists."""

MOST_TOKENS_SAVED = 1024
"""Of `cost`: slots that a victim would still have taken are counted up to here, because whoever
names no max_tokens would hardly use the model's length."""

Score = tuple[float, ...]


class VictimFacts(Protocol):
    """What a policy may know of a running request besides itself."""

    @property
    def now_ns(self) -> int:
        """The clock of the deadlines."""
        ...

    @property
    def step_id(self) -> int:
        """The step that is being planned."""
        ...

    @property
    def seed(self) -> int:
        """Of `random`."""
        ...

    def tokens_to_lose(self, request: Request) -> int:
        """Computed tokens in slots that it alone holds: what cutting it back frees."""
        ...

    def tenant_excess(self, tenant: str) -> float:
        """How far a tenant is over its share of the pool; negative below it."""
        ...

    def time_to_finish_ns(self, request: Request) -> int:
        """How long it would still run."""
        ...


RetractionPolicy = Callable[[Request, VictimFacts], Score]


def fifo(request: Request, facts: VictimFacts) -> Score:
    """The oldest arrival goes first.  It has usually generated most, so this recomputes much;
    suits pools where old requests are abandoned ones and a fresh answer matters more than a
    finished one."""
    return (*_turn(request), request.arrival)


def lifo(request: Request, facts: VictimFacts) -> Score:
    """The newest arrival goes first, as in most engines.  Strictly fair to whoever came earlier,
    and blind to what a victim costs: a new request with a long prompt of its own is computed
    again and again.  Suits short prompts, and comparisons with other engines."""
    return (*_turn(request), -request.arrival)


def lru(request: Request, facts: VictimFacts) -> Score:
    """Whose cache was extended longest ago goes first; among equals, who was admitted first.
    Streams that decode are all extended in every step, so this takes prompts that are stuck
    part-way.  Suits long prompts that compete with streams for a small budget of prefill."""
    return (*_turn(request), request.last_step_id, request.admitted_tick, request.arrival)


def progress(request: Request, facts: VictimFacts) -> Score:
    """Whoever has generated least goes first; among equals the newest.  The request that is
    furthest along is never chosen while another runs, so one request always reaches its end, and
    with it all of them do.  The default: suits chats, where answers have similar lengths and
    nobody likes a stream to stop halfway."""
    return (*_turn(request), _num_generated(request), -request.arrival)


def random(request: Request, facts: VictimFacts) -> Score:
    """Every running request is as likely as any other, drawn anew in each step from
    `policy_seed`.  No pattern of requests can be built that always spares or always hits the
    same client; suits experiments, as the line every other policy has to beat."""
    mixed = splitmix64(request.arrival)
    mixed = splitmix64(mixed ^ facts.step_id)
    mixed = splitmix64(mixed ^ facts.seed)
    return (*_turn(request), mixed >> 11, -request.arrival)  # 53 bits: what a double holds


def priority(request: Request, facts: VictimFacts) -> Score:
    """The lowest `priority` of the request goes first; among equals the newest.  Suits a pool
    that paying or interactive requests share with batch jobs; a low priority may then wait for
    as long as higher ones keep coming, up to the bound on repeats."""
    return (*_turn(request), request.submission.priority, -request.arrival)


def cost(request: Request, facts: VictimFacts) -> Score:
    """Fewest recomputed tokens per slot freed go first.  To be computed again is what the victim
    alone holds; freed are those slots, and the slots it would still have taken, up to 1024 of
    them; the score is one divided by the other.  So it takes requests near their beginning that
    live on a shared prefix, and spares those that hold much and are nearly done.  Suits mixed
    lengths and shared prefixes; lowest recompute tax."""
    lost = facts.tokens_to_lose(request)
    freed = lost + min(request.num_left, MOST_TOKENS_SAVED)
    return (*_turn(request), lost / freed if freed > 0 else inf, -request.arrival)


def tenant(request: Request, facts: VictimFacts) -> Score:
    """Requests of the tenant that is furthest over its share go first; within a tenant, whoever
    has generated least, then the newest.  Suits several tenants on one pool: who fills it pays
    for it.  With one tenant it is the same as `progress`."""
    excess = facts.tenant_excess(request.submission.tenant)
    return (*_turn(request), -excess, _num_generated(request), -request.arrival)


def deadline(request: Request, facts: VictimFacts) -> Score:
    """Most slack goes first: the time to the deadline less the time the request still needs.
    One without a deadline has all the time there is; among equals the newest.  Suits clients
    that send deadlines they mean."""
    end_ns = request.submission.deadline_ns
    slack_ns = inf
    if end_ns is not None:
        slack_ns = end_ns - facts.now_ns - facts.time_to_finish_ns(request)
    return (*_turn(request), -slack_ns, -request.arrival)


RETRACTION_POLICIES: dict[str, RetractionPolicy] = {
    "fifo": fifo,
    "lifo": lifo,
    "lru": lru,
    "progress": progress,
    "random": random,
    "priority": priority,
    "cost": cost,
    "tenant": tenant,
    "deadline": deadline,
}


def choose_victim(
    policy: RetractionPolicy, running: Iterable[Request], facts: VictimFacts
) -> Request:
    """Who of those that run, at least one, is cut back first."""
    return min(running, key=lambda request: policy(request, facts))


def victims_in_order(
    policy: RetractionPolicy, running: Iterable[Request], facts: VictimFacts
) -> list[tuple[Request, Score]]:
    """All that run with their scores, in the order in which they would be cut back now."""
    scored = [(request, policy(request, facts)) for request in running]
    return sorted(scored, key=lambda pair: pair[1])


def _turn(request: Request) -> tuple[bool, bool]:
    """Preheats before all others, the often cut back after all others."""
    return not request.submission.preheat, request.num_retractions >= MOST_RETRACTIONS


def _num_generated(request: Request) -> int:
    return request.num_outputs + request.num_pending
