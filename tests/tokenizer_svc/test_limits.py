"""What one client may take: calls in progress, time without reading, bytes of metadata."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from protos.errors import TooManyStreams
from protos.radixd.v1 import admin_pb2, admin_pb2_grpc, inference_pb2_grpc
from protos.radixd.v1 import inference_pb2 as pb
from tests.tokenizer_svc.client import refusal, refused, script, unary, wait_until
from tests.tokenizer_svc.conftest import Serve, Served
from tests.tokenizer_svc.fake_scheduler import FakeScheduler
from tests.tokenizer_svc.test_tenancy import KEYED, bearer
from tokenizer_svc.client_streams import ClientStreams, host_of_peer

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
SMALL_WINDOW = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]


def test_calls_are_counted_by_tenant_or_address():
    streams = ClientStreams(most=1)
    leave = streams.enter("a", "10.0.0.1")
    streams.enter("b", "10.0.0.1")
    streams.enter("", "10.0.0.1")
    for tenant, address in (("a", "10.0.0.2"), ("", "10.0.0.1")):
        with pytest.raises(TooManyStreams, match="max_streams_per_client"):
            streams.enter(tenant, address)
    leave()
    streams.enter("a", "10.0.0.3")()
    assert len(streams) == 2
    unlimited = ClientStreams(most=0)
    ends = [unlimited.enter("a", "") for _ in range(100)]
    for end in ends:
        end()
    assert len(unlimited) == 0


@pytest.mark.parametrize(
    ("peer", "host"),
    [("ipv4:10.0.0.1:4711", "10.0.0.1"), ("ipv6:%5B::1%5D:5", "::1"), ("unix:", "unix:")],
)
def test_a_peer_is_known_by_its_address(peer: str, host: str):
    assert host_of_peer(peer) == host


async def test_a_call_too_many_is_refused_and_the_next_one_served(serve: Serve):
    served = await serve(tenants=KEYED, max_streams_per_client=2)
    served.scheduler.behavior.num_before_hold = 1
    request, mine = pb.GenerateRequest(text="a"), (bearer("key-a"),)
    calls = [served.inference.Generate(request, metadata=mine) for _ in range(2)]
    for call in calls:
        await call.read()
    got = await refused(served.inference.Generate(request, metadata=mine, timeout=10).read())
    assert (got.code, got.reason) == (EXHAUSTED, "TOO_MANY_STREAMS")
    assert "max_streams_per_client" in got.message
    assert got.retry_after_ms == 1000
    stats = served.admin.GetPolicy(admin_pb2.GetPolicyRequest(), metadata=mine, timeout=10)
    assert (await refused(stats)).code == EXHAUSTED, "calls of every kind count"
    served.scheduler.behavior.num_before_hold = None
    other = pb.GenerateUnaryRequest(tokens=script("ok"))
    theirs = (bearer("key-b"),)
    assert (await served.inference.GenerateUnary(other, metadata=theirs, timeout=10)).text == "ok"
    for call in calls:
        call.cancel()
    await served.idle()
    assert (await served.inference.GenerateUnary(other, metadata=mine, timeout=10)).text == "ok"


async def test_calls_that_need_no_key_and_last_are_counted_by_address(serve: Serve):
    served = await serve(tenants=KEYED, max_streams_per_client=2)
    health = health_pb2_grpc.HealthStub(served.channel)
    reflection = reflection_pb2_grpc.ServerReflectionStub(served.channel)
    watches = [health.Watch(health_pb2.HealthCheckRequest()) for _ in range(2)]
    for watch in watches:
        await watch.read()
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    for call in (
        health.Watch(health_pb2.HealthCheckRequest(), timeout=10),
        reflection.ServerReflectionInfo(iter([asked]), timeout=10),
    ):
        got = await refused(call.read())
        assert (got.code, got.reason) == (EXHAUSTED, "TOO_MANY_STREAMS")
    await health.Check(health_pb2.HealthCheckRequest(), timeout=10)
    mine = (bearer("key-a"),)
    other = pb.GenerateUnaryRequest(tokens=script("ok"))
    assert (await served.inference.GenerateUnary(other, metadata=mine, timeout=10)).text == "ok"
    for watch in watches:
        watch.cancel()
    await asyncio.sleep(0.1)
    listed = [one async for one in reflection.ServerReflectionInfo(iter([asked]), timeout=10)]
    assert len(listed[0].list_services_response.service) > 3


@pytest.fixture
async def slow(serve: Serve) -> Served:
    scheduler = FakeScheduler()
    model = type(scheduler.model)()
    model.CopyFrom(scheduler.model)
    model.max_length = 1 << 20
    scheduler.model = model
    return await serve(scheduler=scheduler, slow_reader_s=0.5, max_streams_per_client=1)


async def test_who_does_not_read_gives_back_what_he_holds(slow: Served):
    options = [*SMALL_WINDOW, ("grpc.use_local_subchannel_pool", 1)]
    sampling = pb.SamplingParams(max_tokens=2)
    request = pb.GenerateRequest(text="x" * 1_000_000, echo=True, sampling=sampling)
    async with grpc.aio.insecure_channel(slow.address, options=options) as channel:
        call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(request)
        await wait_until(lambda: len(slow.front.live) == 1)
        await slow.idle()
        assert not slow.scheduler.seen.running
        # His call counts until he reads or goes; nobody else's does.
        got = await refused(unary(slow, text="a"))
        assert got.reason == "TOO_MANY_STREAMS"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in call:
                pass
    told = refusal(caught.value)
    assert (told.code, told.reason) == (EXHAUSTED, "SLOW_READER")
    assert "slow_reader_s" in told.message
    assert (await unary(slow, tokens=script("ok"))).text == "ok"


async def test_who_does_not_read_is_cut_without_more_news_of_his_request(slow: Served):
    slow.scheduler.behavior.num_before_hold = 1
    request = pb.GenerateRequest(
        text="x" * 1_000_000, echo=True, sampling=pb.SamplingParams(max_tokens=2)
    )
    async with grpc.aio.insecure_channel(slow.address, options=SMALL_WINDOW) as channel:
        call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(request)
        await wait_until(lambda: len(slow.front.live) == 1)
        await slow.idle()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in call:
                pass
    assert refusal(caught.value).reason == "SLOW_READER"


async def test_who_goes_without_having_read_leaves_nothing(slow: Served):
    request = pb.GenerateRequest(
        text="x" * 1_000_000, echo=True, sampling=pb.SamplingParams(max_tokens=2)
    )
    async with grpc.aio.insecure_channel(slow.address, options=SMALL_WINDOW) as channel:
        call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(request)
        await wait_until(lambda: len(slow.front.live) == 1)
        await slow.idle()
        call.cancel()
    await asyncio.sleep(0.1)
    assert (await unary(slow, tokens=script("ok"))).text == "ok"


async def test_metadata_has_a_limit(served: Served):
    huge = (("x-trace", "a" * (40 << 10)),)
    stub = admin_pb2_grpc.AdminServiceStub(served.channel)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.GetPolicy(admin_pb2.GetPolicyRequest(), metadata=huge, timeout=10)
    assert caught.value.code() in (EXHAUSTED, grpc.StatusCode.INTERNAL)
    assert (await unary(served, tokens=script("ok"))).text == "ok"
