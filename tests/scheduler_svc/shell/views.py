"""Hand-made views, every field of its own value, so that none can be mistaken for another."""

from array import array

from scheduler_svc.core.messages import PinLevel
from scheduler_svc.core.request import Event
from scheduler_svc.core.views import (
    EconomyView,
    Explanation,
    HistogramView,
    Phase,
    PinView,
    RequestView,
    SessionView,
    TenantView,
    VictimView,
    WaitingReason,
)


def a_pin(pin_id: str, **changes) -> PinView:
    values = {
        "level": PinLevel.SOFT,
        "tenant": "",
        "cache_domain": "shared",
        "num_tokens": 11,
        "kept_tokens": 12,
        "expires_in_ns": 13_999_999,
        "hits": 14,
        "first_token_ids": array("i", [15, 16]),
    }
    return PinView(pin_id=pin_id, **(values | changes))


def a_session(name: str, **changes) -> SessionView:
    values = {
        "tenant": "",
        "cache_domain": "shared",
        "num_tokens": 11,
        "kept_tokens": 12,
        "expires_in_ns": 13_999_999,
        "num_turns": 14,
        "hits": 15,
    }
    return SessionView(name=name, **(values | changes))


def a_request(request_id: str, **changes) -> RequestView:
    values = {
        "tenant": "",
        "phase": Phase.WAITING,
        "waiting_reason": WaitingReason.TWIN,
        "priority": -3,
        "workload": "code",
        "prompt_tokens": 21,
        "output_tokens": 22,
        "computed_tokens": 23,
        "cached_tokens": 24,
        "retractions": 25,
        "age_ns": 26_000_000,
        "deadline_in_ns": 27_000_000,
        "slots": 28,
        "preheat": True,
        "drafted_tokens": 29,
        "accepted_tokens": 30,
    }
    return RequestView(request_id=request_id, **(values | changes))


def an_explanation(request: RequestView, now_ns: int) -> Explanation:
    return Explanation(
        request=request,
        summary="It waits.",
        matched_tokens=31,
        rank=32,
        num_waiting=33,
        order_terms={"prefix": 0.5},
        needed_slots=34,
        promised_slots=35,
        available_slots=36,
        victims=(VictimView(request_id="v", score=(1.0, 2.5)),),
        history=(Event(now_ns - 37_000_000, "submitted", "38 tokens"),),
        ending="STOP",
    )


def an_economy() -> EconomyView:
    return EconomyView(
        reuse_rate=0.41,
        density=4.2,
        tokens_per_gib=43.5,
        turnover=0.44,
        recompute_tax=0.45,
        volatility=0.46,
        freed_slots=47,
        context_tokens=48,
        pinned_slots=49,
    )


def a_histogram() -> HistogramView:
    return HistogramView(bounds=(1.0, 2000.0), counts=(5, 6, 7), sum=9500.0)


def a_tenant() -> TenantView:
    return TenantView(
        running=51,
        waiting=52,
        held_slots=53,
        pinned_slots=54,
        prompt_tokens=55,
        cached_tokens=56,
        generated_tokens=57,
        computed_tokens=58,
        recomputed_tokens=59,
        retractions=60,
    )
