"""Digests what the worker answered: new tokens, what is computed, who is done.  Plans nothing."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from protos.plan import BatchResult, LogprobColumns
from scheduler_svc.core.in_flight import PendingRemap, PlanInFlight
from scheduler_svc.core.messages import Ending, Output
from scheduler_svc.core.request import Request, State
from scheduler_svc.core.state import SchedulerState


def check_result(state: SchedulerState, result: BatchResult) -> None:
    """Whether a result can be the answer to the oldest plan in flight.

    Raises:
        ValueError: it cannot.
    """
    if not state.in_flight or state.in_flight[0].step_id != result.step_id:
        raise ValueError(f"result of step {result.step_id} answers no plan in flight")
    plan = state.in_flight[0]
    num_sampled = len(plan.decodes) + sum(row.samples for row in plan.rows)
    if len(result.token_ids) != num_sampled:
        raise ValueError(f"{len(result.token_ids)} tokens for {num_sampled} sampling rows")
    if num_sampled and not 0 <= min(result.token_ids) <= max(result.token_ids) < (
        state.hello.vocab_size
    ):
        raise ValueError(f"step {result.step_id} sampled a token outside the vocabulary")
    asked = [r.submission.sampling.logprobs for r in _sampling(plan)] if result.logprobs else ()
    wanted = [k for k in asked if k >= 0]
    if result.logprobs is not None and (len(wanted), sum(wanted)) != (
        len(result.logprobs.chosen),
        len(result.logprobs.top_ids),
    ):
        raise ValueError(f"step {result.step_id} has other log probabilities than were asked for")


def apply_result(state: SchedulerState, result: BatchResult) -> list[Output]:
    """Takes the answer to the oldest plan in flight, which was checked."""
    plan = state.in_flight.popleft()
    state.last_step_ns = state.now_ns
    state.step_time.note(len(plan.decodes), plan.num_prefill_tokens, result.forward_ns)
    logprobs = _logprobs_by_request(plan, result.logprobs)
    outputs: list[Output] = []
    _apply_decodes(state, plan.decodes, result.token_ids, logprobs, outputs)
    tokens = iter(result.token_ids[len(plan.decodes) :])
    for request, extend_len, samples in plan.rows:
        token = next(tokens) if samples else None
        request.num_unacked -= extend_len
        if request.state is State.LEAVING:
            state.let_go(request)
            continue
        if token is not None:
            request.tokens.append(token)
            request.num_pending -= 1
        if request.state is State.RUNNING:
            _share(state, request)
        outputs += _news(state, request, token, logprobs.get(request.request_id))
        state.let_go(request)
    if state.pool.settle(result.step_id):
        state.num_changes += 1
    return outputs


def ending_after(request: Request, token: int) -> Ending | None:
    """How a request ends with this token, its last one; None when it goes on."""
    if token in request.stop_ids:
        return Ending.STOP
    return Ending.LENGTH if len(request.tokens) >= request.end_tokens else None


def _apply_decodes(
    state: SchedulerState,
    decodes: list[Request],
    token_ids: array[int],
    logprobs: dict[str, LogprobColumns],
    outputs: list[Output],
) -> None:
    """One token for each stream.  Like its counterpart in the plan builder, this loop runs for
    every token that is served."""
    running, append = State.RUNNING, outputs.append
    new = tuple.__new__  # half the time of naming the fields
    served: list[Request] = []
    num_generated, many = 0, state.ledger.has_many
    for request, token in zip(decodes, token_ids, strict=False):  # prompts' tokens follow
        request.num_unacked -= 1
        if request.state is not running:
            if request.state is State.LEAVING:
                state.let_go(request)
                continue
            request.tokens.append(token)
            request.num_pending -= 1
            outputs += _news(state, request, token, logprobs.get(request.request_id))
            state.let_go(request)
            continue
        request.num_pending -= 1
        tokens = request.tokens
        tokens.append(token)
        if logprobs or token in request.stop_ids or len(tokens) >= request.end_tokens:
            outputs += _news(state, request, token, logprobs.get(request.request_id))
            continue
        num_generated += 1
        if many:
            served.append(request)
        cached = request.cached_tokens or 0
        append(new(Output, (request.request_id, (token,), cached, None, "", "", 0, None, None)))
    state.counters.generated_tokens += num_generated
    state.ledger.note_generated(served, num_generated)


def _share(state: SchedulerState, request: Request) -> None:
    """Puts what a prompt has computed so far where others can match it."""
    state.num_changes += 1
    if request.submission.no_store:
        return
    moved = state.kv.commit(request, state.next_step_id - 1)
    if moved is not None:
        state.remaps.append(PendingRemap(request, moved[0], len(moved[1])))
    assert request.lease is not None
    if request.num_acked >= request.num_prompt or request.lease.node.dead:
        state.twins.stop_leading(request)
        state.waiting.release_held(request.request_id)
    else:
        state.waiting.release_held(request.request_id, request.num_acked)


def _news(
    state: SchedulerState, request: Request, token: int | None, logprobs: LogprobColumns | None
) -> list[Output]:
    """What its submitter hears after a step."""
    if token is not None:
        state.counters.generated_tokens += 1
        state.ledger.note_generated((request,), 1)
        ending = ending_after(request, token)
        if ending is not None:
            return [state.end(request, ending, token_ids=(token,), logprobs=logprobs)]
        cached = request.cached_tokens or 0
        return [Output(request.request_id, (token,), cached, logprobs=logprobs)]
    size = state.config.page_size
    whole = request.num_prompt - request.num_prompt % size
    if request.is_preheat and request.state is State.RUNNING and request.num_acked >= whole:
        computed = whole - (request.cached_tokens or 0)
        done = state.end(request, Ending.PREHEATED, pin=state.pin(request))
        return [done._replace(computed_tokens=computed)]
    return []


def _sampling(plan: PlanInFlight) -> Iterator[Request]:
    """Those that sample, in plan order."""
    yield from plan.decodes
    for row in plan.rows:
        if row.samples:
            yield row.request


def _logprobs_by_request(
    plan: PlanInFlight, columns: LogprobColumns | None
) -> dict[str, LogprobColumns]:
    """Each request's part of the columns."""
    if columns is None:
        return {}
    found: dict[str, LogprobColumns] = {}
    at = first = 0
    for request in _sampling(plan):
        k = request.submission.sampling.logprobs
        if k < 0:
            continue
        found[request.request_id] = LogprobColumns(
            chosen=columns.chosen[at : at + 1],
            top_ids=columns.top_ids[first : first + k],
            top_logprobs=columns.top_logprobs[first : first + k],
        )
        at, first = at + 1, first + k
    return found
