"""The scheduler core: facts in, decisions out.

Every call gets the time; none looks anything up.  The same calls with the same arguments produce
the same plans, byte for byte, in any process.  Not thread-safe: one thread owns it.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from protos.plan import BatchResult, Hello
from scheduler_svc.core import explain, statistics
from scheduler_svc.core.admitter import infeasible
from scheduler_svc.core.config import SchedulerConfig
from scheduler_svc.core.door import clip, refuse
from scheduler_svc.core.facts import Facts
from scheduler_svc.core.messages import (
    Ending,
    Output,
    SlotBooks,
    Step,
    Submission,
    TreeNodeView,
)
from scheduler_svc.core.planner import Planner
from scheduler_svc.core.policy_change import changed
from scheduler_svc.core.radix_node import Namespace
from scheduler_svc.core.request import Request, State
from scheduler_svc.core.results import apply_result, check_result, ending_after
from scheduler_svc.core.state import NO_TOKENS, SchedulerState
from scheduler_svc.core.views import (
    EconomyView,
    Explanation,
    HistogramView,
    PinView,
    RequestView,
    SessionView,
    TenantView,
)


class Scheduler:
    """Owns the prefix tree and the books of every slot of one worker."""

    def __init__(self, config: SchedulerConfig, hello: Hello) -> None:
        self.state = SchedulerState(config, hello)
        self._worker_is_here = True
        self._num_arrivals = 0
        self._deadlines: list[tuple[int, int, Request]] = []

    # --- requests -----------------------------------------------------------------------------

    def submit(self, submission: Submission, now_ns: int) -> list[Output]:
        """Takes a request, or refuses it with an output that says why."""
        state = self.state
        state.set_now(now_ns)
        state.counters.submitted += 1
        refusal = refuse(state, submission)
        if refusal is not None:
            state.counters.rejected += 1
            return [refusal]
        self._num_arrivals += 1
        request = Request(
            clip(state, submission),
            self._namespace(submission),
            arrival=self._num_arrivals,
            num_admitted=state.num_admitted,
            now_ns=now_ns,
            eos_token_ids=state.hello.eos_token_ids,
        )
        request.asked = submission
        request.note(now_ns, "submitted")
        state.num_changes += 1
        state.live[request.request_id] = request
        state.ledger.come(submission.tenant)
        state.waiting.add(request)
        if submission.deadline_ns is not None:
            self._watch_deadline(submission.deadline_ns, request)
            needed_ns = Facts(state).time_to_first_token_ns(request)
            if needed_ns > submission.deadline_ns - now_ns and not request.num_outputs:
                return [infeasible(state, request, needed_ns)]
        if request.num_outputs:  # carried over from another scheduler, perhaps at its very end
            ending = ending_after(request, request.tokens[-1])
            if ending is not None:
                return [state.end(request, ending)]
        if request.num_prompt == 1 and not (request.generates or request.is_preheat):
            return [state.end(request, Ending.LENGTH)]  # nothing precedes its only token
        return self._expire()

    def cancel(self, request_id: str, now_ns: int, *, finished: bool = False) -> list[Output]:
        """Ends a request; no token of it comes after this.  Nothing happens for an unknown id.

        `finished`: whoever reads its text found it complete, so it ends as any that stopped.
        """
        self.state.set_now(now_ns)
        request = self.state.live.get(request_id)
        if request is None:
            return []
        return [self.state.end(request, Ending.STOP if finished else Ending.CANCELLED)]

    def fail(self, request_id: str, message: str) -> list[Output]:
        """Ends a request as failed, for a reason its submitter is told."""
        request = self.state.live.get(request_id)
        return [self.state.end(request, Ending.FAILED, message=message)] if request else []

    def next_deadline_ns(self) -> int | None:
        """When `schedule` should be called at the latest, for the sake of deadlines."""
        self._drop_ended_deadlines()
        return self._deadlines[0][0] if self._deadlines else None

    # --- steps --------------------------------------------------------------------------------

    def schedule(self, now_ns: int) -> Step:
        """Expires deadlines and plans the next step, if one may be in flight."""
        state = self.state
        state.set_now(now_ns)
        outputs = self._expire()
        if state.books.is_due(now_ns):
            used = state.num_used_pages / state.pool.num_pages
            state.books.sample(now_ns, used, state.num_freed_slots)
        if not self._worker_is_here or self.num_in_flight >= state.config.pipeline_depth:
            return Step(plan=None, outputs=outputs)
        planner = Planner(state)
        plan = planner.plan()
        return Step(plan=plan, outputs=outputs + planner.outputs)

    def apply(self, result: BatchResult, now_ns: int) -> list[Output]:
        """Takes the worker's answer to the oldest plan in flight.

        Raises:
            ValueError: the result does not answer that plan.  Nothing has changed then; the
                caller gives the worker up.
        """
        self.state.set_now(now_ns)
        check_result(self.state, result)
        return apply_result(self.state, result)

    # --- the worker ---------------------------------------------------------------------------

    def lose_worker(self, now_ns: int) -> list[Output]:
        """The worker or its pool is gone: what ran waits for the next one, with its tokens."""
        self.state.set_now(now_ns)
        self._worker_is_here = False
        self.state.lose_pool()
        return self._expire()

    def regain_worker(self, hello: Hello, now_ns: int) -> list[Output]:
        """A worker with an empty pool is there.  One with another model ends all requests."""
        state = self.state
        state.set_now(now_ns)
        if self._worker_is_here:
            state.lose_pool()
        outputs: list[Output] = []
        if (hello.model_hash, hello.vocab_size) != (state.hello.model_hash, state.hello.vocab_size):
            weights = f", weights in {hello.weights}" if hello.weights else ""
            message = f"the worker came back with another model: {hello.model_id}{weights}"
            live = list(state.live.values())
            outputs += [state.end(request, Ending.FAILED, message=message) for request in live]
        state.open_pool(hello)
        self._worker_is_here = True
        return outputs + self._fit_to_length() + self._expire()

    # --- administration -----------------------------------------------------------------------

    @property
    def config(self) -> SchedulerConfig:
        """The configuration in force."""
        return self.state.config

    def set_policy(self, changes: Mapping[str, object]) -> SchedulerConfig:
        """Turns knobs that may be turned while requests run; all of the changes hold, or none.

        Raises:
            ValueError: names the field.
        """
        config = changed(self.state.config, changes)
        self.state.take_config(config, Facts(self.state))
        return config

    def flush(self) -> int:
        """Forgets every cached prefix and pin; returns the tokens that can no longer be matched."""
        self.state.pins.clear()
        self.state.sessions.let_go_tails(self.state.pins)
        self.state.num_changes += 1
        return self.state.tree.flush() * self.state.config.page_size

    def list_pins(self, now_ns: int, tenant: str | None = None) -> list[PinView]:
        """The pins of a tenant (None: of all), oldest first."""
        self.state.set_now(now_ns)
        return self.state.pins.views(now_ns, tenant)

    def unpin(
        self,
        pin_ids: Sequence[str],
        now_ns: int,
        *,
        every: bool = False,
        tenant: str | None = None,
    ) -> tuple[list[str], list[str]]:
        """Removes pins, or `every` one of a tenant (None: of all).

        Returns:
            Ids that were removed, and ids that named no pin.
        """
        pins = self.list_pins(now_ns, tenant)
        wanted = [pin.pin_id for pin in pins] if every else list(dict.fromkeys(pin_ids))
        self.state.num_changes += 1
        removed = [pin_id for pin_id in wanted if self.state.pins.remove(pin_id, tenant)]
        return removed, [pin_id for pin_id in wanted if pin_id not in removed]

    def list_sessions(self, now_ns: int, tenant: str | None = None) -> list[SessionView]:
        """The sessions of a tenant (None: of all), least recently used first."""
        self.state.set_now(now_ns)
        return self.state.sessions.views(now_ns, tenant, self.state.pins)

    def close_session(
        self, name: str, now_ns: int, *, cache_domain: str = "", tenant: str | None = None
    ) -> bool:
        """Forgets a session of a tenant (None: that of any); its live turns leave it no tail.

        Returns:
            Whether there was one, or a live turn of one.
        """
        state = self.state
        state.set_now(now_ns)
        found = state.sessions.close(name, cache_domain, tenant, state.pins)
        for request in [*state.live.values(), *state.leaving]:
            theirs = request.submission
            is_turn = (request.session, theirs.cache_domain) == (name, cache_domain)
            if is_turn and tenant in (None, theirs.tenant):
                request.session, found = "", True
        return found

    def dump_tree(self, max_nodes: int) -> tuple[list[TreeNodeView], int]:
        """At most `max_nodes` nodes, parents first, and how many were left out."""
        return statistics.dump_tree(self.state.tree, max_nodes)

    def list_requests(
        self, now_ns: int, max_requests: int, tenant: str | None = None
    ) -> tuple[list[RequestView], int]:
        """Live requests of a tenant (None: of all), running ones first; how many were left out."""
        self.state.set_now(now_ns)
        return explain.list_requests(self.state, max_requests, tenant, self._worker_is_here)

    def explain(
        self, request_id: str, now_ns: int, tenant: str | None = None
    ) -> Explanation | None:
        """Why a request, by this core's id or its client's, is where it is; None: not known."""
        self.state.set_now(now_ns)
        return explain.explain(self.state, request_id, tenant, self._worker_is_here)

    def slot_books(self) -> SlotBooks:
        """Slots by owner, now."""
        return statistics.slot_books(self.state)

    def economy(self, now_ns: int) -> EconomyView:
        """What the pool is worth."""
        return statistics.economy(self.state, now_ns)

    def histograms(self) -> dict[str, HistogramView]:
        """How long pages live, lie idle before they are evicted, and wait for their next use."""
        return statistics.histograms(self.state.lives)

    def tenant_books(self) -> dict[str, TenantView]:
        """The books of each tenant, of a bounded number by name."""
        return statistics.tenant_books(self.state)

    def waiting_by_reason(self) -> dict[str, int]:
        """How many wait for what; keys are names of WaitingReason."""
        return explain.waiting_by_reason(self.state, self._worker_is_here)

    def counters(self) -> dict[str, int]:
        """Monotone counts by name; see core.counters."""
        state = self.state
        return asdict(state.counters) | {
            "evicted_tokens": state.num_evicted_tokens,
            "freed_slots": state.num_freed_slots,
        }

    @property
    def num_running(self) -> int:
        """Requests that hold a row and have not ended."""
        return self.state.num_running

    @property
    def num_waiting(self) -> int:
        """Requests that wait, those cut back and preheats included."""
        return len(self.state.waiting)

    @property
    def num_tree_nodes(self) -> int:
        """Nodes of the prefix tree, roots apart."""
        return self.state.tree.num_nodes

    @property
    def num_sessions(self) -> int:
        """Sessions that are known, whether or not anything of them is still cached."""
        return len(self.state.sessions)

    @property
    def num_session_tokens(self) -> int:
        """Tokens of the tails of sessions that are cached, each once."""
        return self.state.sessions.num_kept_tokens(self.state.pins)

    @property
    def num_in_flight(self) -> int:
        """Plans the worker has not answered."""
        return len(self.state.in_flight)

    # --- inside -------------------------------------------------------------------------------

    def _namespace(self, submission: Submission) -> Namespace:
        """A tenant's prefixes are its own, unless the operator made their domain public."""
        hello = self.state.hello
        is_public = submission.cache_domain in self.state.config.public_domains
        tenant = "" if is_public else submission.tenant
        return Namespace(tenant, submission.cache_domain, "", hello.model_hash, hello.kv_dtype)

    def _fit_to_length(self) -> list[Output]:
        """The new worker's length may be shorter: clips what lives, ends what is too long."""
        outputs: list[Output] = []
        for request in list(self.state.live.values()):
            request.clip(clip(self.state, request.asked))
            if not request.generates:
                too_long = request.num_prompt > self.state.hello.max_length
            else:
                too_long = len(request.tokens) >= request.end_tokens
            if too_long:
                message = f"the worker came back with a length of {self.state.hello.max_length}"
                ending = Ending.LENGTH if request.num_outputs else Ending.FAILED
                outputs.append(self.state.end(request, ending, message=message))
        return outputs

    def _expire(self) -> list[Output]:
        outputs: list[Output] = []
        self._drop_ended_deadlines()
        while self._deadlines and self._deadlines[0][0] <= self.state.now_ns:
            _, _, request = heapq.heappop(self._deadlines)
            message = f"the deadline passed after {request.num_outputs} tokens"
            outputs.append(
                self.state.end(request, Ending.DEADLINE, token_ids=NO_TOKENS, message=message)
            )
            self._drop_ended_deadlines()
        return outputs

    def _watch_deadline(self, deadline_ns: int, request: Request) -> None:
        if len(self._deadlines) > 2 * len(self.state.live) + 64:
            # Those that ended before their deadline: they leave in bulk, not each in turn.
            self._deadlines = [entry for entry in self._deadlines if _is_live(entry[2])]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (deadline_ns, request.arrival, request))

    def _drop_ended_deadlines(self) -> None:
        while self._deadlines and not _is_live(self._deadlines[0][2]):
            heapq.heappop(self._deadlines)


def _is_live(request: Request) -> bool:
    return request.state not in (State.LEAVING, State.GONE)
