"""Everything the core remembers between two calls, and how a request moves through it.

A request is in exactly one place: the waiting queue, `prefilling`, `decoding`, or `leaving` (ended
or cut back, but still named by a plan in flight).
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from math import ceil

from protos.plan import Hello, LogprobColumns
from scheduler_svc.core import admission_books, leftovers
from scheduler_svc.core.admission import ADMISSION_ESTIMATES, EstimateKnobs
from scheduler_svc.core.books import Books
from scheduler_svc.core.config import SchedulerConfig
from scheduler_svc.core.counters import Counters
from scheduler_svc.core.eviction import EVICTION_POLICIES
from scheduler_svc.core.facts import Facts
from scheduler_svc.core.in_flight import PendingRemap, PlanInFlight
from scheduler_svc.core.kv_cache import KVCache
from scheduler_svc.core.memory_of_ended import MemoryOfEnded
from scheduler_svc.core.messages import Ending, Output, PinLevel, PinReceipt
from scheduler_svc.core.page_lives import PageLives
from scheduler_svc.core.page_pool import PagePool
from scheduler_svc.core.pins import PinBook
from scheduler_svc.core.radix_tree import RadixTree
from scheduler_svc.core.request import Request, State
from scheduler_svc.core.sessions import SessionBook
from scheduler_svc.core.stems import StemBook
from scheduler_svc.core.step_time import StepTimeModel
from scheduler_svc.core.tenant_ledger import TenantLedger
from scheduler_svc.core.twins import Twins
from scheduler_svc.core.verdict import Verdict
from scheduler_svc.core.waiting_order import WAITING_ORDERS
from scheduler_svc.core.waiting_queue import WaitingQueue

NO_TOKENS: array[int] = array("i")

_COUNTER_OF_ENDING = {
    Ending.CANCELLED: "cancelled",
    Ending.DEADLINE: "expired",
    Ending.FAILED: "failed",
}

_NEVER = (-1, 0)
_OF_THE_ORDER = ("waiting_order", "weight_prefix", "weight_age", "weight_cost", "policy_seed")
"""What the places in the queue depend on."""


class SchedulerState:
    """Requests, rows and pages, and the only functions that move them."""

    def __init__(self, config: SchedulerConfig, hello: Hello) -> None:
        self.config = config
        self.now_ns = 0
        """Time of the present call."""
        self.counters = Counters()
        self.books = Books()
        self.lives = PageLives()
        self.ledger = TenantLedger({n: p.weight for n, p in config.tenants.items()})
        self.step_time = StepTimeModel()
        self.last_step_ns = 0
        """When a step was answered last."""
        self.estimate = ADMISSION_ESTIMATES[config.admission_estimate](_knobs(config))
        self.waiting = WaitingQueue(WAITING_ORDERS[config.waiting_order])
        self.twins = Twins(config.page_size)
        self.ended = MemoryOfEnded()
        self.sessions = SessionBook(ttl_s=config.session_ttl_s, most_of_one=config.max_sessions)
        self.verdict: Verdict | None = None
        """Why nobody more was admitted, the last time somebody asked."""
        self.num_changes = 0
        """Events that may let somebody in who did not fit before."""
        self.full_since = _NEVER
        """`num_changes` and step at which admission last stopped for want of slots."""
        self.live: dict[str, Request] = {}
        """By id: every request that has not ended."""
        self.prefilling: dict[str, Request] = {}
        """Running, with tokens of its own to compute before it samples; in order of admission."""
        self.decoding: dict[str, Request] = {}
        """Running, one token a step; in the order in which they began to."""
        self.leaving: list[Request] = []
        self.next_step_id = 1
        self.num_admitted = 0
        """Admissions since the start; what waiting requests count their passes by."""
        self.num_evicted_before = 0
        """Tokens evicted from the pools of earlier workers."""
        self.num_freed_before = 0
        """Slots freed in the pools of earlier workers."""
        self.num_pins_before = 0
        """Pins in the pools of earlier workers."""
        self.capped: dict[str, None] = {}
        """Tenants whose next request would have exceeded their cap, in the last admissions."""
        self.open_pool(hello)

    def open_pool(self, hello: Hello) -> None:
        """Starts over with the empty pool of a (new) worker."""
        page_size = self.config.page_size
        self.hello = hello
        self.num_changes += 1
        self.pool = PagePool(hello.num_slots // page_size)
        rank = EVICTION_POLICIES[self.config.eviction_policy]
        self.tree = RadixTree(self.pool, page_size, rank, self.lives)
        self.kv = KVCache(self.pool, self.tree, page_size)
        self.pins = PinBook(self.tree, page_size, self._pin_budget, self.num_pins_before)
        self.sessions.lose_tails()
        least = hello.least_stem_tokens
        self.stems = StemBook(page_size, least) if least else None
        """Of those that decode; None where the worker has no use for it."""
        self.free_rows = list(range(self.num_rows - 1, -1, -1))
        self.freed_rows: array[int] = array("i")
        """Rows to be freed by the next plan."""
        self.remaps: list[PendingRemap] = []
        self.in_flight: deque[PlanInFlight] = deque()

    def set_now(self, now_ns: int) -> None:
        """The time of the call that begins."""
        self.now_ns = now_ns
        self.tree.now_ms = now_ns // 1_000_000
        if self.pins.expire(now_ns):
            self.num_changes += 1
        self.sessions.expire(now_ns, self.pins)

    @property
    def num_rows(self) -> int:
        """Requests that may run at once: each must get its decode token in every step."""
        return min(self.config.max_running, self.hello.max_rows, self.config.max_batch_tokens)

    @property
    def num_slots(self) -> int:
        """Token slots that can be handed out: whole pages only."""
        return self.pool.num_pages * self.config.page_size

    @property
    def num_evicted_tokens(self) -> int:
        """Tokens evicted since the start."""
        return self.num_evicted_before + self.tree.num_evicted_pages * self.config.page_size

    @property
    def num_freed_slots(self) -> int:
        """Slots that became free since the start."""
        return self.num_freed_before + self.pool.num_freed * self.config.page_size

    @property
    def num_used_pages(self) -> int:
        """Pages that cannot be had now: private, locked, pinned or in flight."""
        return self.pool.num_pages - self.kv.num_available_pages

    @property
    def high_pages(self) -> int:
        """Pages in use above which requests are cut back."""
        return ceil(self.config.high_watermark * self.pool.num_pages)

    @property
    def low_pages(self) -> int:
        """Pages in use down to which they are."""
        return ceil(self.config.low_watermark * self.pool.num_pages)

    @property
    def headroom_pages(self) -> int:
        """Pages that admission leaves alone while others run."""
        return self.pool.num_pages - self.high_pages

    @property
    def num_running(self) -> int:
        """Requests that hold a row and have not ended."""
        return len(self.prefilling) + len(self.decoding)

    @property
    def running(self) -> dict[str, Request]:
        """Those that run, by id: prompts part-way by admission, then streams."""
        return self.prefilling | self.decoding

    def num_wanted_pages(self) -> int:
        """Pages that streams need for their next token."""
        size = self.config.page_size
        return sum(
            request.num_computed == len(request.pages) * size
            and request.num_computed < request.end_tokens - 1
            for request in self.decoding.values()
        )

    def admit(self, request: Request) -> None:
        """WAITING to RUNNING; its prefix is attached already."""
        self.waiting.remove(request)
        self._unmark(request)
        request.state = State.RUNNING
        request.is_resuming = False
        request.row = self.free_rows.pop()
        self.prefilling[request.request_id] = request
        self.num_admitted += 1
        request.admitted_tick = self.num_admitted
        request.note(self.now_ns, "admitted", f"{request.num_computed} tokens cached")
        admission_books.note_admission(self, request)
        self.twins.lead(request)

    def end_warm_preheat(self, request: Request) -> Output:
        """A preheat whose prefix, attached already, is cached to its last whole page."""
        admission_books.note_admission(self, request)
        pin = self.pin(request)
        self.kv.detach(request)
        return self.end(request, Ending.PREHEATED, pin=pin)

    def pin(self, request: Request) -> PinReceipt | None:
        """Pins the prefix of a preheat that is done, if it asked for that."""
        submission = request.submission
        if submission.pin is PinLevel.NONE:
            return None
        request.note(self.now_ns, "pinned", submission.pin.name.lower())
        return self.pins.pin(
            self.kv.match_key(request),
            tenant=submission.tenant,
            level=submission.pin,
            ttl_ns=submission.pin_ttl_ns,
            now_ns=self.now_ns,
        )

    def begin_decoding(self, request: Request) -> None:
        """Its last prompt token is planned: from now on it computes one token a step."""
        del self.prefilling[request.request_id]
        self.decoding[request.request_id] = request
        if self.stems is not None:
            self.stems.join(request)

    def end(
        self,
        request: Request,
        ending: Ending,
        *,
        token_ids: Sequence[int] = NO_TOKENS,
        message: str = "",
        logprobs: LogprobColumns | None = None,
        pin: PinReceipt | None = None,
    ) -> Output:
        """The one way out for a request that was accepted."""
        self.num_changes += 1
        del self.live[request.request_id]
        self.sessions.end_turn(request, ending, self.now_ns, self.pins)
        if request.state is State.WAITING:
            self.waiting.remove(request)
            self._unmark(request)
            request.state = State.GONE
            leftovers.keep_tail(self, request)
        elif request.state is State.RUNNING:
            self._stop_running(request)
            request.state = State.LEAVING
            self.leaving.append(request)
            self.let_go(request)
        else:
            assert request.state is State.RETRACTING
            request.state = State.LEAVING
        self.ledger.go(request.submission.tenant)
        counter = _COUNTER_OF_ENDING.get(ending, "finished")
        setattr(self.counters, counter, getattr(self.counters, counter) + 1)
        if request.num_outputs:
            # Whoever was stopped from outside would have become longer.
            is_whole = ending in (Ending.STOP, Ending.LENGTH)
            most = request.submission.max_tokens if is_whole else request.num_outputs
            self.estimate.note_finished(request.num_outputs, most)
        request.note(self.now_ns, "ended", message or ending.name.lower())
        self.ended.remember(request, ending)
        return Output(
            request.request_id,
            token_ids,
            request.cached_tokens or 0,
            ending,
            message,
            logprobs=logprobs,
            pin=pin,
        )

    def retract(self, request: Request, why: str = "") -> None:
        """Cuts a running request back; what `retraction_keep` says of it stays in the tree."""
        self._stop_running(request)
        request.state = State.RETRACTING
        request.num_retractions += 1
        request.note(self.now_ns, "retracted", why)
        self.counters.retractions += 1
        self.ledger.of(request.submission.tenant).retractions += 1
        self.leaving.append(request)
        self.let_go(request)

    def let_go(self, request: Request) -> None:
        """Takes back what a leaving request holds, once no plan in flight names it."""
        if request.num_unacked or request.state not in (State.LEAVING, State.RETRACTING):
            return
        self.leaving.remove(request)
        self.num_changes += 1
        if request.row < self.num_rows:
            self.free_rows.append(request.row)
        if request.is_bound:
            self.freed_rows.append(request.row)
        # Should it get this very row again, the worker is told all of it anew.
        self.remaps = [remap for remap in self.remaps if remap.request is not request]
        if request.state is State.RETRACTING:
            leftovers.release_retracted(self, request)
            request.state = State.WAITING
            request.is_resuming = True
            self.waiting.add_returning([request])
        else:
            leftovers.release_ended(self, request)
            request.state = State.GONE

    def take_config(self, config: SchedulerConfig, facts: Facts) -> None:
        """Other policies from now on; what was learned and what is cached stays."""
        before, self.config = self.config, config
        self.num_changes += 1
        facts.config, facts.seed = config, config.policy_seed
        if config.admission_estimate != before.admission_estimate:
            self.estimate = ADMISSION_ESTIMATES[config.admission_estimate](_knobs(config))
        else:
            self.estimate.tune(_knobs(config))
        if config.eviction_policy != before.eviction_policy:
            self.tree.set_rank(EVICTION_POLICIES[config.eviction_policy])
        if config.max_batch_tokens != before.max_batch_tokens:
            self._fit_rows()
        self.sessions.tune(
            ttl_s=config.session_ttl_s,
            most_of_one=config.max_sessions,
            now_ns=self.now_ns,
            pins=self.pins,
        )
        if any(getattr(config, name) != getattr(before, name) for name in _OF_THE_ORDER):
            self.waiting.set_order(WAITING_ORDERS[config.waiting_order], facts)

    def lose_pool(self) -> None:
        """The worker is gone: all that ran waits again, ahead of the others."""
        returning = list(self.running.values())
        returning += [r for r in self.leaving if r.state is State.RETRACTING]
        for request in returning:
            request.note(self.now_ns, "worker_lost")
            request.forget_kv()
            request.state = State.WAITING
            self.twins.stop_leading(request)
            self.waiting.release_held(request.request_id)
        self.prefilling, self.decoding, self.leaving = {}, {}, []
        for request in [*self.waiting.requests(), *returning]:
            request.kept = None
            request.peeked_at = -1  # the next tree counts its versions anew
            request.drafter = None
        self.waiting.add_returning(returning)
        self.step_time = StepTimeModel()  # another worker is another machine
        self.num_evicted_before = self.num_evicted_tokens
        self.num_freed_before = self.num_freed_slots
        self.num_pins_before = self.pins.num_ever
        self.counters.worker_losses += 1
        self.num_changes += 1
        self.open_pool(self.hello)

    # --- inside -------------------------------------------------------------------------------

    def _fit_rows(self) -> None:
        """As many rows as there are now; those in use beyond them are not given out again."""
        taken = {request.row: None for request in [*self.running.values(), *self.leaving]}
        self.free_rows = [row for row in range(self.num_rows - 1, -1, -1) if row not in taken]

    def _stop_running(self, request: Request) -> None:
        if self.decoding.pop(request.request_id, None) and self.stems is not None:
            self.stems.leave(request)
        self.prefilling.pop(request.request_id, None)
        self.twins.stop_leading(request)
        self.waiting.release_held(request.request_id)

    def _unmark(self, request: Request) -> None:
        """What was kept of it is its own again, or nobody's."""
        if request.kept is not None:
            self.pins.unmark(request.kept)
            request.kept = None

    def _pin_budget(self, tenant: str) -> tuple[int, int]:
        """Pages that all hard pins, and that those of one tenant, may hold."""
        of_all = int(self.config.pin_budget * self.pool.num_pages)
        policy = self.config.tenants.get(tenant)
        return of_all, of_all if policy is None else int(policy.pin_share * of_all)


def _knobs(config: SchedulerConfig) -> EstimateKnobs:
    return EstimateKnobs(config.decode_reserve, config.length_quantile)
