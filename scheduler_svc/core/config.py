"""The knobs of the scheduler core, checked once."""

from dataclasses import dataclass

from protos.plan import MAX_PAGE_SIZE
from scheduler_svc.core.eviction import EVICTION_POLICIES
from scheduler_svc.core.retraction import RETRACTION_POLICIES
from scheduler_svc.core.waiting_order import WAITING_ORDERS


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits and policies; sizes of pool and rows come from the worker's Hello."""

    page_size: int = 1
    """Slots a page; prefixes are shared and slots handed out by whole pages."""
    max_running: int = 64
    """Requests that run at once; the worker's rows may limit it further."""
    max_batch_tokens: int = 512
    """Most tokens computed in one step, decode and prefill together."""
    chunk_size: int = 256
    """Most tokens of one prompt computed in one step."""
    max_waiting: int = 4096
    """Requests that may wait; one more is refused.  Retracted requests do not count."""
    pipeline_depth: int = 2
    """Plans that may be in flight: 1 or 2."""
    waiting_order: str = "fcfs"
    """Name of the waiting order; see core.waiting_order."""
    retraction_policy: str = "progress"
    """Name of the policy that picks victims; see core.retraction."""
    eviction_policy: str = "lru"
    """Name of the policy that ranks cached prefixes; see core.eviction."""
    decode_reserve: float = 0.2
    """Share of the tokens that running requests may still generate that admission keeps free."""

    def __post_init__(self) -> None:
        """Refuses values that contradict each other.

        Raises:
            ValueError: names the field.
        """
        if not 1 <= self.page_size <= MAX_PAGE_SIZE:
            raise ValueError(f"page_size: {self.page_size} is not in 1..{MAX_PAGE_SIZE}")
        if self.pipeline_depth not in (1, 2):
            raise ValueError(f"pipeline_depth: {self.pipeline_depth} is not 1 or 2")
        for field in ("max_running", "max_batch_tokens", "chunk_size", "max_waiting"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field}: {getattr(self, field)} is below 1")
        for field, policies in (
            ("waiting_order", WAITING_ORDERS),
            ("retraction_policy", RETRACTION_POLICIES),
            ("eviction_policy", EVICTION_POLICIES),
        ):
            if getattr(self, field) not in policies:
                known = ", ".join(policies)
                raise ValueError(f"{field}: {getattr(self, field)!r} is none of: {known}")
        if not 0.0 <= self.decode_reserve <= 1.0:
            raise ValueError(f"decode_reserve: {self.decode_reserve} is not in 0..1")
