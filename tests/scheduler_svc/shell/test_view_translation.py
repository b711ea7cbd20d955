"""Views to messages: every field arrives, under its own name."""

from dataclasses import fields

import pytest

from protos.radixd.v1 import admin_pb2
from scheduler_svc.core.views import EconomyView, Phase, TenantView, WaitingReason
from scheduler_svc.view_translation import (
    economy_to_proto,
    explanation_to_proto,
    histogram_to_proto,
    pin_to_proto,
    request_to_proto,
    session_to_proto,
    tenant_to_proto,
)
from tests.scheduler_svc.shell.views import (
    a_histogram,
    a_pin,
    a_request,
    a_session,
    a_tenant,
    an_economy,
    an_explanation,
)


def test_enums_keep_their_numbers() -> None:
    for phase in Phase:
        assert admin_pb2.RequestState.Name(int(phase)) == f"REQUEST_STATE_{phase.name}"
    for reason in WaitingReason:
        assert admin_pb2.WaitingReason.Name(int(reason)) == f"WAITING_REASON_{reason.name}"
    assert len(admin_pb2.RequestState.items()) == len(Phase) + 1
    assert len(admin_pb2.WaitingReason.items()) == len(WaitingReason) + 1


def test_a_pin() -> None:
    assert pin_to_proto(a_pin("p", tenant="acme")) == admin_pb2.Pin(
        pin_id="p",
        level=admin_pb2.PIN_LEVEL_SOFT,
        tenant="acme",
        cache_domain="shared",
        num_tokens=11,
        kept_tokens=12,
        expires_in_ms=13,
        hits=14,
        first_token_ids=[15, 16],
    )
    assert not pin_to_proto(a_pin("p", expires_in_ns=None)).HasField("expires_in_ms")


def test_a_session() -> None:
    assert session_to_proto(a_session("s", tenant="acme")) == admin_pb2.Session(
        session="s",
        tenant="acme",
        cache_domain="shared",
        num_tokens=11,
        kept_tokens=12,
        expires_in_ms=13,
        num_turns=14,
        hits=15,
    )


def test_a_request() -> None:
    assert request_to_proto(a_request("r", tenant="acme")) == admin_pb2.RequestView(
        request_id="r",
        tenant="acme",
        state=admin_pb2.REQUEST_STATE_WAITING,
        waiting_reason=admin_pb2.WAITING_REASON_TWIN,
        priority=-3,
        workload="code",
        prompt_tokens=21,
        output_tokens=22,
        computed_tokens=23,
        cached_tokens=24,
        retractions=25,
        age_ms=26,
        deadline_in_ms=27,
        slots=28,
        preheat=True,
        drafted_tokens=29,
        accepted_tokens=30,
    )


def test_what_a_request_has_not_is_absent_and_not_zero() -> None:
    view = a_request("r", cached_tokens=None, deadline_in_ns=None, waiting_reason=None)
    message = request_to_proto(view)
    assert not message.HasField("cached_tokens")
    assert not message.HasField("deadline_in_ms")
    assert message.waiting_reason == admin_pb2.WAITING_REASON_UNSPECIFIED
    assert request_to_proto(a_request("r", cached_tokens=0)).HasField("cached_tokens")
    overdue = request_to_proto(a_request("r", deadline_in_ns=-5_000_000))
    assert (overdue.HasField("deadline_in_ms"), overdue.deadline_in_ms) == (True, 0)


def test_an_explanation() -> None:
    now_ns = 1_000_000_000
    message = explanation_to_proto(an_explanation(a_request("r"), now_ns), now_ns)
    assert message == admin_pb2.ExplainResponse(
        request=request_to_proto(a_request("r")),
        summary="It waits.",
        matched_tokens=31,
        rank=32,
        num_waiting=33,
        order_terms={"prefix": 0.5},
        needed_slots=34,
        promised_slots=35,
        available_slots=36,
        victims=[admin_pb2.VictimScore(request_id="v", score=[1.0, 2.5])],
        history=[admin_pb2.HistoryEvent(ago_ms=37, event="submitted", detail="38 tokens")],
        ending="STOP",
    )
    assert len(message.ListFields()) == len(message.DESCRIPTOR.fields)


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (an_economy(), economy_to_proto(an_economy())),
        (a_tenant(), tenant_to_proto(a_tenant())),
    ],
)
def test_books_have_the_same_fields_on_both_sides(
    view: EconomyView | TenantView, message: admin_pb2.Economy | admin_pb2.TenantBooks
) -> None:
    names = [field.name for field in fields(view)]
    assert names == list(message.DESCRIPTOR.fields_by_name)
    assert [getattr(message, name) for name in names] == [getattr(view, name) for name in names]


def test_a_histogram() -> None:
    assert histogram_to_proto(a_histogram()) == admin_pb2.Histogram(
        bounds=[1.0, 2000.0], counts=[5, 6, 7], sum=9500.0
    )
