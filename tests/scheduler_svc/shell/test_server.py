"""The whole scheduler in one process, over real sockets, with a slot-true worker."""

import asyncio
import pickle
import socket

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from protos.errors import InvalidRequest
from protos.radixd.scheduler.v1 import scheduler_pb2 as pb
from radixd.chassis.channel import WorkerChannel
from scheduler_svc.server import SchedulerServer
from tests.scheduler_svc.shell.running import (
    FrontClient,
    expected,
    idle_stats,
    settings_for,
)

SERVICE = "radixd.scheduler.v1.SchedulerService"


async def test_tokens_come_back_and_books_balance(channel, workers):
    workers(1)
    front = FrontClient(channel)
    prompts = {f"r{number}": [number + 1, 2, 3, 4] for number in range(20)}
    for request_id, prompt in prompts.items():
        await front.submit(request_id, prompt)
    await front.read_endings(*prompts)
    assert front.tokens == {key: expected(prompt) for key, prompt in prompts.items()}
    assert {output.ending for output in front.endings.values()} == {pb.ENDING_LENGTH}
    assert front.epoch > 0
    stats = await idle_stats(front)
    assert stats.num_slots == 4096 == stats.free + stats.evictable
    assert stats.worker_connected
    assert stats.model.model_id == "fake"
    assert stats.counters["finished"] == 20
    assert stats.peak_rss_bytes["scheduler_svc"] > 1 << 20


async def test_a_request_before_the_first_worker_waits_for_it(channel, workers):  # field case 128
    front = FrontClient(channel)
    await front.submit("early", [1, 2, 3])
    await front.read_until(lambda: front.states == [False])
    stats = await front.stub.GetStats(pb.GetStatsRequest())
    assert (stats.worker_connected, stats.num_waiting, stats.num_slots) == (False, 1, 0)
    assert (await front.stub.FlushCache(pb.FlushCacheRequest())).flushed_tokens == 0
    assert not (await front.stub.DumpTree(pb.DumpTreeRequest())).nodes
    workers(1)
    await front.read_endings("early")
    assert front.tokens["early"] == expected([1, 2, 3])
    assert front.states == [False, True]


async def test_a_lost_worker_costs_no_tokens(channel, workers):
    first = workers(1, step_delay_s=0.01)
    front = FrontClient(channel)
    prompts = {f"r{number}": [number + 1, 2] for number in range(10)}
    for request_id, prompt in prompts.items():
        await front.submit(request_id, prompt, max_tokens=30)
    await front.read_until(lambda: len(front.tokens.get("r9", [])) >= 3)
    first.stop()
    await front.read_until(lambda: front.states[-1] is False)
    workers(2)
    await front.read_endings(*prompts)
    assert front.tokens == {key: expected(prompt, 30) for key, prompt in prompts.items()}
    assert front.states[-2:] == [False, True]


@pytest.mark.parametrize("settings", [{"step_timeout_s": 0.3}], indirect=True)
async def test_a_hung_worker_is_given_up_and_taken_back(channel, workers):
    worker = workers(1, step_delay_s=0.01)
    front = FrontClient(channel)
    await front.submit("r", [1, 2], max_tokens=40)
    await front.read_until(lambda: len(front.tokens.get("r", [])) >= 3)
    worker.frozen.set()
    await front.read_until(lambda: front.states[-1] is False)
    worker.frozen.clear()
    workers(2)
    await front.read_endings("r")
    assert front.tokens["r"] == expected([1, 2], 40)


async def test_cancel_and_departure_free_what_was_held(channel, workers):  # field cases 52, 54
    workers(1, step_delay_s=0.005)
    front, other = FrontClient(channel), FrontClient(channel)
    await front.submit("mine", [1, 2], max_tokens=2000)
    await other.submit("theirs", [3, 4], max_tokens=2000)
    await other.submit("waits", [5, 6], max_tokens=2000)
    await front.read_until(lambda: "mine" in front.tokens)
    await other.read_until(lambda: "theirs" in other.tokens)
    await front.cancel("theirs")
    await front.cancel("mine")
    await front.cancel("mine")
    await front.read_endings("mine")
    assert front.endings["mine"].ending == pb.ENDING_CANCELLED
    await other.leave()
    stats = await idle_stats(front)
    assert stats.counters["cancelled"] == 3
    assert stats.free + stats.evictable == stats.num_slots


async def test_refusals_name_the_field_and_the_next_request_works(channel, workers):
    workers(1)
    front = FrontClient(channel)
    await front.submit("nan", [1], sampling=pb.Sampling(temperature=float("nan"), top_p=1))
    await front.submit("vocabulary", [1, 264])
    await front.submit("empty", [])
    await front.submit("zero", [1], max_tokens=0)
    await front.submit("fine", [1, 2])
    await front.read_endings("nan", "vocabulary", "empty", "zero", "fine")
    fields = {key: output.field for key, output in front.endings.items()}
    assert fields == {
        "nan": "sampling.temperature",
        "vocabulary": "prompt_ids",
        "empty": "prompt",
        "zero": "max_tokens",
        "fine": "",
    }
    assert front.tokens["fine"] == expected([1, 2])


async def test_second_use_of_a_live_id_is_refused(channel, workers):  # field case 59
    workers(1, step_delay_s=0.005)
    front, other = FrontClient(channel), FrontClient(channel)
    await front.submit("x", [1, 2], max_tokens=50)
    await front.read_until(lambda: "x" in front.tokens)
    await other.submit("x", [3, 4])
    await other.read_endings("x")
    assert other.endings["x"].ending == pb.ENDING_REJECTED_DUPLICATE_ID
    await front.read_endings("x")
    assert front.tokens["x"] == expected([1, 2], 50)
    again = FrontClient(channel)
    await again.submit("x", [3, 4])
    await again.read_endings("x")
    assert again.tokens["x"] == expected([3, 4])


async def test_the_tree_is_shown_and_flushed(channel, workers):
    workers(1)
    front = FrontClient(channel)
    for request_id, last in (("a", 10), ("b", 11)):
        await front.submit(request_id, [*range(1, 9), last])
        await front.read_endings(request_id)
    assert front.endings["b"].cached_tokens == 8
    await idle_stats(front)
    tree = await front.stub.DumpTree(pb.DumpTreeRequest())
    assert len(tree.nodes) >= 3
    assert (await front.stub.DumpTree(pb.DumpTreeRequest(max_nodes=1))).num_left_out
    flushed = await front.stub.FlushCache(pb.FlushCacheRequest())
    assert flushed.flushed_tokens >= 10
    stats = await idle_stats(front)
    assert stats.free == stats.num_slots


async def test_many_requests_of_one_step_share_a_message(channel, workers):
    workers(1, step_delay_s=0.01)
    front = FrontClient(channel)
    names = [f"r{number}" for number in range(50)]
    for number, name in enumerate(names):
        await front.submit(name, [number + 1, 2], max_tokens=20)
    await front.read_endings(*names)
    assert sum(map(len, front.tokens.values())) == 1000
    assert front.num_messages < 150


async def test_health_tells_the_process_from_its_worker(channel, workers):
    health = health_pb2_grpc.HealthStub(channel)

    async def status(service: str) -> int:
        answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
        return answer.status

    serving = health_pb2.HealthCheckResponse.SERVING
    assert await status("") == serving
    assert await status(SERVICE) != serving
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await status("no.such.Service")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    worker = workers(1)
    front = FrontClient(channel)
    await front.read_until(lambda: True in front.states)
    assert await status(SERVICE) == serving
    worker.stop()
    await front.read_until(lambda: front.states[-1] is False)
    assert await status(SERVICE) != serving
    assert await status("") == serving


async def test_reflection_lists_all_services(channel):
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo(
        iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    )
    names = {
        service.name async for answer in call for service in answer.list_services_response.service
    }
    assert names >= {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}


async def test_a_taken_port_is_named_and_gives_the_endpoint_free(tmp_path):
    with socket.socket() as holder, socket.socket() as probe:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        probe.bind(("127.0.0.1", 0))
        metrics_port = probe.getsockname()[1]
        probe.close()
        ports = {"scheduler_port": port, "metrics_port": metrics_port}
        with pytest.raises(InvalidRequest, match=f"127.0.0.1:{port} is already in use"):
            await SchedulerServer(settings_for(tmp_path, **ports)).start()
    server = SchedulerServer(settings_for(tmp_path, metrics_port=metrics_port))
    assert await server.start()
    assert server.metrics_port == metrics_port
    await server.stop()


async def test_two_schedulers_want_one_endpoint(settings):
    server = SchedulerServer(settings)
    await server.start()
    with pytest.raises(InvalidRequest, match="held by another scheduler"):
        SchedulerServer(settings)
    await server.stop()


async def test_a_thousand_streams_finish_with_exact_books(channel, workers):
    workers(1)
    front = FrontClient(channel)
    prompts = {f"r{number}": [number % 250 + 1, number // 250 + 1] for number in range(1000)}
    for request_id, prompt in prompts.items():
        await front.submit(request_id, prompt, max_tokens=4)
    await front.read_endings(*prompts)
    assert front.tokens == {key: expected(prompt, 4) for key, prompt in prompts.items()}
    stats = await idle_stats(front)
    assert stats.counters["finished"] == 1000
    assert stats.free + stats.evictable == stats.num_slots


async def test_noise_on_the_worker_endpoint_is_counted(channel, workers, settings):  # case 127
    workers(1)
    stranger = WorkerChannel(settings.worker_address)
    stranger.send(pickle.dumps({"a": 1}))
    stranger.send(bytes(1 << 20))
    front = FrontClient(channel)
    await front.submit("r", [1, 2])
    await front.read_endings("r")
    async with asyncio.timeout(10):
        while True:
            stats = await idle_stats(front)
            if stats.counters["worker_messages_malformed"] == 2:
                break
    assert front.tokens["r"] == expected([1, 2])
    stranger.close()
