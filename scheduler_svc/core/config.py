"""The knobs of the scheduler core, checked once.

Those in `CHANGEABLE` may be changed while it runs (`Scheduler.set_policy`); sizes may not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from protos.plan import MAX_PAGE_SIZE
from scheduler_svc.core.admission import ADMISSION_ESTIMATES
from scheduler_svc.core.eviction import EVICTION_POLICIES
from scheduler_svc.core.retraction import RETRACTION_POLICIES
from scheduler_svc.core.speculation import MOST_DRAFTS, SPECULATIONS
from scheduler_svc.core.waiting_order import WAITING_ORDERS

RETRACTION_KEEPS = {
    "partial": (
        "The victim's tokens stay cached from their head on; only the slots that are missing are "
        "freed, page by page from its own tail. It comes back to compute little. The default."
    ),
    "all": (
        "The victim frees nothing by itself: all it computed stays cached, and whoever needs room "
        "evicts what the eviction policy ranks lowest, be it another's prefix. Suits a cache full "
        "of prefixes nobody asks for again."
    ),
    "none": (
        "All that only the victim used is freed at once and computed again later. What other "
        "engines do; suits nothing but comparisons, and pools where recomputing is free."
    ),
}

MOST_SESSION_TTL_S = 30 * 24 * 3600
MOST_SESSIONS = 100_000
_POSITIVE = ("max_running", "max_batch_tokens", "chunk_size", "max_waiting", "most_passes")
CHUNK_SIZES = MappingProxyType({"chat": 512, "code": 1024, "longform": 2048})


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantPolicy:
    """What one tenant may hold, in shares of the pool."""

    guaranteed_share: float = 0.0
    """Below it, its requests go first, and others are cut back for them."""
    most_share: float = 1.0
    """Its requests wait while they would hold more."""
    weight: float = 1.0
    """Under `vtc`: a tenant of weight 2 is served twice the tokens."""
    pin_share: float = 1.0
    """Share of the budget of pins that may be its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits and policies; sizes of pool and rows come from the worker's Hello."""

    # --- sizes --------------------------------------------------------------------------------
    page_size: int = 1
    """Slots a page; prefixes are shared and slots handed out by whole pages."""
    max_running: int = 64
    """Requests that run at once; the worker's rows may limit it further."""
    max_waiting: int = 4096
    """Requests that may wait; one more is refused.  Retracted requests do not count."""
    pipeline_depth: int = 2
    """Plans that may be in flight: 1 or 2."""
    tenants: Mapping[str, TenantPolicy] = field(default_factory=lambda: MappingProxyType({}))
    """By name; a tenant that is not here has no guarantee and no cap."""
    public_domains: tuple[str, ...] = ()
    """Cache domains that all tenants share; every other is a tenant's own."""

    # --- who is admitted ----------------------------------------------------------------------
    waiting_order: str = "adaptive"
    """See core.waiting_order."""
    weight_prefix: float = 1.0
    """Of `adaptive`: worth of a cached token."""
    weight_age: float = 50.0
    """Of `adaptive`: worth of a second of waiting."""
    weight_cost: float = 0.5
    """Of `adaptive`: price of a token to compute."""
    most_passes: int = 64
    """So many admissions after its arrival a request goes before the others."""
    policy_seed: int = 0
    """Of the order and the victims named `random`."""
    admission_estimate: str = "ratio"
    """See core.admission."""
    decode_reserve: float = 0.1
    """Of `ratio`: the share of the tokens still to come that admission keeps free, at least."""
    length_quantile: float = 0.9
    """Of `quantile`: the share of finished requests whose length the estimate covers."""

    # --- how much of a step -------------------------------------------------------------------
    max_batch_tokens: int = 512
    """Most tokens computed in one step, decode and prefill together."""
    chunk_size: int = 128
    """Most tokens of one prompt computed in one step, for requests without a workload class."""
    chunk_sizes: Mapping[str, int] = field(default_factory=lambda: CHUNK_SIZES)
    """The same by workload class; `max_batch_tokens` bounds it."""
    prefill_share: float = 1.0
    """Share of a step's tokens that prompts may take while others decode."""
    itl_target_ms: float = 200.0
    """Predicted time a step stays below while others decode or share it; 0: no target."""

    speculation: str = "auto"
    """See core.speculation."""
    max_drafts: int = 8
    """Most tokens guessed at once for a request."""
    speculation_rows: int = 4
    """Nothing is guessed while more requests than these decode."""

    # --- who is cut back, and what is evicted -------------------------------------------------
    retraction_policy: str = "progress"
    """See core.retraction."""
    retraction_keep: str = "partial"
    """What stays of a victim; see RETRACTION_KEEPS."""
    high_watermark: float = 0.95
    """Share of slots in use above which requests are cut back while more than one runs."""
    low_watermark: float = 0.9
    """Share of slots in use down to which they are."""
    eviction_policy: str = "lru"
    """See core.eviction."""
    pin_budget: float = 0.5
    """Share of the pool that hard pins may hold."""
    session_ttl_s: float = 600.0
    """How long the tail of a session stays warm after its last turn; 0: not at all."""
    max_sessions: int = 1024
    """Sessions of one tenant; beyond it the least recently used one is forgotten."""

    def __post_init__(self) -> None:
        """Refuses values that contradict each other.

        Raises:
            ValueError: names the field.
        """
        if not 1 <= self.page_size <= MAX_PAGE_SIZE:
            raise ValueError(f"page_size: {self.page_size} is not in 1..{MAX_PAGE_SIZE}")
        if self.pipeline_depth not in (1, 2):
            raise ValueError(f"pipeline_depth: {self.pipeline_depth} is not 1 or 2")
        for name in _POSITIVE:
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is below 1")
        if not 0.0 <= self.session_ttl_s <= MOST_SESSION_TTL_S:
            ttl_s = self.session_ttl_s
            raise ValueError(f"session_ttl_s: {ttl_s} is not in 0..{MOST_SESSION_TTL_S}")
        if not 1 <= self.max_sessions <= MOST_SESSIONS:
            raise ValueError(f"max_sessions: {self.max_sessions} is not in 1..{MOST_SESSIONS}")
        if not 1 <= self.max_drafts <= MOST_DRAFTS:
            raise ValueError(f"max_drafts: {self.max_drafts} is not in 1..{MOST_DRAFTS}")
        if self.speculation_rows < 0:
            raise ValueError(f"speculation_rows: {self.speculation_rows} is below 0")
        for name, policies in POLICY_NAMES.items():
            if getattr(self, name) not in policies:
                known = ", ".join(policies)
                raise ValueError(f"{name}: {getattr(self, name)!r} is none of: {known}")
        for workload, size in self.chunk_sizes.items():
            if size < 1:
                raise ValueError(f"chunk_sizes: {workload}: {size} is below 1")
        self._check_shares()

    def _check_shares(self) -> None:
        for name in ("decode_reserve", "low_watermark", "high_watermark", "pin_budget"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name}: {getattr(self, name)} is not in 0..1")
        for name in ("prefill_share", "length_quantile"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise ValueError(f"{name}: {getattr(self, name)} is not above 0 and at most 1")
        for name in ("weight_prefix", "weight_age", "weight_cost", "itl_target_ms"):
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name}: {getattr(self, name)} is not a number of 0 or more")
        if not 0 <= self.policy_seed < 1 << 63:
            raise ValueError(f"policy_seed: {self.policy_seed} is not in 0..2**63-1")
        if self.low_watermark > self.high_watermark:
            low, high = self.low_watermark, self.high_watermark
            raise ValueError(f"low_watermark: {low} is above high_watermark, {high}")
        for tenant, policy in self.tenants.items():
            for name in ("guaranteed_share", "most_share", "pin_share"):
                if not 0.0 <= getattr(policy, name) <= 1.0:
                    raise ValueError(f"tenants: {tenant}: {name} is not in 0..1")
            if not 0.0 < policy.weight < float("inf"):
                raise ValueError(f"tenants: {tenant}: weight is not above 0")
            if policy.guaranteed_share > policy.most_share:
                raise ValueError(f"tenants: {tenant}: guaranteed_share is above most_share")
        if sum(policy.guaranteed_share for policy in self.tenants.values()) > 1.0 + 1e-9:
            raise ValueError("tenants: guaranteed shares sum up to more than the pool")


POLICY_NAMES: dict[str, Mapping[str, object]] = {
    "waiting_order": WAITING_ORDERS,
    "admission_estimate": ADMISSION_ESTIMATES,
    "retraction_policy": RETRACTION_POLICIES,
    "retraction_keep": RETRACTION_KEEPS,
    "eviction_policy": EVICTION_POLICIES,
    "speculation": SPECULATIONS,
}
"""Field of the configuration to the names it may have."""

CHANGEABLE = (
    "waiting_order",
    "weight_prefix",
    "weight_age",
    "weight_cost",
    "most_passes",
    "policy_seed",
    "admission_estimate",
    "decode_reserve",
    "length_quantile",
    "chunk_size",
    "chunk_sizes",
    "max_batch_tokens",
    "prefill_share",
    "itl_target_ms",
    "retraction_policy",
    "retraction_keep",
    "high_watermark",
    "low_watermark",
    "eviction_policy",
    "pin_budget",
    "speculation",
    "max_drafts",
    "speculation_rows",
    "session_ttl_s",
    "max_sessions",
)
"""Fields that may change while requests run."""
