"""What the core answers to people who look at it: values, formed on demand, changing nothing."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import IntEnum

from scheduler_svc.core.messages import PinLevel
from scheduler_svc.core.request import Event


class WaitingReason(IntEnum):
    """Why a request waits.  The numbers are those of radixd.v1.WaitingReason."""

    BEHIND_OTHERS = 1
    NO_ROW = 2
    NO_SLOTS = 3
    RETURNING = 4
    TWIN = 5
    TENANT_CAP = 6
    NO_BUDGET = 7
    PREHEAT = 8
    NO_WORKER = 9


class Phase(IntEnum):
    """What a request does.  The numbers are those of radixd.v1.RequestState."""

    WAITING = 1
    PREFILL = 2
    DECODE = 3
    RETRACTING = 4
    ENDED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PinView:
    """One pin."""

    pin_id: str
    level: PinLevel
    tenant: str
    cache_domain: str
    num_tokens: int
    """When it was pinned."""
    kept_tokens: int
    """Of those, cached now."""
    expires_in_ns: int | None
    """None: never."""
    hits: int
    first_token_ids: array[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionView:
    """One session."""

    name: str
    tenant: str
    cache_domain: str
    num_tokens: int
    """Of its tail, when its last turn ended."""
    kept_tokens: int
    """Of those, cached now."""
    expires_in_ns: int
    num_turns: int
    """Turns that came to their end."""
    hits: int
    """Turns that began with all that was kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """One request at a glance."""

    request_id: str
    """What its client calls it."""
    tenant: str
    phase: Phase
    waiting_reason: WaitingReason | None
    priority: int
    workload: str
    prompt_tokens: int
    output_tokens: int
    computed_tokens: int
    cached_tokens: int | None
    retractions: int
    age_ns: int
    deadline_in_ns: int | None
    slots: int
    preheat: bool
    drafted_tokens: int = 0
    """Tokens guessed for it."""
    accepted_tokens: int = 0
    """Of those, right ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VictimView:
    """A running request as the retraction policy sees it."""

    request_id: str
    score: tuple[float, ...]
    """The smallest goes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a request is where it is."""

    request: RequestView
    summary: str
    matched_tokens: int = 0
    rank: int = 0
    """Place in the queue; 1 is next, 0: it does not wait."""
    num_waiting: int = 0
    order_terms: dict[str, float] = field(default_factory=dict)
    needed_slots: int = 0
    promised_slots: int = 0
    available_slots: int = 0
    victims: tuple[VictimView, ...] = ()
    history: tuple[Event, ...] = ()
    ending: str = ""
    """Of an ended request: name of its Ending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EconomyView:
    """What the pool is worth; see radixd.v1.Economy."""

    reuse_rate: float
    density: float
    tokens_per_gib: float
    turnover: float
    recompute_tax: float
    volatility: float
    freed_slots: int
    context_tokens: int
    pinned_slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramView:
    """Counts by bucket; `counts` is one longer than `bounds`."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantView:
    """One tenant's share of the books; see radixd.v1.TenantBooks."""

    running: int
    waiting: int
    held_slots: int
    pinned_slots: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    computed_tokens: int
    recomputed_tokens: int
    retractions: int
