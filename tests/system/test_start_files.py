"""Files that `radixd up` reads: warm before it is ready; a mistake ends it at once."""

import asyncio
import os
import signal
import subprocess
import sys

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.radixd.v1 import admin_pb2, inference_pb2
from radixd.launcher.ports import free_ports
from tests.system.ask import cached, ids, until
from tests.system.stack import Client, Stack

TEXT = "Answer in one sentence. " * 20
SYSTEM = "You are a careful assistant."
IDS = ids(150, "a prefix of ids")

FILE = f"""
prefixes:
  - text: "{TEXT}"
    pin: hard
  - chat:
      - role: system
        content: "{SYSTEM}"
    pin: soft
    ttl_s: 3600
  - ids: {IDS}
    cache_domain: apart
"""
NUM_CHAT_TOKENS = len(f"system\n{SYSTEM}\n") + 2
NUM_TOKENS = len(TEXT) + NUM_CHAT_TOKENS + len(IDS)
SERVING = health_pb2.HealthCheckResponse.SERVING


async def health_until_serving(address, stats_at_serving):
    """Every answer of the health service up to SERVING; then what the books say at that moment."""
    answers = []
    while True:
        await asyncio.sleep(0.02)
        # A connection of its own each time: one that failed would wait longer and longer.
        async with Client(address) as client:
            health = health_pb2_grpc.HealthStub(client.channel)
            try:
                answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=5)
            except grpc.aio.AioRpcError:
                continue  # nobody listens yet
            answers.append(answer.status)
            if answer.status == SERVING:
                stats_at_serving.append(await client.stats())
                return answers


async def chat_cached(client):
    message = inference_pb2.ChatMessage
    asked = inference_pb2.GenerateUnaryRequest(
        chat=inference_pb2.ChatPrompt(
            messages=[
                message(role=inference_pb2.ROLE_SYSTEM, content=SYSTEM),
                message(role=inference_pb2.ROLE_USER, content="Hi"),
            ]
        ),
        sampling=inference_pb2.SamplingParams(max_tokens=1),
    )
    return (await client.inference.GenerateUnary(asked, timeout=20)).usage.cached_tokens


async def pinned(client):
    pins = (await client.admin.ListPins(admin_pb2.ListPinsRequest(), timeout=10)).pins
    return sorted((pin.level, pin.kept_tokens) for pin in pins)


@pytest.mark.timeout(240)
async def test_prefixes_are_warm_before_health_says_serving(tmp_path):
    file = tmp_path / "prefixes.yaml"
    file.write_text(FILE)
    (port,) = free_ports("127.0.0.1", 1)
    # 32 tokens in 50 ms: the file takes a good second, so that readiness has to wait for it.
    flags = ["--port", str(port), "--fake-worker", "--fake-step-ms", "50", "--kv-slots", "2048"]
    starting = asyncio.create_task(
        asyncio.to_thread(
            Stack, *flags, "--max-batch-tokens", "32", "--preheat", str(file), "--metrics-port=-1"
        )
    )
    at_serving = []
    answers = await asyncio.wait_for(health_until_serving(f"127.0.0.1:{port}", at_serving), 60)
    stack = await starting
    try:
        assert set(answers[:-1]) <= {health_pb2.HealthCheckResponse.NOT_SERVING}
        assert at_serving[0].tokens.preheated == NUM_TOKENS
        assert at_serving[0].tokens.computed == NUM_TOKENS
        events = [line for line in stack.lines if '"preheat_' in line]
        assert '"done": 0, "total": 3' in events[0]
        assert "preheat_done" in events[-1]
        ready = next(n for n, line in enumerate(stack.lines) if "radixd is ready" in line)
        assert stack.lines.index(events[-1]) < ready
        async with Client(stack.address) as client:
            await look_at_what_is_warm(client)
            before = stack.pids()["gpu_worker"]
            os.kill(before, signal.SIGKILL)
            # The pool of the next worker is empty: the file is warmed again, and pinned again.
            lost = len(stack.lines)
            await asyncio.to_thread(stack.wait_for_line, "preheat_done", start=lost)
            await look_at_what_is_warm(client)
    finally:
        stack.interrupt()


async def look_at_what_is_warm(client):
    levels = [(admin_pb2.PIN_LEVEL_SOFT, NUM_CHAT_TOKENS), (admin_pb2.PIN_LEVEL_HARD, len(TEXT))]

    async def both():
        return await pinned(client) == levels

    await until(both, "two pins")
    assert await cached(client, [*TEXT.encode(), 33]) == len(TEXT)
    assert await chat_cached(client) == NUM_CHAT_TOKENS
    assert await cached(client, [*IDS, 33], cache_domain="apart") == len(IDS)
    assert await cached(client, [*IDS, 33]) == 0


@pytest.mark.parametrize(
    ("option", "text", "words"),
    [
        ("preheat", "prefixes:\n  - text: a\n  - text: b\n    pin: firm\n", "entry 2, pin: "),
        ("preheat", "prefixes:\n  - text: a\n    ttl_s: 5\n", "entry 1, ttl_s: "),
        ("preheat", "prefixes:\n  - ids: [1, -1]\n", "entry 1, ids[1]: "),
        ("preheat", "prefixes:\n  - text: a\n    tenant: acme\n", "entry 1, tenant: "),
        ("preheat", "prefixes: 2026-99-99\n", "month must be in 1..12"),
        ("tenants", "acme: {most_share: 2}\n", "acme.most_share: "),
        ("tenants", "admin_keys: [secret]\n", "admin_keys.0: "),
    ],
)
def test_a_bad_file_ends_the_start_with_its_field(tmp_path, option, text, words):
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    radixd = "import sys; from radixd.cli.app import main; sys.exit(main())"
    argv = ["up", "--port", "0", "--fake-worker", f"--{option}", str(file)]
    ended = subprocess.run(
        [sys.executable, "-c", radixd, *argv], capture_output=True, text=True, timeout=30
    )
    assert ended.returncode in (1, 2)
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"radixd: {option}: {file}")
    assert words in line
    assert "secret" not in line
