"""What operators ask of the front: pins, requests, explanations, policies, and the books live."""

import asyncio
from typing import Any

import grpc
import pytest

from protos.radixd.v1 import admin_pb2, policy_pb2
from protos.radixd.v1 import inference_pb2 as pb
from tests.tokenizer_svc.client import refusal, refused, script, stream, wait_until
from tests.tokenizer_svc.conftest import Serve, Served
from tests.tokenizer_svc.operator_scheduler import OperatorScheduler
from tokenizer_svc.stats_watch import MAX_WATCHERS
from tokenizer_svc.tokenizers.byte_tokenizer import EOS

INVALID = grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture
def scheduler() -> OperatorScheduler:
    return OperatorScheduler()


@pytest.fixture
async def operated(serve: Serve, scheduler: OperatorScheduler) -> Served:
    return await serve(scheduler=scheduler)


async def test_pins_have_the_text_they_begin_with(operated: Served, scheduler: OperatorScheduler):
    scheduler.pins.pins.add(
        pin_id="p-1",
        level=admin_pb2.PIN_LEVEL_HARD,
        tenant="a",
        num_tokens=9,
        kept_tokens=8,
        expires_in_ms=0,
        hits=3,
        first_token_ids=[*"量".encode(), EOS],
    )
    scheduler.pins.pins.add(pin_id="p-2")
    reply = await operated.admin.ListPins(admin_pb2.ListPinsRequest())
    assert [pin.text for pin in reply.pins] == ["量<|eos|>", ""]
    scheduler.pins.pins[0].text = "量<|eos|>"
    assert reply == scheduler.pins
    # An open server shows everybody's.
    assert not scheduler.asked[-1].HasField("tenant")


async def test_unpin(operated: Served, scheduler: OperatorScheduler):
    reply = await operated.admin.Unpin(admin_pb2.UnpinRequest(pin_ids=["p-1", "p-2"]))
    assert (list(reply.removed), list(reply.unknown)) == (["p-1"], ["p-2"])
    await operated.admin.Unpin(admin_pb2.UnpinRequest(all=True))
    asked = [(list(a.pin_ids), a.all, a.HasField("tenant")) for a in scheduler.asked]
    assert asked == [(["p-1", "p-2"], False, False), ([], True, False)]


@pytest.mark.parametrize(
    ("method", "request_", "field"),
    [
        ("Unpin", admin_pb2.UnpinRequest(), "pin_ids"),
        ("Unpin", admin_pb2.UnpinRequest(pin_ids=["p"], all=True), "all"),
        ("Unpin", admin_pb2.UnpinRequest(pin_ids=["p", ""]), "pin_ids[1]"),
        ("Unpin", admin_pb2.UnpinRequest(pin_ids=["p" * 129]), "pin_ids[0]"),
        ("Unpin", admin_pb2.UnpinRequest(pin_ids=["p"] * 1025), "pin_ids"),
        ("ListRequests", admin_pb2.ListRequestsRequest(max_requests=0), "max_requests"),
        ("ListRequests", admin_pb2.ListRequestsRequest(max_requests=100_001), "max_requests"),
        ("ListSessions", admin_pb2.ListSessionsRequest(max_sessions=0), "max_sessions"),
        ("ListSessions", admin_pb2.ListSessionsRequest(max_sessions=100_001), "max_sessions"),
        ("CloseSession", admin_pb2.CloseSessionRequest(), "session"),
        ("CloseSession", admin_pb2.CloseSessionRequest(session="s" * 129), "session"),
        ("CloseSession", admin_pb2.CloseSessionRequest(session="a\nb"), "session"),
        (
            "CloseSession",
            admin_pb2.CloseSessionRequest(session="s", cache_domain="d" * 257),
            "cache_domain",
        ),
        ("Explain", admin_pb2.ExplainRequest(), "request_id"),
        ("Explain", admin_pb2.ExplainRequest(request_id="x" * 129), "request_id"),
        ("Explain", admin_pb2.ExplainRequest(request_id="a\nb"), "request_id"),
        ("SetPolicy", admin_pb2.SetPolicyRequest(), "policies"),
        ("SetPolicy", admin_pb2.SetPolicyRequest(policies=policy_pb2.Policies()), "policies"),
        (
            "SetPolicy",
            admin_pb2.SetPolicyRequest(policies=policy_pb2.Policies(weight_age=float("nan"))),
            "policies.weight_age",
        ),
        (
            "SetPolicy",
            admin_pb2.SetPolicyRequest(policies=policy_pb2.Policies(chunk_sizes={"": 1})),
            "policies.chunk_sizes",
        ),
    ],
    ids=str,
)
async def test_what_is_refused_at_the_door(
    operated: Served, scheduler: OperatorScheduler, method: str, request_: Any, field: str
):
    got = await refused(getattr(operated.admin, method)(request_))
    assert (got.code, got.field) == (INVALID, field)
    assert scheduler.asked == []


async def test_list_requests(operated: Served, scheduler: OperatorScheduler):
    reply = await operated.admin.ListRequests(admin_pb2.ListRequestsRequest())
    assert (reply.requests[0].request_id, reply.num_left_out) == ("mine", 3)
    question = admin_pb2.ListRequestsRequest(max_requests=7, tenant="")
    await operated.admin.ListRequests(question)
    everybody, nobody = scheduler.asked
    assert (everybody.max_requests, everybody.HasField("tenant")) == (1000, False)
    assert nobody == question


async def test_sessions_are_listed_and_closed(operated: Served, scheduler: OperatorScheduler):
    reply = await operated.admin.ListSessions(admin_pb2.ListSessionsRequest())
    assert (reply.sessions[0].session, reply.num_left_out) == ("mine", 4)
    (asked,) = scheduler.asked
    assert (asked.max_sessions, asked.HasField("tenant")) == (1000, False)
    closing = admin_pb2.CloseSessionRequest(session="mine", cache_domain="d", tenant="")
    assert (await operated.admin.CloseSession(closing)).found
    assert scheduler.asked[-1] == closing
    closing = admin_pb2.CloseSessionRequest(session="other")
    assert not (await operated.admin.CloseSession(closing)).found


async def test_explain_knows_live_requests_by_the_clients_id(
    operated: Served, scheduler: OperatorScheduler
):
    scheduler.behavior.num_before_hold = 1
    running = asyncio.create_task(stream(operated, request_id="r", tokens=script("ab")))
    await wait_until(lambda: bool(scheduler.seen.running))
    reply = await operated.admin.Explain(admin_pb2.ExplainRequest(request_id="r"))
    (wire_id,) = scheduler.seen.running
    assert reply.summary == f"of {wire_id}" != "of r"
    scheduler.behavior.num_before_hold = None
    await running
    # One that has ended, or never was: the scheduler is to say.
    reply = await operated.admin.Explain(admin_pb2.ExplainRequest(request_id="r"))
    assert reply.summary == "of r"
    scheduler.refusal = (grpc.StatusCode.NOT_FOUND, "request_id: no request 'r'")
    got = await refused(operated.admin.Explain(admin_pb2.ExplainRequest(request_id="r")))
    assert (got.code, got.reason) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_REQUEST_ID")
    assert got.message == "request_id: no request 'r'"


async def test_explain_of_a_request_that_the_scheduler_has_not_got(
    operated: Served, scheduler: OperatorScheduler
):
    scheduler.set_worker(connected=False)
    await wait_until(lambda: not operated.front.link.is_ready)
    running = asyncio.create_task(stream(operated, request_id="r", tokens=script("ab")))
    await wait_until(lambda: len(operated.front.live) == 1)
    reply = await operated.admin.Explain(admin_pb2.ExplainRequest(request_id="r"))
    assert reply.request.request_id == "r"
    assert reply.request.state == admin_pb2.REQUEST_STATE_WAITING
    assert reply.request.waiting_reason == admin_pb2.WAITING_REASON_NO_WORKER
    assert "worker" in reply.summary
    assert scheduler.asked == []
    scheduler.set_worker(connected=True)
    assert (await running).text == "ab"


async def test_policies(operated: Served, scheduler: OperatorScheduler):
    reply = await operated.admin.GetPolicy(admin_pb2.GetPolicyRequest())
    assert reply.policies.waiting_order == "adaptive"
    assert [family.name for family in reply.families] == ["waiting_order"]
    change = policy_pb2.Policies(waiting_order="lpm", chunk_sizes={"chat": 0})
    done = await operated.admin.SetPolicy(admin_pb2.SetPolicyRequest(policies=change))
    assert done.policies == scheduler.policies == change
    scheduler.refusal = (INVALID, "high_watermark: 2.0 is not in (0, 1]")
    request = admin_pb2.SetPolicyRequest(policies=policy_pb2.Policies(high_watermark=2))
    got = await refused(operated.admin.SetPolicy(request))
    assert (got.code, got.field) == (INVALID, "policies.high_watermark")
    assert got.message == "policies.high_watermark: 2.0 is not in (0, 1]"


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAVAILABLE),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE),
        (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAVAILABLE),
        (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL),
    ],
)
async def test_a_scheduler_that_does_not_answer(
    operated: Served, scheduler: OperatorScheduler, status: grpc.StatusCode, code: grpc.StatusCode
):
    scheduler.refusal = (status, "KeyError in slots")
    got = await refused(operated.admin.ListPins(admin_pb2.ListPinsRequest()))
    assert got.code == code
    assert "KeyError" not in got.message or status is grpc.StatusCode.FAILED_PRECONDITION


async def test_the_books_are_passed_on_whole(operated: Served, scheduler: OperatorScheduler):
    books = scheduler.books
    books.economy.density = 1.5
    books.economy.freed_slots = 2**40
    books.histograms["reuse_gap_ms"].bounds.append(10.0)
    books.histograms["reuse_gap_ms"].counts.extend([3, 4])
    books.tenants["acme"].held_slots = 7
    books.waiting_by_reason["NO_SLOTS"] = 2
    books.step_profile.decode.busy_ns = 7
    stats = await operated.admin.GetStats(admin_pb2.GetStatsRequest())
    assert stats.economy == books.economy
    assert stats.step_profile.decode.busy_ns == 7
    assert dict(stats.histograms) == dict(books.histograms)
    assert dict(stats.tenants) == dict(books.tenants)
    assert dict(stats.waiting_by_reason) == {"NO_SLOTS": 2}


def watch(served: Served, interval_ms: int | None = None) -> Any:
    return served.admin.WatchStats(admin_pb2.WatchStatsRequest(interval_ms=interval_ms))


async def ended(call: Any) -> grpc.aio.AioRpcError:
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
        await call.read()
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("the watch ended without a reason")


async def test_watching_tells_at_once_and_again(operated: Served, scheduler: OperatorScheduler):
    call = watch(operated, 100)
    async with asyncio.timeout(10):
        for num_steps in (1, 2, 3):
            scheduler.books.counters["steps"] = num_steps
            while (await call.read()).stats.num_steps != num_steps:
                pass
    call.cancel()
    looks = scheduler.num_looks
    await asyncio.sleep(0.3)
    assert scheduler.num_looks <= looks + 1  # whoever has left is not looked for
    # The default is long, and the first message comes without it.
    call = watch(operated)
    async with asyncio.timeout(10):
        assert (await call.read()).stats.worker_connected
    call.cancel()


@pytest.mark.parametrize("interval_ms", [0, 99, 3_600_001])
async def test_watching_too_often_or_too_seldom(operated: Served, interval_ms: int):
    got = refusal(await ended(watch(operated, interval_ms)))
    assert (got.code, got.field) == (INVALID, "interval_ms")


async def test_watching_a_scheduler_that_goes_and_comes(
    operated: Served, scheduler: OperatorScheduler
):
    call = watch(operated, 100)
    assert (await call.read()).stats.num_steps == 0
    scheduler.refusal = (grpc.StatusCode.UNAVAILABLE, "")
    looks = scheduler.num_looks
    await wait_until(lambda: scheduler.num_looks > looks + 1)
    got = refusal(await ended(watch(operated, 100)))
    assert got.code == grpc.StatusCode.UNAVAILABLE  # a new one hears it
    scheduler.books.counters["steps"] = 5
    scheduler.refusal = None
    async with asyncio.timeout(10):
        while (await call.read()).stats.num_steps != 5:  # an older one goes on
            pass
    call.cancel()


async def test_so_many_watch_at_once_and_cost_one_look(
    operated: Served, scheduler: OperatorScheduler
):
    calls = [watch(operated, 3_600_000) for _ in range(MAX_WATCHERS)]
    for call in calls:
        assert (await call.read()).stats.worker_connected
    assert scheduler.num_looks < MAX_WATCHERS // 2
    got = refusal(await ended(watch(operated, 100)))
    assert (got.code, got.retry_after_ms) == (grpc.StatusCode.RESOURCE_EXHAUSTED, 1000)
    calls.pop().cancel()
    async with asyncio.timeout(10):
        calls.append(await first_place(operated))
    for call in calls:
        call.cancel()


async def first_place(served: Served) -> Any:
    """A watch that is served, as soon as there is room for it."""
    while True:
        call = watch(served, 3_600_000)
        try:
            await call.read()
        except grpc.aio.AioRpcError:
            await asyncio.sleep(0.01)
        else:
            return call


async def test_a_drain_does_not_wait_for_watchers(operated: Served):
    call = watch(operated, 3_600_000)
    await call.read()
    async with asyncio.timeout(5):
        await operated.front.drain(grace_s=60)
    got = refusal(await ended(call))
    assert (got.code, got.message) == (
        grpc.StatusCode.UNAVAILABLE,
        "the server is shutting down",
    )


async def test_a_request_is_explained_while_the_scheduler_is_away(serve: Serve):
    served = await serve(scheduler_up=False)
    call = served.inference.GenerateUnary(pb.GenerateUnaryRequest(request_id="r", text="a"))
    await wait_until(lambda: len(served.front.live) == 1)
    reply = await served.admin.Explain(admin_pb2.ExplainRequest(request_id="r"))
    assert "scheduler" in reply.summary
    got = await refused(served.admin.Explain(admin_pb2.ExplainRequest(request_id="other")))
    assert got.code == grpc.StatusCode.UNAVAILABLE
    call.cancel()
