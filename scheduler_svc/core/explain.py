"""Says why a request is where it is, with the numbers its fate hangs on.  Changes nothing."""

from __future__ import annotations

from scheduler_svc.core.facts import Facts
from scheduler_svc.core.memory_of_ended import Ended
from scheduler_svc.core.request import Request, State
from scheduler_svc.core.retraction import RETRACTION_POLICIES, victims_in_order
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.views import (
    Explanation,
    Phase,
    RequestView,
    VictimView,
    WaitingReason,
)
from scheduler_svc.core.waiting_order import WAITING_ORDERS, Standing
from scheduler_svc.core.waiting_queue import WaitingCounts

MOST_VICTIMS = 64

_SENTENCES = {
    WaitingReason.BEHIND_OTHERS: "{before} requests come before it",
    WaitingReason.NO_ROW: "all {rows} rows are taken",
    WaitingReason.NO_SLOTS: (
        "it and those that run are expected to need {needed} slots more, and {available} can be had"
    ),
    WaitingReason.RETURNING: (
        "it was cut back and returns when its whole need fits: with those that run {needed} "
        "slots more, and {available} can be had"
    ),
    WaitingReason.TWIN: "{leader} computes a prefix that it shares",
    WaitingReason.TENANT_CAP: "its tenant holds as many slots as it may",
    WaitingReason.NO_BUDGET: "the step before was full",
    WaitingReason.PREHEAT: "preheats run when nobody else waits",
    WaitingReason.NO_WORKER: "no worker is attached",
}


def list_requests(
    state: SchedulerState, max_requests: int, tenant: str | None, worker_is_here: bool
) -> tuple[list[RequestView], int]:
    """Running requests, then those cut back, then the queue; and how many were left out."""
    requests = [*state.running.values(), *_retracting(state), *state.waiting.requests()]
    wanted = [r for r in requests if tenant in (None, r.submission.tenant)]
    asker = _Asker(state, worker_is_here)
    views = [view_of(asker, r) for r in wanted[:max_requests]]
    return views, len(wanted) - len(views)


def explain(
    state: SchedulerState, request_id: str, tenant: str | None, worker_is_here: bool
) -> Explanation | None:
    """Everything there is to say about one request; None: not known, or another tenant's."""
    request = _find(state, request_id, tenant)
    if request is None:
        ended = state.ended.find(request_id, tenant)
        return None if ended is None else _explain_ended(ended)
    asker = _Asker(state, worker_is_here)
    view = view_of(asker, request)
    if request.state is State.WAITING:
        return _explain_waiting(asker, request, view, tenant)
    return Explanation(
        request=view,
        summary=_summary_of_running(request, view),
        victims=_victims(asker, tenant),
        history=tuple(request.events),
    )


def waiting_by_reason(state: SchedulerState, worker_is_here: bool) -> dict[str, int]:
    """How many wait for what: the next one for what stopped it, those behind it for their turn."""
    found = {reason.name: 0 for reason in WaitingReason}
    if not worker_is_here:
        found[WaitingReason.NO_WORKER.name] = len(state.waiting)
        return found
    counts = state.waiting.counts(Facts(state))
    found[WaitingReason.TWIN.name] = counts.held
    found[WaitingReason.TENANT_CAP.name] = counts.capped
    found[WaitingReason.RETURNING.name] = counts.returned
    found[WaitingReason.PREHEAT.name] = counts.preheats
    found[WaitingReason.BEHIND_OTHERS.name] = counts.fresh
    reason = _stopped_fresh(state, counts)
    if reason is not None:
        found[WaitingReason.BEHIND_OTHERS.name] -= 1
        found[reason.name] += 1
    return found


class _Asker:
    """One question: the state, and what is looked up once for all requests it is about."""

    def __init__(self, state: SchedulerState, worker_is_here: bool) -> None:
        self.state = state
        self.facts = Facts(state)
        self.worker_is_here = worker_is_here
        verdict = state.verdict
        # Without rows nobody is looked at: it is the next one that lacks a row.
        lacks_row = verdict is not None and not verdict.request_id
        self.lacks_row = state.waiting.first(self.facts) if lacks_row else None


def view_of(asker: _Asker, request: Request) -> RequestView:
    """One live request at a glance."""
    state = asker.state
    submission, size = request.submission, state.config.page_size
    phase = _phase(state, request)
    reason = _reason(asker, request) if phase is Phase.WAITING else None
    deadline_ns = submission.deadline_ns
    return RequestView(
        request_id=submission.client_request_id or request.request_id,
        tenant=submission.tenant,
        phase=phase,
        waiting_reason=reason,
        priority=submission.priority,
        workload=submission.workload,
        prompt_tokens=request.num_prompt,
        output_tokens=request.num_outputs,
        computed_tokens=request.num_computed,
        cached_tokens=request.cached_tokens,
        retractions=request.num_retractions,
        age_ns=state.now_ns - request.submitted_ns,
        deadline_in_ns=None if deadline_ns is None else max(0, deadline_ns - state.now_ns),
        slots=len(request.pages) * size,
        preheat=request.is_preheat,
        drafted_tokens=request.num_drafted,
        accepted_tokens=request.num_accepted,
    )


# --- inside -----------------------------------------------------------------------------------


def _find(state: SchedulerState, request_id: str, tenant: str | None) -> Request | None:
    known = state.live.get(request_id)
    named = [r for r in state.live.values() if r.submission.client_request_id == request_id]
    found = named if known is None else [known, *named]
    return next((r for r in found if tenant in (None, r.submission.tenant)), None)


def _phase(state: SchedulerState, request: Request) -> Phase:
    if request.state is State.WAITING:
        return Phase.WAITING
    if request.state is State.RETRACTING:
        return Phase.RETRACTING
    return Phase.PREFILL if request.request_id in state.prefilling else Phase.DECODE


def _reason(asker: _Asker, request: Request) -> WaitingReason:
    state, facts = asker.state, asker.facts
    if not asker.worker_is_here:
        return WaitingReason.NO_WORKER
    if state.waiting.leader_of(request) is not None:
        return WaitingReason.TWIN
    tenant = request.submission.tenant
    if tenant in state.config.tenants and facts.standing(tenant) is Standing.CAPPED:
        return WaitingReason.TENANT_CAP
    if state.waiting.is_returning(request):
        return WaitingReason.RETURNING
    if request.is_preheat:
        return WaitingReason.PREHEAT
    verdict = state.verdict
    if verdict is None:
        return WaitingReason.BEHIND_OTHERS
    stopped = verdict.request_id == request.request_id or request is asker.lacks_row
    return verdict.reason if stopped else WaitingReason.BEHIND_OTHERS


def _stopped_fresh(state: SchedulerState, counts: WaitingCounts) -> WaitingReason | None:
    """What the next one lacks, where that is a fresh request; the others are behind it."""
    verdict = state.verdict
    if verdict is None or not counts.fresh:
        return None
    if not verdict.request_id:
        return None if counts.returned else verdict.reason
    stopped = state.live.get(verdict.request_id)
    if stopped is None or stopped.is_preheat or state.waiting.is_returning(stopped):
        return None
    return verdict.reason if stopped.state is State.WAITING else None


def _explain_waiting(
    asker: _Asker, request: Request, view: RequestView, tenant: str | None
) -> Explanation:
    state, facts = asker.state, asker.facts
    size, reason = state.config.page_size, view.waiting_reason
    assert reason is not None
    promise = state.estimate.open(state.running.values(), state.kv)
    promised, needed = promise.pages_ahead(None), promise.pages_ahead(request)
    matched = facts.cached_tokens(request)
    # Its prefix is not attached: what the tree holds of it need not be found anew.
    needed = max(promised, needed - matched // size)
    headroom = state.headroom_pages if state.num_running else 0
    available = state.kv.num_available_pages - headroom
    # What it matched can be had until it takes it.
    available -= state.tree.num_unheld_pages(state.kv.match_key(request))
    rank = state.waiting.rank(request, facts)
    sentence = _SENTENCES[reason].format(
        before=rank - 1,
        rows=state.num_rows,
        needed=needed * size,
        available=max(0, available) * size,
        leader=_leader(state, request),
    )
    order = WAITING_ORDERS[state.config.waiting_order]
    return Explanation(
        request=view,
        summary=f"waits, place {rank} of {len(state.waiting)}: {sentence}",
        matched_tokens=matched,
        rank=rank,
        num_waiting=len(state.waiting),
        order_terms=order.terms(request, facts),
        needed_slots=needed * size,
        promised_slots=promised * size,
        available_slots=max(0, available) * size,
        victims=_victims(asker, tenant),
        history=tuple(request.events),
    )


def _summary_of_running(request: Request, view: RequestView) -> str:
    if view.phase is Phase.RETRACTING:
        return "was cut back; it waits again once its last plan is answered"
    if view.phase is Phase.PREFILL:
        return f"computes its prompt: {request.num_computed} of {request.num_tokens} tokens"
    most = request.submission.max_tokens
    told = f"generates: {request.num_outputs} of at most {most} tokens"
    if not request.num_drafted:
        return told
    return f"{told}; {request.num_accepted} of {request.num_drafted} guessed ahead were right"


def _explain_ended(ended: Ended) -> Explanation:
    view = RequestView(
        request_id=ended.client_request_id or ended.request_id,
        tenant=ended.tenant,
        phase=Phase.ENDED,
        waiting_reason=None,
        priority=ended.priority,
        workload=ended.workload,
        prompt_tokens=ended.num_prompt,
        output_tokens=ended.num_outputs,
        computed_tokens=ended.num_computed,
        cached_tokens=ended.cached_tokens,
        retractions=ended.num_retractions,
        age_ns=ended.events[-1].at_ns - ended.submitted_ns,
        deadline_in_ns=None,
        slots=0,
        preheat=ended.is_preheat,
        drafted_tokens=ended.num_drafted,
        accepted_tokens=ended.num_accepted,
    )
    ending = ended.ending.name
    detail = ended.events[-1].detail
    summary = f"ended: {detail}" if detail else f"ended: {ending.lower()}"
    return Explanation(request=view, summary=summary, history=ended.events, ending=ending)


def _leader(state: SchedulerState, request: Request) -> str:
    """Whom a twin waits for, by its client's name; of another tenant, nothing is told."""
    leader = state.live.get(state.waiting.leader_of(request) or "")
    if leader is None or leader.submission.tenant != request.submission.tenant:
        return "another request"
    return f"request {leader.submission.client_request_id or leader.request_id}"


def _victims(asker: _Asker, tenant: str | None) -> tuple[VictimView, ...]:
    state = asker.state
    policy = RETRACTION_POLICIES[state.config.retraction_policy]
    running = (r for r in state.running.values() if tenant in (None, r.submission.tenant))
    ordered = victims_in_order(policy, running, asker.facts)
    return tuple(
        VictimView(
            request_id=request.submission.client_request_id or request.request_id, score=score
        )
        for request, score in ordered[:MOST_VICTIMS]
    )


def _retracting(state: SchedulerState) -> list[Request]:
    return [request for request in state.leaving if request.state is State.RETRACTING]
