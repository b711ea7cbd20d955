"""Clients that leave, wait or do not read: what they held comes back, and nobody else notices."""

import asyncio
import socket
import struct

import httpx2
import pytest

from tests.http.ask import CHAT, PLAIN, RESPONSES, connected, ok, raw_connection, raw_request, user
from tests.system.stack import Client, launched

LONG = {"max_tokens": 1900, "ignore_eos": True}


async def begun(grpc_client, num_running=1):
    """Returns once so many requests run."""
    async with asyncio.timeout(10):
        while (await grpc_client.stats()).requests.running < num_running:
            await asyncio.sleep(0.005)


async def cut(grpc_client, before, num_requests):
    """So many more were cancelled, and nothing is held for them any more; returns the books."""
    stats = await grpc_client.idle()
    assert stats.requests.cancelled - before.requests.cancelled == num_requests
    return stats


@pytest.mark.parametrize(
    ("path", "prompt", "num_requests"),
    [
        (CHAT, {"messages": user("hi")}, 1),
        (PLAIN, {"prompt": ["a", "b"]}, 2),
        (RESPONSES, {"input": "x"}, 1),
    ],
)
async def test_who_leaves_a_stream_frees_its_slots(http, grpc_client, path, prompt, num_requests):
    """Field case 52."""
    before = await grpc_client.stats()
    length = {"max_output_tokens": 1900} if path == RESPONSES else {"max_tokens": 1900}
    body = {**prompt, **length, "ignore_eos": True, "stream": True}
    async with http.stream("POST", path, json=body) as answer:
        lines = answer.aiter_lines()
        for _ in range(5):
            await anext(lines)
    steps = (await cut(grpc_client, before, num_requests)).num_steps
    await asyncio.sleep(0.1)
    assert (await grpc_client.stats()).num_steps == steps, "nobody decodes for who left"


async def test_fifty_leave_at_once(stack, grpc_client):  # field case 52
    async def leave(client, number):
        body = {"prompt": f"number {number}", **LONG, "stream": True}
        async with client.stream("POST", PLAIN, json=body) as answer:
            await anext(answer.aiter_lines())

    before = await grpc_client.stats()
    async with connected(stack) as client:
        await asyncio.gather(*(leave(client, number) for number in range(50)))
        await cut(grpc_client, before, 50)


@pytest.mark.parametrize("num_prompts", [1, 2])
async def test_who_leaves_a_whole_answer_frees_its_slots(http, grpc_client, num_prompts):
    """Field case 54."""
    before = await grpc_client.stats()
    prompts = [f"prompt {number}" for number in range(num_prompts)]
    call = asyncio.create_task(http.post(PLAIN, json={"prompt": prompts, **LONG}))
    await begun(grpc_client, num_prompts)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await cut(grpc_client, before, num_prompts)


async def test_who_leaves_during_the_prompt_frees_its_slots():  # field cases 53, 54
    flags = ("--fake-worker", "--fake-step-ms", "50", "--chunk-size", "16")
    with launched(*flags) as stack:
        async with connected(stack) as http, Client(stack.address) as grpc_client:
            before = await grpc_client.stats()
            call = asyncio.create_task(http.post(PLAIN, json={"prompt": "x" * 1600, **LONG}))
            await begun(grpc_client)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            assert (await cut(grpc_client, before, 1)).tokens.generated == 0


async def test_who_does_not_read_is_cut_and_nobody_else_waits():
    flags = ("--fake-worker", "--slow-reader-s", "1", "--max-length", "60000")
    flags += ("--kv-slots", "70000", "--max-running", "8")
    body = b'{"prompt":"x","max_tokens":50000,"ignore_eos":true,"stream":true,"logprobs":20}'
    with launched(*flags) as stack:
        async with connected(stack) as http, Client(stack.address) as grpc_client:
            with raw_connection(stack, window_bytes=4096) as connection:
                connection.sendall(raw_request(PLAIN, body))
                answer = await ok(http, PLAIN, prompt="y", max_tokens=50)
                assert answer["usage"]["completion_tokens"] == 50
                async with asyncio.timeout(30):  # busy machines take their time to fill buffers
                    while not (await grpc_client.stats()).requests.cancelled:
                        await asyncio.sleep(0.02)
                assert (await grpc_client.idle()).requests.cancelled == 1


async def test_a_connection_that_is_reset_frees_its_slots(stack, grpc_client):
    body = b'{"prompt":"x","max_tokens":1900,"ignore_eos":true,"stream":true}'
    before = await grpc_client.stats()
    connection = raw_connection(stack)
    connection.sendall(raw_request(PLAIN, body))
    assert connection.recv(100).startswith(b"HTTP/1.1 200")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    await cut(grpc_client, before, 1)


async def test_three_hundred_streams_at_once_all_end(stack, grpc_client):  # field case 62
    async def one(client, number):
        body = {"prompt": f"number {number}", "max_tokens": 20, "stream": True}
        async with client.stream("POST", PLAIN, json=body) as answer:
            lines = [line async for line in answer.aiter_lines() if line]
        return lines[-1]

    async with connected(stack, limits=httpx2.Limits(max_connections=None)) as client:
        ends = await asyncio.gather(*(one(client, number) for number in range(300)))
    assert ends == ["data: [DONE]"] * 300
    await grpc_client.idle()
