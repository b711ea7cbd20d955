"""Digests what the worker answered: new tokens, what is computed, who is done.  Plans nothing."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from protos.plan import BatchResult, LogprobColumns
from scheduler_svc.core.in_flight import PendingRemap, PlanInFlight, PlannedRow
from scheduler_svc.core.messages import Ending, Output
from scheduler_svc.core.request import Request, State
from scheduler_svc.core.scores import check_scores, note_scored, scores_by_request, with_scores
from scheduler_svc.core.speculation import note_accepted
from scheduler_svc.core.state import SchedulerState


def check_result(state: SchedulerState, result: BatchResult) -> None:
    """Whether a result can be the answer to the oldest plan in flight.

    Raises:
        ValueError: it cannot.
    """
    if not state.in_flight or state.in_flight[0].step_id != result.step_id:
        raise ValueError(f"result of step {result.step_id} answers no plan in flight")
    plan = state.in_flight[0]
    _check_counts(plan, result)
    if result.token_ids and not 0 <= min(result.token_ids) <= max(result.token_ids) < (
        state.hello.vocab_size
    ):
        raise ValueError(f"step {result.step_id} sampled a token outside the vocabulary")
    wanted: list[int] = []
    for request, count in _sampling(plan, result) if result.logprobs else ():
        k = request.submission.sampling.logprobs
        wanted += [k] * count if k >= 0 else ()
    if result.logprobs is not None and (len(wanted), sum(wanted)) != (
        len(result.logprobs.chosen),
        len(result.logprobs.top_ids),
    ):
        raise ValueError(f"step {result.step_id} has other log probabilities than were asked for")
    check_scores(plan, result)


def apply_result(state: SchedulerState, result: BatchResult) -> list[Output]:
    """Takes the answer to the oldest plan in flight, which was checked."""
    plan = state.in_flight.popleft()
    state.last_step_ns = state.now_ns
    num_decodes = len(plan.decodes) + plan.num_verified_tokens
    state.step_time.note(
        num_decodes,
        plan.num_prefill_tokens,
        result.forward_ns,
        plan.num_prefill_pairs,
        plan.num_scored,
    )
    if plan.sent_alone_ns is not None:
        state.step_time.note_turnaround(state.now_ns - plan.sent_alone_ns, result.forward_ns)
    logprobs, scores = _logprobs_by_request(plan, result), scores_by_request(plan, result)
    outputs = _fail_rows(state, plan, result) if result.row_faults else []
    token_ids = plan.tokens_of_decodes(result.token_ids)
    _apply_decodes(state, plan.decodes, token_ids, logprobs, outputs)
    for row, sampled in _rows_with_tokens(plan, result):
        request = row.request
        request.num_unacked -= row.extend_len
        if row.num_samples > len(sampled):
            state.kv.give_up(request, row.num_samples - len(sampled))
        if request.state is State.LEAVING:
            state.let_go(request)
            continue
        request.num_pending -= row.num_samples
        tokens = _append(request, sampled)
        if row.drafts:
            note_accepted(state, request, len(tokens) - 1)
        if request.state is State.RUNNING and row.drafts is None:
            _share(state, request)
            if row.num_samples and state.stems is not None:
                state.stems.place(request)
        if row.num_scored:
            note_scored(request, row.num_scored)
        news = _news(state, request, tokens, logprobs.get(request.request_id))
        if row.num_scored:
            news = with_scores(request, scores[request.request_id], news)
        outputs += news
        state.let_go(request)
    if state.pool.settle(result.step_id):
        state.num_changes += 1
    return outputs


def _fail_rows(state: SchedulerState, plan: PlanInFlight, result: BatchResult) -> list[Output]:
    """Ends the requests whose rows cannot go on, as a cancel would: what this step sampled for them
    is never looked at."""
    problems = {fault.row: fault.message for fault in result.row_faults}
    requests = [*plan.decodes, *(row.request for row in plan.rows)]
    return [
        # Its form is all of a request that a row can fail by.
        state.end(request, Ending.FAILED, message=problems[request.row])._replace(
            field="constraint"
        )
        for request in requests
        if request.row in problems and request.state not in (State.LEAVING, State.GONE)
    ]


def ending_after(request: Request, token: int) -> Ending | None:
    """How a request ends with this token, its last one; None when it goes on."""
    if token in request.stop_ids:
        return Ending.STOP
    return Ending.LENGTH if len(request.tokens) >= request.end_tokens else None


def _append(request: Request, tokens: Sequence[int]) -> tuple[int, ...]:
    """Makes sampled tokens known, up to one that ends the request."""
    taken: list[int] = []
    for token in tokens:
        taken.append(token)
        request.tokens.append(token)
        if ending_after(request, token) is not None:
            break
    return tuple(taken)


def _rows_with_tokens(
    plan: PlanInFlight, result: BatchResult
) -> Iterator[tuple[PlannedRow, array[int]]]:
    """Each row behind the decodes, and what it sampled."""
    counts, at = iter(result.num_sampled[len(plan.decodes) :]), len(plan.decodes)
    for row in plan.rows:
        end = at + (next(counts, 1) if row.num_samples else 0)
        yield row, result.token_ids[at:end]
        at = end


def _check_counts(plan: PlanInFlight, result: BatchResult) -> None:
    """Each sampling row has its tokens: one, and one more for each draft that was right."""
    num_sampling = len(plan.decodes) + sum(row.num_samples > 0 for row in plan.rows)
    counts, num_tokens = result.num_sampled, len(result.token_ids)
    if num_tokens != (sum(counts) if counts else num_sampling):
        raise ValueError(f"{num_tokens} tokens for {num_sampling} sampling rows")
    if not counts:
        return
    if len(counts) != num_sampling or counts[: len(plan.decodes)].strip(b"\1"):
        raise ValueError(f"step {result.step_id} counts the tokens of other rows than sampled")
    for row, tokens in _rows_with_tokens(plan, result):
        if not row.num_samples:
            continue
        right = row.drafts[: len(tokens) - 1] if row.drafts else ()
        if not 1 <= len(tokens) <= row.num_samples or list(tokens[:-1]) != list(right):
            raise ValueError(f"step {result.step_id} sampled behind a draft that was wrong")


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
            outputs += _news(state, request, (token,), logprobs.get(request.request_id))
            state.let_go(request)
            continue
        request.num_pending -= 1
        tokens = request.tokens
        tokens.append(token)
        if logprobs or token in request.stop_ids or len(tokens) >= request.end_tokens:
            outputs += _news(state, request, (token,), logprobs.get(request.request_id))
            continue
        num_generated += 1
        if many:
            served.append(request)
        cached = request.cached_tokens or 0
        fields = (request.request_id, (token,), cached, None, "", "", 0, None, None, None)
        append(new(Output, fields))
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
    state: SchedulerState,
    request: Request,
    tokens: tuple[int, ...],
    logprobs: LogprobColumns | None,
) -> list[Output]:
    """What its submitter hears after a step that brought these tokens."""
    if tokens:
        state.counters.generated_tokens += len(tokens)
        state.ledger.note_generated([request] * len(tokens), len(tokens))
        logprobs = _first(logprobs, len(tokens))
        ending = ending_after(request, tokens[-1])
        if ending is not None:
            return [state.end(request, ending, token_ids=tokens, logprobs=logprobs)]
        cached = request.cached_tokens or 0
        return [Output(request.request_id, tokens, cached, logprobs=logprobs)]
    if not (request.generates or request.is_preheat or request.num_unscored):
        return [state.end(request, Ending.LENGTH)]
    size = state.config.page_size
    whole = request.num_prompt - request.num_prompt % size
    if request.is_preheat and request.state is State.RUNNING and request.num_acked >= whole:
        computed = whole - (request.cached_tokens or 0)
        done = state.end(request, Ending.PREHEATED, pin=state.pin(request))
        return [done._replace(computed_tokens=computed)]
    return []


def _sampling(plan: PlanInFlight, result: BatchResult) -> Iterator[tuple[Request, int]]:
    """Those that sampled and how many tokens, in plan order."""
    for request in plan.decodes_as_planned():
        yield request, 1
    for row, tokens in _rows_with_tokens(plan, result):
        if tokens:
            yield row.request, len(tokens)


def _logprobs_by_request(plan: PlanInFlight, result: BatchResult) -> dict[str, LogprobColumns]:
    """Each request's part of the columns."""
    columns = result.logprobs
    if columns is None:
        return {}
    found: dict[str, LogprobColumns] = {}
    at = first = 0
    for request, count in _sampling(plan, result):
        k = request.submission.sampling.logprobs
        if k < 0:
            continue
        end, last = at + count, first + count * k
        found[request.request_id] = LogprobColumns(
            chosen=columns.chosen[at:end],
            top_ids=columns.top_ids[first:last],
            top_logprobs=columns.top_logprobs[first:last],
        )
        at, first = end, last
    return found


def _first(columns: LogprobColumns | None, num_tokens: int) -> LogprobColumns | None:
    """The part of a request's columns that is of its first `num_tokens`."""
    if columns is None or num_tokens == len(columns.chosen):
        return columns
    end = len(columns.top_ids) // len(columns.chosen) * num_tokens
    return LogprobColumns(
        chosen=columns.chosen[:num_tokens],
        top_ids=columns.top_ids[:end],
        top_logprobs=columns.top_logprobs[:end],
    )
