"""What each tenant was served and holds.  Counts; decides nothing.

Tenants beyond the first MOST_TENANTS are counted together, so that names nobody bounds cost no
memory and no metric.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler_svc.core.request import Request

MOST_TENANTS = 64
OTHERS = "(others)"
OUTPUT_WEIGHT = 2.0
"""A token of output counts as two of prompt: it holds a row for a whole step."""


@dataclass(slots=True)
class TenantCounts:
    """Monotone counts of one tenant."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    retractions: int = 0


class TenantLedger:
    """Counts by tenant; with one tenant, which is the rule, at no cost a request."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        """`weights`: of tenants under the fair order; whoever is not named has 1."""
        self._weights = weights
        self._counts: dict[str, TenantCounts] = {}
        self._service: dict[str, float] = {}
        self._num_live: dict[str, int] = {}
        self._last_admitted = 0.0
        """Service of the tenant that was admitted last: under the fair order, the least of all."""

    def of(self, tenant: str) -> TenantCounts:
        """The counts of a tenant, or of those that are counted together."""
        counts = self._counts.get(tenant)
        if counts is None:
            if len(self._counts) >= MOST_TENANTS and tenant not in self._counts:
                tenant = OTHERS
            counts = self._counts.setdefault(tenant, TenantCounts())
        return counts

    def name_of(self, tenant: str) -> str:
        """Under which name a tenant is counted."""
        has_room = len(self._counts) < MOST_TENANTS
        return tenant if has_room or tenant in self._counts else OTHERS

    def all(self) -> dict[str, TenantCounts]:
        """By name."""
        return self._counts

    @property
    def has_many(self) -> bool:
        """More than one tenant was ever seen."""
        return len(self._counts) > 1

    def note_decodes(self, requests: Sequence[Request]) -> None:
        """One token computed for each."""
        if not self.has_many:
            for counts in self._counts.values():
                counts.computed_tokens += len(requests)
            return
        for request in requests:
            tenant = request.submission.tenant
            self.of(tenant).computed_tokens += 1
            self.serve(tenant, OUTPUT_WEIGHT)

    def note_generated(self, requests: Sequence[Request], num_tokens: int) -> None:
        """`num_tokens` sampled, one for each of the requests, which are named when there are many
        tenants."""
        if not self.has_many:
            for counts in self._counts.values():
                counts.generated_tokens += num_tokens
            return
        for request in requests:
            self.of(request.submission.tenant).generated_tokens += 1

    def note_drafts(self, tenant: str, num_tokens: int) -> None:
        """So many were computed.  They are charged for once they turn out to be right: to guess was
        not the tenant's idea."""
        self.of(tenant).computed_tokens += num_tokens

    def note_accepted(self, tenant: str, num_tokens: int) -> None:
        """So many of them were right."""
        if self.has_many:
            self.serve(tenant, num_tokens * OUTPUT_WEIGHT)

    # --- the virtual token counter ------------------------------------------------------------

    def service(self, tenant: str) -> float:
        """Uncached tokens a tenant was served, by its weight."""
        return self._service.get(tenant, 0.0)

    def serve(self, tenant: str, num_tokens: float) -> None:
        """Charges a tenant for tokens computed for it."""
        weight = self._weights.get(tenant, 1.0)
        self._service[tenant] = self._service.get(tenant, 0.0) + num_tokens / weight

    def admit(self, tenant: str, num_tokens: int) -> None:
        """A tenant's request begins to compute so many tokens."""
        self._last_admitted = self.service(tenant)
        self.serve(tenant, num_tokens)

    def come(self, tenant: str) -> None:
        """A request of a tenant is live.  One that was idle does not keep the credit of the time it
        was away: it is lifted to the least of those that are not (Sheng et al. 2024)."""
        num_live = self._num_live.get(tenant, 0)
        if not num_live and self._num_live:
            few = len(self._num_live) <= MOST_TENANTS
            least = min(map(self.service, self._num_live)) if few else self._last_admitted
            self._service[tenant] = max(self.service(tenant), least)
        self._num_live[tenant] = num_live + 1

    def go(self, tenant: str) -> None:
        """A request of a tenant has ended."""
        self._num_live[tenant] -= 1
        if not self._num_live[tenant]:
            del self._num_live[tenant]
        if len(self._service) > 2 * len(self._num_live) + 16 * MOST_TENANTS:
            # Names nobody bounds: whoever is away would be lifted on its return anyway.
            self._service = {name: self._service.get(name, 0.0) for name in self._num_live}
