"""The front as a process: ready, drained by a signal, refusing to start with one line."""

import asyncio
import hashlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.radixd.v1 import inference_pb2 as pb
from protos.radixd.v1 import inference_pb2_grpc as pb_grpc
from tests.tokenizer_svc.client import script, wait_until
from tests.tokenizer_svc.fake_scheduler import FakeScheduler

START_S = 40.0


async def start(*flags: str) -> asyncio.subprocess.Process:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RADIXD_")}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tokenizer_svc",
        *flags,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
async def scheduler() -> AsyncIterator[FakeScheduler]:
    fake = FakeScheduler()
    await fake.start()
    yield fake
    await fake.stop()


async def reaches(channel: grpc.aio.Channel, wanted: int) -> None:
    """Returns once the front says that it is of this health."""
    health = health_pb2_grpc.HealthStub(channel)
    async with asyncio.timeout(START_S):
        status = -1
        while status != wanted:
            await asyncio.sleep(0.05)
            check = health.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True)
            status = (await check).status


@pytest.fixture
async def front(
    scheduler: FakeScheduler,
) -> AsyncIterator[tuple[asyncio.subprocess.Process, grpc.aio.Channel]]:
    port = free_port()
    process = await start("--fake-worker", f"--port={port}", f"--scheduler-port={scheduler.port}")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        await reaches(channel, health_pb2.HealthCheckResponse.SERVING)
        yield process, channel
    if process.returncode is None:
        process.kill()
        await process.communicate()


Front = tuple[asyncio.subprocess.Process, grpc.aio.Channel]


# field case 139
async def test_a_signal_lets_running_requests_finish(front: Front, scheduler: FakeScheduler):
    process, channel = front
    scheduler.behavior.num_before_hold = 2
    stub = pb_grpc.InferenceServiceStub(channel)
    call = stub.GenerateUnary(pb.GenerateUnaryRequest(tokens=script("abcd")), timeout=20)
    running = asyncio.ensure_future(call)
    await wait_until(lambda: bool(scheduler.seen.running))
    process.send_signal(signal.SIGTERM)
    await reaches(channel, health_pb2.HealthCheckResponse.NOT_SERVING)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.GenerateUnary(pb.GenerateUnaryRequest(text="a"), timeout=10)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    scheduler.behavior.num_before_hold = None
    assert (await running).text == "abcd"
    _, log = await asyncio.wait_for(process.communicate(), 15)
    assert process.returncode == 0
    for event in (b"front_ready", b"front_draining", b"front_stopped"):
        assert event in log
    assert b"Traceback" not in log


async def test_a_second_signal_ends_it_at_once(front: Front, scheduler: FakeScheduler):
    process, channel = front
    scheduler.behavior.num_before_hold = 2
    stub = pb_grpc.InferenceServiceStub(channel)
    call = stub.GenerateUnary(pb.GenerateUnaryRequest(tokens=script("abcd")), timeout=20)
    running = asyncio.ensure_future(call)
    await wait_until(lambda: bool(scheduler.seen.running))
    process.send_signal(signal.SIGTERM)
    await reaches(channel, health_pb2.HealthCheckResponse.NOT_SERVING)
    assert process.returncode is None
    process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(process.communicate(), 15)
    with pytest.raises(grpc.aio.AioRpcError):
        await running


@pytest.mark.parametrize(
    "problem",
    ["missing", "foreign", "truncated", "port", "option", "preheat", "tenants", "chat_template"],
)
async def test_one_line_when_it_cannot_start(
    tmp_path: Path, scheduler: FakeScheduler, problem: str
):
    path = tmp_path / "model.gguf"
    flags = [f"--model={path}", "--port=0"]
    named = str(path)
    if problem == "foreign":
        path.write_bytes(b"not a model at all")
    elif problem == "truncated":
        path.write_bytes(b"GGUF\x03\0\0\0" + b"\1\0\0\0\0\0\0\0" * 2)
    elif problem == "port":
        flags, named = ["--fake-worker", f"--port={scheduler.port}"], str(scheduler.port)
    elif problem == "option":
        flags, named = ["--page-size=1000"], "page_size"
    elif problem in ("preheat", "tenants"):
        path = tmp_path / "file.yaml"
        path.write_text("nobody: 5")
        flags, named = ["--fake-worker", "--port=0", f"--{problem}={path}"], f"{problem}: {path}"
    elif problem == "chat_template":
        path = tmp_path / "mine.jinja"
        path.write_text("{{ 'a' }}\n{% if %}")
        flags, named = ["--port=0", f"--chat-template={path}"], f"{path}: line 2: "
    process = await start(*flags)
    _, log = await asyncio.wait_for(process.communicate(), START_S)
    assert process.returncode == 2
    lines = log.decode().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("tokenizer_svc: ")
    assert named in lines[0]


async def test_files_of_tenants_and_prefixes_take_effect(tmp_path: Path, scheduler: FakeScheduler):
    tenants, preheat = tmp_path / "tenants.yaml", tmp_path / "prefixes.yaml"
    tenants.write_text(f"acme: {{keys: [{hashlib.sha256(b'sk-1').hexdigest()}]}}")
    preheat.write_text("prefixes: [{text: abc, tenant: acme, pin: hard}]")
    port = free_port()
    flags = [f"--port={port}", f"--scheduler-port={scheduler.port}", "--fake-worker"]
    process = await start(*flags, f"--tenants={tenants}", f"--preheat={preheat}")
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = pb_grpc.InferenceServiceStub(channel)
            async with asyncio.timeout(START_S):
                await channel.channel_ready()
            request = pb.GenerateUnaryRequest(tokens=script("ok"))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.GenerateUnary(request, timeout=20)
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
            key = (("authorization", "Bearer sk-1"),)
            assert (await stub.GenerateUnary(request, metadata=key, timeout=20)).text == "ok"
            await wait_until(lambda: len(scheduler.seen.submits) == 2)
    finally:
        process.terminate()
        _, log = await asyncio.wait_for(process.communicate(), 15)
    assert {(s.preheat, s.tenant) for s in scheduler.seen.submits} == {
        (True, "acme"),
        (False, "acme"),
    }
    for event in (b"preheat_progress", b"preheat_done"):
        assert event in log
    assert b"sk-1" not in log
