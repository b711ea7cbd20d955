"""Group F of the field cases on a whole server of a few rows: who leaves costs nothing more."""

import asyncio
import contextlib
import random

import grpc
import pytest

from protos.radixd.v1 import admin_pb2, inference_pb2
from tests.system.ask import Running, ids, request, unary, whole
from tests.system.stack import FAKE, launched

CHUNK, ROWS = 8, 8


@pytest.fixture(scope="module")
def stack():
    with launched(
        *("--fake-worker", "--fake-step-ms", "5", "--max-running", str(ROWS), "--kv-slots", "4096"),
        *("--chunk-size", str(CHUNK), "--speculation", "off"),
    ) as running:
        yield running


async def computed(client):
    return (await client.stats()).tokens.computed


async def cancel(client, request_id):
    await client.inference.Cancel(inference_pb2.CancelRequest(request_id=request_id), timeout=10)


async def test_a_unary_call_that_is_left_in_prefill_computes_no_further(client):  # field case 54
    before = await computed(client)
    prompt = ids(60 * CHUNK, "left in prefill")
    call = client.inference.GenerateUnary(unary(request(prompt, 50)), timeout=50)
    while await computed(client) < before + 3 * CHUNK:
        await asyncio.sleep(0.002)
    at_leaving = await computed(client)
    call.cancel()
    await client.idle()
    # The two that were out, and those planned while the cancellation was on its way.
    assert await computed(client) - at_leaving <= 8 * CHUNK
    assert at_leaving - before < 30 * CHUNK, "it was nearly done: this shows nothing"


async def test_a_request_that_is_cancelled_in_the_queue_costs_nothing(client):  # field case 56
    holders = [Running(client, request(ids(10, f"holds {n}"), 2000)) for n in range(ROWS)]
    for holder in holders:
        await holder.began()
    waiting = asyncio.create_task(
        whole(client, request(ids(200, "waits"), 5, request_id="waits", session="talk"))
    )
    while not (await client.stats()).requests.waiting:
        await asyncio.sleep(0.005)
    async with asyncio.timeout(10):
        await cancel(client, "waits")
        answer = await waiting
    assert answer.finish_reason == inference_pb2.FINISH_REASON_CANCELLED
    assert (answer.usage.completion_tokens, answer.text) == (0, "")
    for holder in holders:
        holder.leave()
        await holder
    await client.idle()
    again = await whole(client, request(ids(200, "waits"), 5, request_id="waits", session="talk"))
    assert again.usage.cached_tokens < 10, "nothing had been computed for it"
    assert list(again.token_ids) == FAKE.generate(ids(200, "waits"), 5)
    await client.admin.CloseSession(admin_pb2.CloseSessionRequest(session="talk"), timeout=10)


async def test_the_turn_after_an_abandoned_one(client):  # field case 57
    prompt = ids(30, "abandoned")
    stream = await Running(client, request(prompt, 500)).began(4)
    stream.leave()
    said = [token for piece in await stream for token in piece.token_ids][:4]
    follow_up = [*prompt, *said, ord("x")]
    answer = await whole(client, request(follow_up, 40))
    assert list(answer.token_ids) == FAKE.generate(follow_up, 40)
    assert said == FAKE.generate(prompt, 4)


async def ending(client, request_id, prompt, cancel_after_s):
    """How a request of five tokens ends that is cancelled twice, somewhere around its end."""

    async def cancel_twice():
        await asyncio.sleep(cancel_after_s)
        for _ in range(2):
            with contextlib.suppress(grpc.aio.AioRpcError):  # it has ended
                await cancel(client, request_id)

    canceller = asyncio.create_task(cancel_twice())
    call = client.inference.Generate(request(prompt, 5, request_id=request_id), timeout=60)
    try:
        (reason,) = [m.finish_reason async for m in call if m.finish_reason]
    except grpc.aio.AioRpcError as error:
        reason = error.code()
    await canceller
    return reason


@pytest.mark.timeout(180)
async def test_a_thousand_cancels_around_the_end(client):  # field case 58
    rng, gate = random.Random(58), asyncio.Semaphore(100)

    async def one(n):
        async with gate:
            return await ending(client, f"r{n}", ids(3, n % 7), rng.uniform(0, 0.6))

    endings = await asyncio.gather(*(one(n) for n in range(1000)))
    assert len(endings) == 1000
    length, cancelled = inference_pb2.FINISH_REASON_LENGTH, inference_pb2.FINISH_REASON_CANCELLED
    # The last is that of a request which had not begun.
    assert {length, cancelled} <= set(endings) <= {length, cancelled, grpc.StatusCode.CANCELLED}
    await client.idle()
    answer = await whole(client, request(ids(9, "alive"), 5))
    assert list(answer.token_ids) == FAKE.generate(ids(9, "alive"), 5)


async def test_a_change_near_the_beginning_shows_in_the_usage(client):  # field case 79
    prompt = ids(200, "agent")
    await whole(client, request(prompt, 1))
    changed = [*prompt[:5], 65, *prompt[6:]]
    answer = await whole(client, request(changed, 1, request_id="changed"))
    assert (answer.usage.cached_tokens, answer.usage.prompt_tokens) == (5, 200)
    assert (await whole(client, request(prompt, 1))).usage.cached_tokens == 199
