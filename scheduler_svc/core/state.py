"""Everything the core remembers between two calls, and how a request moves through it.

A request is in exactly one place: the waiting queue, `running`, or `leaving` (ended or cut back,
but still named by a plan in flight).
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from protos.plan import Hello
from scheduler_svc.core.config import SchedulerConfig
from scheduler_svc.core.counters import Counters
from scheduler_svc.core.eviction import EVICTION_POLICIES
from scheduler_svc.core.kv_cache import KVCache
from scheduler_svc.core.messages import Ending, Output
from scheduler_svc.core.page_pool import PagePool
from scheduler_svc.core.radix_tree import RadixTree
from scheduler_svc.core.request import Request, State
from scheduler_svc.core.waiting_order import WAITING_ORDERS
from scheduler_svc.core.waiting_queue import WaitingQueue

NO_TOKENS: array[int] = array("i")

_COUNTER_OF_ENDING = {
    Ending.CANCELLED: "cancelled",
    Ending.DEADLINE: "expired",
    Ending.FAILED: "failed",
}


class PlannedRow(NamedTuple):
    """What a plan in flight does for one request."""

    request: Request
    extend_len: int
    samples: bool


@dataclass(frozen=True, slots=True)
class PlanInFlight:
    """A plan that was sent and not answered."""

    step_id: int
    rows: list[PlannedRow]


class PendingRemap(NamedTuple):
    """A row that must learn its new slots with the next plan."""

    request: Request
    row: int
    first_page: int
    num_pages: int


class SchedulerState:
    """Requests, rows and pages, and the only functions that move them."""

    def __init__(self, config: SchedulerConfig, hello: Hello) -> None:
        self.config = config
        self.counters = Counters()
        self.waiting = WaitingQueue(WAITING_ORDERS[config.waiting_order])
        self.live: dict[str, Request] = {}
        """By id: every request that has not ended."""
        self.running: dict[str, Request] = {}
        """In order of admission."""
        self.leaving: list[Request] = []
        self.next_step_id = 1
        self.num_admitted = 0
        """Admissions since the start; what waiting requests count their passes by."""
        self.num_evicted_before = 0
        """Tokens evicted from the pools of earlier workers."""
        self.open_pool(hello)

    def open_pool(self, hello: Hello) -> None:
        """Starts over with the empty pool of a (new) worker."""
        page_size = self.config.page_size
        self.hello = hello
        self.pool = PagePool(hello.num_slots // page_size)
        rank = EVICTION_POLICIES[self.config.eviction_policy]
        self.tree = RadixTree(self.pool, page_size, rank)
        self.kv = KVCache(self.pool, self.tree, page_size)
        self.free_rows = list(range(self.num_rows - 1, -1, -1))
        self.freed_rows: array[int] = array("i")
        """Rows to be freed by the next plan."""
        self.remaps: list[PendingRemap] = []
        self.in_flight: deque[PlanInFlight] = deque()

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

    def admit(self, request: Request) -> None:
        """WAITING to RUNNING; its prefix is attached already."""
        self.waiting.remove(request)
        request.state = State.RUNNING
        request.is_resuming = False
        request.row = self.free_rows.pop()
        self.running[request.request_id] = request
        self.num_admitted += 1
        self.note_first_admission(request)

    def note_first_admission(self, request: Request) -> None:
        """Fixes `cached_tokens`, once."""
        if request.cached_tokens is not None:
            return
        request.cached_tokens = min(request.num_computed, request.num_prompt)
        assert request.lease is not None
        self.tree.count_hit(request.lease)
        if not request.submission.preheat:
            self.counters.prompt_tokens += request.num_prompt
            self.counters.cached_tokens += request.cached_tokens

    def end(
        self,
        request: Request,
        ending: Ending,
        *,
        token_ids: array[int] = NO_TOKENS,
        message: str = "",
    ) -> Output:
        """The one way out for a request that was accepted."""
        del self.live[request.request_id]
        if request.state is State.WAITING:
            self.waiting.remove(request)
            request.state = State.GONE
        elif request.state is State.RUNNING:
            del self.running[request.request_id]
            request.state = State.LEAVING
            self.leaving.append(request)
            self.let_go(request)
        else:
            assert request.state is State.RETRACTING
            request.state = State.LEAVING
        counter = _COUNTER_OF_ENDING.get(ending, "finished")
        setattr(self.counters, counter, getattr(self.counters, counter) + 1)
        return Output(
            request_id=request.request_id,
            token_ids=token_ids,
            ending=ending,
            message=message,
            cached_tokens=request.cached_tokens or 0,
        )

    def retract(self, request: Request) -> None:
        """Cuts a running request back; its head stays in the tree, its tail can be evicted."""
        del self.running[request.request_id]
        request.state = State.RETRACTING
        request.num_retractions += 1
        self.counters.retractions += 1
        self.leaving.append(request)
        self.let_go(request)

    def let_go(self, request: Request) -> None:
        """Takes back what a leaving request holds, once no plan in flight names it."""
        if request.num_in_flight or request.state not in (State.LEAVING, State.RETRACTING):
            return
        self.leaving.remove(request)
        self.free_rows.append(request.row)
        if request.is_bound:
            self.freed_rows.append(request.row)
        self.kv.release(request)
        if request.state is State.RETRACTING:
            request.state = State.WAITING
            request.is_resuming = True
            self.waiting.add_returning([request])
        else:
            request.state = State.GONE

    def remap(self, request: Request, first_page: int, pages: list[int]) -> None:
        """Part of a running row lives elsewhere now; the worker learns it with the next plan."""
        self.remaps.append(PendingRemap(request, request.row, first_page, len(pages)))

    def lose_pool(self) -> None:
        """The worker is gone: all that ran waits again, ahead of the others."""
        returning = [*self.running.values()]
        returning += [r for r in self.leaving if r.state is State.RETRACTING]
        for request in returning:
            request.forget_kv()
            request.state = State.WAITING
        self.running = {}
        self.leaving = []
        self.waiting.add_returning(returning)
        self.num_evicted_before = self.num_evicted_tokens
        self.counters.worker_losses += 1
        self.open_pool(self.hello)
