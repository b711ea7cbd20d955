"""The scheduler core: facts in, decisions out.

Every call gets the time; none looks anything up.  The same calls with the same arguments produce
the same plans, byte for byte, in any process.  Not thread-safe: one thread owns it.
"""

from __future__ import annotations

import heapq
from array import array
from dataclasses import asdict, replace

from protos.plan import BatchResult, Hello
from scheduler_svc.core.config import SchedulerConfig
from scheduler_svc.core.door import clip, refuse
from scheduler_svc.core.messages import (
    Ending,
    Output,
    SlotBooks,
    Step,
    Submission,
    TreeNodeView,
)
from scheduler_svc.core.planner import Planner
from scheduler_svc.core.radix_node import Namespace, RadixNode
from scheduler_svc.core.request import Request, State
from scheduler_svc.core.state import NO_TOKENS, SchedulerState


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
        state.counters.submitted += 1
        refusal = refuse(state, submission)
        if refusal is not None:
            state.counters.rejected += 1
            return [refusal]
        hello = state.hello
        namespace = Namespace(submission.cache_domain, "", hello.model_hash, hello.kv_dtype)
        self._num_arrivals += 1
        request = Request(
            clip(state, submission),
            namespace,
            arrival=self._num_arrivals,
            num_admitted=state.num_admitted,
        )
        state.live[request.request_id] = request
        state.waiting.add(request)
        if submission.deadline_ns is not None:
            self._watch_deadline(submission.deadline_ns, request)
        if request.num_outputs:  # carried over from another scheduler, perhaps at its very end
            ending = self._ending_after(request, request.tokens[-1])
            if ending is not None:
                return [state.end(request, ending)]
        return self._expire(now_ns)

    def cancel(self, request_id: str, now_ns: int, *, finished: bool = False) -> list[Output]:
        """Ends a request; no token of it comes after this.  Nothing happens for an unknown id.

        `finished`: whoever reads its text found it complete, so it ends as any that stopped.
        """
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
        outputs = self._expire(now_ns)
        if not self._worker_is_here or self.num_in_flight >= self.state.config.pipeline_depth:
            return Step(plan=None, outputs=outputs)
        planner = Planner(self.state)
        plan = planner.plan()
        return Step(plan=plan, outputs=outputs + planner.outputs)

    def apply(self, result: BatchResult, now_ns: int) -> list[Output]:
        """Takes the worker's answer to the oldest plan in flight.

        Raises:
            ValueError: the result does not answer that plan.  Nothing has changed then; the
                caller gives the worker up.
        """
        state = self.state
        self._check_result(result)
        plan = state.in_flight.popleft()
        tokens = iter(result.token_ids)
        outputs: list[Output] = []
        for request, extend_len, samples in plan.rows:
            token = next(tokens) if samples else None
            request.num_in_flight -= 1
            request.num_acked += extend_len
            if request.state is State.LEAVING:
                state.let_go(request)
                continue
            was_prefill = request.num_acked - extend_len < request.num_prompt or extend_len > 1
            if token is not None:
                request.tokens.append(token)
                request.num_pending -= 1
            if was_prefill and request.state is State.RUNNING:
                self._share(request)
            outputs += self._news(request, token)
            state.let_go(request)
        state.pool.settle(result.step_id)
        return outputs

    # --- the worker ---------------------------------------------------------------------------

    def lose_worker(self, now_ns: int) -> list[Output]:
        """The worker or its pool is gone: what ran waits for the next one, with its tokens."""
        self._worker_is_here = False
        self.state.lose_pool()
        return self._expire(now_ns)

    def regain_worker(self, hello: Hello, now_ns: int) -> list[Output]:
        """A worker with an empty pool is there.  One with another model ends all requests."""
        state = self.state
        if self._worker_is_here:
            state.lose_pool()
        outputs: list[Output] = []
        if (hello.model_hash, hello.vocab_size) != (state.hello.model_hash, state.hello.vocab_size):
            message = f"the worker came back with another model: {hello.model_id}"
            live = list(state.live.values())
            outputs += [state.end(request, Ending.FAILED, message=message) for request in live]
        state.open_pool(hello)
        self._worker_is_here = True
        return outputs + self._fit_to_length() + self._expire(now_ns)

    # --- administration -----------------------------------------------------------------------

    def flush(self) -> int:
        """Forgets every cached prefix; returns the tokens that can no longer be matched."""
        return self.state.tree.flush() * self.state.config.page_size

    def dump_tree(self, max_nodes: int) -> tuple[list[TreeNodeView], int]:
        """At most `max_nodes` nodes, parents first, and how many were left out."""
        views: list[TreeNodeView] = []
        position: dict[RadixNode, int] = {}
        num_left_out = 0
        for node in self.state.tree.nodes():
            if len(views) >= max_nodes:
                num_left_out += 1
                continue
            position[node] = len(views)
            token_ids = array("i", node.key)
            views.append(
                TreeNodeView(
                    parent=-1 if node.parent is None else position[node.parent],
                    token_ids=token_ids,
                    locked=node.num_holds > 0,
                    hits=node.hits,
                    cache_domain=node.namespace.cache_domain if node.namespace else "",
                )
            )
        return views, num_left_out

    def slot_books(self) -> SlotBooks:
        """Slots by owner, now."""
        state, size = self.state, self.state.config.page_size
        holders = [*state.running.values(), *state.leaving]
        return SlotBooks(
            total=state.num_slots,
            free=state.pool.num_free * size,
            private=sum(map(state.kv.num_private_pages, holders)) * size,
            evictable=state.tree.num_evictable_pages * size,
            locked=state.tree.num_locked_pages * size,
            in_flight=state.pool.num_in_flight * size,
        )

    def counters(self) -> dict[str, int]:
        """Monotone counts by name; see core.counters."""
        return asdict(self.state.counters) | {"evicted_tokens": self.state.num_evicted_tokens}

    @property
    def num_running(self) -> int:
        """Requests that hold a row and have not ended."""
        return len(self.state.running)

    @property
    def num_waiting(self) -> int:
        """Requests that wait, those cut back and preheats included."""
        return len(self.state.waiting)

    @property
    def num_tree_nodes(self) -> int:
        """Nodes of the prefix tree, roots apart."""
        return self.state.tree.num_nodes

    @property
    def num_in_flight(self) -> int:
        """Plans the worker has not answered."""
        return len(self.state.in_flight)

    # --- inside -------------------------------------------------------------------------------

    def _check_result(self, result: BatchResult) -> None:
        in_flight = self.state.in_flight
        if not in_flight or in_flight[0].step_id != result.step_id:
            raise ValueError(f"result of step {result.step_id} answers no plan in flight")
        num_sampled = sum(row.samples for row in in_flight[0].rows)
        if len(result.token_ids) != num_sampled:
            raise ValueError(f"{len(result.token_ids)} tokens for {num_sampled} sampling rows")
        if num_sampled and not 0 <= min(result.token_ids) <= max(result.token_ids) < (
            self.state.hello.vocab_size
        ):
            raise ValueError(f"step {result.step_id} sampled a token outside the vocabulary")

    def _fit_to_length(self) -> list[Output]:
        """The new worker's length may be shorter: clips what lives, ends what is too long."""
        outputs: list[Output] = []
        for request in list(self.state.live.values()):
            request.submission = clip(self.state, request.submission)
            if request.submission.preheat:
                too_long = request.num_prompt > self.state.hello.max_length
            else:
                too_long = request.num_outputs >= request.submission.max_tokens
            if too_long:
                message = f"the worker came back with a length of {self.state.hello.max_length}"
                ending = Ending.LENGTH if request.num_outputs else Ending.FAILED
                outputs.append(self.state.end(request, ending, message=message))
        return outputs

    def _share(self, request: Request) -> None:
        """Puts what a prompt has computed so far where others can match it."""
        state = self.state
        if request.submission.no_store:
            return
        moved = state.kv.commit(request, state.next_step_id - 1)
        if moved is not None:
            state.remap(request, *moved)

    def _news(self, request: Request, token: int | None) -> list[Output]:
        """What its submitter hears after a step."""
        if token is not None:
            token_ids = array("i", [token])
            self.state.counters.generated_tokens += 1
            ending = self._ending_after(request, token)
            if ending is not None:
                return [self.state.end(request, ending, token_ids=token_ids)]
            cached = request.cached_tokens or 0
            return [
                Output(
                    request_id=request.request_id,
                    token_ids=token_ids,
                    cached_tokens=cached,
                )
            ]
        size = self.state.config.page_size
        whole = request.num_prompt - request.num_prompt % size
        if request.submission.preheat and request.num_acked >= whole:
            computed = whole - (request.cached_tokens or 0)
            done = self.state.end(request, Ending.PREHEATED)
            return [replace(done, computed_tokens=computed)]
        return []

    def _ending_after(self, request: Request, token: int) -> Ending | None:
        submission = request.submission
        is_eos = token in self.state.hello.eos_token_ids and not submission.ignore_eos
        if is_eos or token in submission.stop_token_ids:
            return Ending.STOP
        return Ending.LENGTH if request.num_outputs >= submission.max_tokens else None

    def _expire(self, now_ns: int) -> list[Output]:
        outputs: list[Output] = []
        self._drop_ended_deadlines()
        while self._deadlines and self._deadlines[0][0] <= now_ns:
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
