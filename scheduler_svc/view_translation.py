"""What the core shows of requests, pins and books, as messages of the public schema.

The front passes them on as they are; it adds only texts.
"""

from collections.abc import Sequence
from dataclasses import asdict

from protos.radixd.v1 import admin_pb2
from scheduler_svc.core.request import Event
from scheduler_svc.core.views import (
    EconomyView,
    Explanation,
    HistogramView,
    PinView,
    RequestView,
    SessionView,
    TenantView,
)
from scheduler_svc.step_profile import StepProfile

_NS_PER_MS = 1_000_000


def pin_to_proto(pin: PinView) -> admin_pb2.Pin:
    """One pin, without its text."""
    return admin_pb2.Pin(
        pin_id=pin.pin_id,
        level=int(pin.level),  # type: ignore[arg-type]
        tenant=pin.tenant,
        cache_domain=pin.cache_domain,
        num_tokens=pin.num_tokens,
        kept_tokens=pin.kept_tokens,
        expires_in_ms=_milliseconds(pin.expires_in_ns),
        hits=pin.hits,
        first_token_ids=pin.first_token_ids,
    )


def session_to_proto(session: SessionView) -> admin_pb2.Session:
    """One session."""
    return admin_pb2.Session(
        session=session.name,
        tenant=session.tenant,
        cache_domain=session.cache_domain,
        num_tokens=session.num_tokens,
        kept_tokens=session.kept_tokens,
        expires_in_ms=_milliseconds(session.expires_in_ns),
        num_turns=session.num_turns,
        hits=session.hits,
    )


def request_to_proto(view: RequestView) -> admin_pb2.RequestView:
    """One request at a glance."""
    return admin_pb2.RequestView(
        request_id=view.request_id,
        tenant=view.tenant,
        state=int(view.phase),  # type: ignore[arg-type]
        waiting_reason=int(view.waiting_reason or 0),  # type: ignore[arg-type]
        priority=view.priority,
        workload=view.workload,
        prompt_tokens=view.prompt_tokens,
        output_tokens=view.output_tokens,
        computed_tokens=view.computed_tokens,
        cached_tokens=view.cached_tokens,
        retractions=view.retractions,
        age_ms=_milliseconds(view.age_ns),
        deadline_in_ms=_milliseconds(view.deadline_in_ns),
        slots=view.slots,
        preheat=view.preheat,
        drafted_tokens=view.drafted_tokens,
        accepted_tokens=view.accepted_tokens,
    )


def explanation_to_proto(explanation: Explanation, now_ns: int) -> admin_pb2.ExplainResponse:
    """Why a request is where it is; `now_ns` is when the core said so."""
    return admin_pb2.ExplainResponse(
        request=request_to_proto(explanation.request),
        summary=explanation.summary,
        matched_tokens=explanation.matched_tokens,
        rank=explanation.rank,
        num_waiting=explanation.num_waiting,
        order_terms=explanation.order_terms,
        needed_slots=explanation.needed_slots,
        promised_slots=explanation.promised_slots,
        available_slots=explanation.available_slots,
        victims=[
            admin_pb2.VictimScore(request_id=victim.request_id, score=victim.score)
            for victim in explanation.victims
        ],
        history=_history(explanation.history, now_ns),
        ending=explanation.ending,
    )


def economy_to_proto(economy: EconomyView) -> admin_pb2.Economy:
    """What the pool is worth."""
    return admin_pb2.Economy(**asdict(economy))


def histogram_to_proto(histogram: HistogramView) -> admin_pb2.Histogram:
    """Counts by bucket."""
    return admin_pb2.Histogram(bounds=histogram.bounds, counts=histogram.counts, sum=histogram.sum)


def tenant_to_proto(tenant: TenantView) -> admin_pb2.TenantBooks:
    """One tenant's share of the books."""
    return admin_pb2.TenantBooks(**asdict(tenant))


def step_profile_to_proto(profile: StepProfile) -> admin_pb2.StepProfile:
    """Where the time of the steps went."""
    return admin_pb2.StepProfile(
        decode=admin_pb2.StepSums(**asdict(profile.decode)),
        prompt=admin_pb2.StepSums(**asdict(profile.prompt)),
    )


def _history(events: Sequence[Event], now_ns: int) -> list[admin_pb2.HistoryEvent]:
    return [
        admin_pb2.HistoryEvent(
            ago_ms=_milliseconds(now_ns - event.at_ns), event=event.name, detail=event.detail
        )
        for event in events
    ]


def _milliseconds(duration_ns: int | None) -> int | None:
    # What is due already, as an expired deadline is until the next turn, is due in 0 ms.
    return None if duration_ns is None else max(0, duration_ns) // _NS_PER_MS
