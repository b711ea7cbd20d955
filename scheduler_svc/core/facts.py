"""What policies may know: numbers of the state, looked up when a policy asks.  Decides nothing."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from scheduler_svc.core.admission import Promise
from scheduler_svc.core.chunking import chunk_of
from scheduler_svc.core.config import SchedulerConfig
from scheduler_svc.core.request import Request
from scheduler_svc.core.waiting_order import Standing

if TYPE_CHECKING:
    from scheduler_svc.core.state import SchedulerState

MOST_AGE_NS = 10_000_000_000
"""How long predictions are believed without a step to learn from."""


class Facts:
    """The facts of one step, for orders of waiting and for the choice of victims."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self.now_ns = state.now_ns
        self.config: SchedulerConfig = state.config
        self.step_id = state.next_step_id
        self.seed = state.config.policy_seed
        self._fits: bool | None = None
        self._held: dict[str, int] | None = None
        self._num_admitted = state.num_admitted
        self._promise: Promise | None = None
        self._ordinary: dict[str, None] = {}

    # --- of waiting requests ------------------------------------------------------------------

    @property
    def everything_fits(self) -> bool:
        """Whether all fresh requests could be admitted at once."""
        if self._fits is None:
            self._fits = self._does_everything_fit()
        return self._fits

    @property
    def promise(self) -> Promise:
        """What those that run are expected to need, kept up by whoever admits others."""
        if self._promise is None:
            self._promise = self._state.estimate.open(self._state.running.values(), self._state.kv)
        return self._promise

    def cached_tokens(self, request: Request) -> int:
        """How much of a waiting request the tree holds."""
        state = self._state
        if request.peeked_at != state.tree.version:
            pages = state.tree.peek(state.kv.match_key(request))
            request.peeked_tokens = pages * state.kv.page_size
            request.peeked_at = state.tree.version
        return request.peeked_tokens

    def match_path(self, request: Request) -> tuple[int, ...]:
        """Serial numbers of the nodes it matches, from the stem down."""
        return self._state.tree.match_path(self._state.kv.match_key(request))

    def num_passes(self, request: Request) -> int:
        """Requests admitted since a waiting one arrived."""
        return self._state.num_admitted - request.num_admitted_before

    def tenant_service(self, tenant: str) -> float:
        """Uncached tokens a tenant was served, by its weight."""
        return self._state.ledger.service(tenant)

    # --- of tenants ---------------------------------------------------------------------------

    def held_pages(self, tenant: str) -> int:
        """Pages that the running requests of a tenant brought into use, or will at once: those of
        a prompt part-way and of the next token are counted."""
        if self._held is None or self._num_admitted != self._state.num_admitted:
            self._num_admitted = self._state.num_admitted
            self._held = self._add_up()
        return self._held.get(tenant, 0)

    def standing(self, tenant: str) -> Standing:
        """Where a tenant stands with what it holds now."""
        policy = self.config.tenants.get(tenant)
        if policy is None:
            return Standing.ORDINARY
        held, total = self.held_pages(tenant), self._state.pool.num_pages
        if held >= self.cap_pages(tenant) or tenant in self._state.capped:
            return Standing.CAPPED
        is_below = held < policy.guaranteed_share * total and tenant not in self._ordinary
        return Standing.ENTITLED if is_below else Standing.ORDINARY

    def cap_pages(self, tenant: str) -> int:
        """Pages that the requests of a tenant may hold."""
        policy = self.config.tenants.get(tenant)
        total = self._state.pool.num_pages
        return total if policy is None else ceil(policy.most_share * total)

    def is_entitled(self, request: Request) -> bool:
        """Whether its tenant is guaranteed the room that a waiting request needs now.

        Whoever is cut back for such a request is not entitled itself: its tenant was above its
        guarantee with it.  So nobody takes back the room that was made for another.
        """
        tenant = request.submission.tenant
        policy = self.config.tenants.get(tenant)
        if policy is None:
            return False
        need = self.held_pages(tenant) + self._state.kv.num_pages(request.num_tokens)
        return need <= policy.guaranteed_share * self._state.pool.num_pages

    def take_as_ordinary(self, tenant: str) -> None:
        """Its next request needs more than is guaranteed: in this step it goes like all others."""
        self._ordinary[tenant] = None

    def tenant_excess(self, tenant: str) -> float:
        """Share of the pool that a tenant holds beyond what it is guaranteed."""
        policy = self.config.tenants.get(tenant)
        guaranteed = 0.0 if policy is None else policy.guaranteed_share
        return self.held_pages(tenant) / self._state.pool.num_pages - guaranteed

    # --- of running requests ------------------------------------------------------------------

    def tokens_to_lose(self, request: Request) -> int:
        """Tokens in slots that nobody else holds."""
        return self._state.kv.num_pages_held_alone(request) * self._state.kv.page_size

    def time_to_finish_ns(self, request: Request) -> int:
        """Predicted time for what it still computes; 0 while nothing is known."""
        model = self._state.step_time
        step_ns = model.predict_ns(max(1, len(self._state.decoding)), 0) or 0
        prompt_ns = model.prefill_ns(request.num_owed, num_scored=request.num_unscored) or 0
        return step_ns * max(0, request.num_left) + prompt_ns

    def time_to_first_token_ns(self, request: Request) -> int:
        """Predicted time to compute what the tree lacks of its prompt, if it began now; 0 while
        nothing is known, or nothing was learned for some time: whoever is refused teaches nothing,
        and the machine may be quicker by now."""
        if self.now_ns - self._state.last_step_ns > MOST_AGE_NS:
            return 0
        owed = request.num_tokens - self.cached_tokens(request)
        # One prompt gets at most its chunk of a step, and a step takes its base whoever is in it.
        num_steps = ceil(owed / chunk_of(self.config, request))
        return self._state.step_time.prefill_ns(owed, num_steps, request.num_unscored) or 0

    def forget_held(self) -> None:
        """Requests have come or gone since they were added up."""
        self._held = self._promise = self._fits = None
        self._ordinary = {}

    # --- inside -------------------------------------------------------------------------------

    def _does_everything_fit(self) -> bool:
        state, kv = self._state, self._state.kv
        if state.waiting.num_fresh > len(state.free_rows):
            return False
        promised = self.promise.pages_ahead(None)
        needed = sum(kv.num_pages(len(r.tokens)) for r in state.waiting.unpreheated())
        return needed + promised <= kv.num_available_pages - state.headroom_pages

    def _add_up(self) -> dict[str, int]:
        held: dict[str, int] = {}
        size = self._state.kv.page_size
        for request in self._state.running.values():
            tenant = request.submission.tenant
            pages = max(len(request.pages), self._state.kv.num_pages(request.num_tokens))
            own = pages - (request.cached_tokens or 0) // size
            held[tenant] = held.get(tenant, 0) + max(0, own)
        return held
