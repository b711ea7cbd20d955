"""Deadlines where steps take a known time: refused early, or ended with what there is."""

import asyncio

import grpc
import pytest

from protos.radixd.v1 import inference_pb2
from tests.system.ask import Running, explain, ids, refused, request, unary, whole
from tests.system.stack import FAKE, launched

STEP_MS, CHUNK = 20, 32
DEADLINE = inference_pb2.FINISH_REASON_DEADLINE


@pytest.fixture(scope="module")
def stack():
    with launched(
        *("--fake-worker", "--fake-step-ms", str(STEP_MS), "--kv-slots", "8192"),
        *("--max-batch-tokens", str(CHUNK), "--chunk-size", str(CHUNK)),
    ) as running:
        yield running


async def test_what_cannot_be_met_is_refused_before_anything_is_computed(client):
    for n in range(3):  # the server learns how long a step takes
        await whole(client, request(ids(200, f"learn{n}"), 4))
    before = await client.idle()
    # 2000 tokens are 63 steps, 1.26 s; refused when the time was over, it says something else.
    with refused(grpc.StatusCode.DEADLINE_EXCEEDED, "computing its prompt"):
        await whole(client, request(ids(2000, "late"), 5, timeout_ms=400, request_id="late"))
    after = await client.idle()
    assert after.tokens.computed == before.tokens.computed
    assert after.requests.expired - before.requests.expired == 1
    assert (await explain(client, "late")).ending == "DEADLINE"


async def test_what_can_be_met_is_served(client):
    prompt = ids(500, "in time")
    answer = await whole(client, request(prompt, 5, timeout_ms=30_000))
    assert list(answer.token_ids) == FAKE.generate(prompt, 5)
    # Warm, the same prompt takes a single step.
    answer = await whole(client, request(prompt, 2, timeout_ms=2_000))
    assert answer.finish_reason == inference_pb2.FINISH_REASON_LENGTH


async def test_a_deadline_on_the_way_leaves_the_partial_output(client):
    prompt = ids(20, "partial")
    message = request(prompt, 5000, timeout_ms=600)
    answers = await asyncio.gather(
        whole(client, message), client.inference.GenerateUnary(unary(message), timeout=20)
    )
    for answer in answers:
        assert answer.finish_reason == DEADLINE
        assert 1 <= len(answer.token_ids) <= 600 // STEP_MS
        assert list(answer.token_ids) == FAKE.generate(prompt, len(answer.token_ids))
        assert answer.usage.completion_tokens == len(answer.token_ids)
        assert "deadline" in answer.finish_message


async def test_the_deadline_of_the_call_counts_too(client):
    prompt = ids(20, "the call's")
    message = unary(request(prompt, 5000))
    answer = await client.inference.GenerateUnary(message, timeout=1.0)
    assert answer.finish_reason == DEADLINE
    assert list(answer.token_ids) == FAKE.generate(prompt, len(answer.token_ids))


async def test_one_that_expires_in_its_prompt_leaves_the_others_alone(client):
    other = ids(20, "other")
    stream = await Running(client, request(other, 60)).began(2)
    # Each alone is half a second of prompt.
    late = [whole(client, request(ids(800, f"late{n}"), 5, timeout_ms=350)) for n in range(4)]
    for result in await asyncio.gather(*late, return_exceptions=True):
        assert isinstance(result, grpc.aio.AioRpcError)
        assert result.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert [i for piece in await stream for i in piece.token_ids] == FAKE.generate(other, 60)
