"""All three services as processes, with the fake worker, seen from the public port."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from gpu_worker.fake_engine import FakeModel
from protos.radixd.v1 import admin_pb2, admin_pb2_grpc, inference_pb2, inference_pb2_grpc
from radixd.chassis.settings import Settings
from radixd.launcher.supervisor import Supervisor

NUM_STREAMS = 20
MAX_TOKENS = 300


@pytest.fixture
def stack():
    settings = Settings(port=0, fake_worker=True, max_running=32, kv_slots=32768)
    with Supervisor(settings, echo=lambda text: None) as stack:
        yield stack


def request(number: int, max_tokens: int) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(
        tokens=inference_pb2.TokenIds(ids=[number + 1, 2, 3]),
        sampling=inference_pb2.SamplingParams(max_tokens=max_tokens),
        timeout_ms=50_000,
    )


def token_ids(stub, number: int, on_tokens=lambda: None) -> list[int]:
    received: list[int] = []
    for response in stub.Generate(request(number, MAX_TOKENS)):
        received.extend(response.token_ids)
        on_tokens()
    return received


def test_streams_outlive_a_killed_worker(stack):
    channel = grpc.insecure_channel(stack.address)
    stub = inference_pb2_grpc.InferenceServiceStub(channel)
    under_way = threading.Event()
    killed = stack.pids()["gpu_worker"]
    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        streams = [
            pool.submit(token_ids, stub, number, under_way.set) for number in range(NUM_STREAMS)
        ]
        assert under_way.wait(20)
        os.kill(killed, signal.SIGKILL)
        # The launcher restarts from the thread that waits, which is this one.
        waiting = threading.Thread(target=end_when_done, args=(streams,))
        waiting.start()
        assert stack.wait() == 0
        waiting.join()
        results = [stream.result() for stream in streams]
    assert stack.pids()["gpu_worker"] != killed
    model = FakeModel()
    for number, received in enumerate(results):
        assert received == model.generate([number + 1, 2, 3], MAX_TOKENS)
    stats = settled_stats(channel)
    assert stats.slots.free + stats.slots.evictable == stats.slots.total
    assert stats.requests.finished == NUM_STREAMS
    channel.close()


def end_when_done(streams) -> None:
    for stream in streams:
        stream.exception(timeout=50)
    os.kill(os.getpid(), signal.SIGINT)


def settled_stats(channel) -> admin_pb2.GetStatsResponse:
    """The books once nothing runs."""
    admin = admin_pb2_grpc.AdminServiceStub(channel)
    end = time.monotonic() + 10
    while True:
        stats = admin.GetStats(admin_pb2.GetStatsRequest(), timeout=5)
        busy = stats.requests.running or stats.requests.waiting
        if not (busy or stats.slots.in_flight or stats.slots.private):
            return stats
        assert time.monotonic() < end
        time.sleep(0.02)
