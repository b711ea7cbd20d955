"""Bad input at the door: each refusal names its field, and the next request works."""

import math
from typing import Any

import grpc
import pytest

from protos.radixd.v1 import inference_pb2 as pb
from protos.radixd.v1 import tokenizer_pb2
from tests.tokenizer_svc.client import refused, script, stream, unary
from tests.tokenizer_svc.conftest import Serve, Served
from tokenizer_svc.tokenizers.byte_tokenizer import NUM_IDS

INVALID = grpc.StatusCode.INVALID_ARGUMENT
LIMIT = 4096


def sampled(**sampling: Any) -> dict[str, Any]:
    return {"text": "a", "sampling": pb.SamplingParams(**sampling)}


def chat(role: int, content: str = "a") -> dict[str, Any]:
    messages = [pb.ChatMessage(role=role, content=content)]  # type: ignore[arg-type]
    return {"chat": pb.ChatPrompt(messages=messages)}


BAD: list[tuple[dict[str, Any], str]] = [
    # field case 85
    (sampled(temperature=math.nan), "sampling.temperature"),
    (sampled(temperature=math.inf), "sampling.temperature"),
    (sampled(temperature=-0.1), "sampling.temperature"),
    (sampled(temperature=101), "sampling.temperature"),
    (sampled(top_p=0), "sampling.top_p"),
    (sampled(top_p=1.1), "sampling.top_p"),
    (sampled(top_p=-1), "sampling.top_p"),
    (sampled(top_p=math.nan), "sampling.top_p"),
    (sampled(min_p=-0.1), "sampling.min_p"),
    (sampled(min_p=2), "sampling.min_p"),
    (sampled(min_p=math.nan), "sampling.min_p"),
    (sampled(top_k=-1), "sampling.top_k"),
    # field case 83
    (sampled(seed=-1), "sampling.seed"),
    (sampled(max_tokens=2**31), "sampling.max_tokens"),
    # field case 87
    (sampled(max_tokens=0), "sampling.max_tokens"),
    (sampled(max_tokens=-5), "sampling.max_tokens"),
    # field case 84
    (sampled(stop=["0123456789"] * 5000), "sampling.stop"),
    (sampled(stop=["a", ""]), "sampling.stop[1]"),
    (sampled(stop=["é" * 129]), "sampling.stop[0]"),
    (sampled(stop_token_ids=list(range(17))), "sampling.stop_token_ids"),
    # field case 82
    (sampled(stop_token_ids=[0, -1]), "sampling.stop_token_ids[1]"),
    (sampled(stop_token_ids=[NUM_IDS]), "sampling.stop_token_ids[0]"),
    ({"tokens": pb.TokenIds(ids=[1, 2, 3, -1])}, "tokens.ids[3]"),
    ({"tokens": pb.TokenIds(ids=[NUM_IDS])}, "tokens.ids[0]"),
    ({"tokens": pb.TokenIds(ids=[5, 2**31])}, "tokens.ids[1]"),
    ({"tokens": pb.TokenIds(ids=[5, 2**63 - 1])}, "tokens.ids[1]"),
    # field case 89
    ({}, "prompt"),
    ({"text": ""}, "text"),
    ({"chat": pb.ChatPrompt()}, "chat.messages"),
    ({"tokens": pb.TokenIds()}, "tokens.ids"),
    # unknown enum
    (chat(77), "chat.messages[0].role"),
    (chat(0), "chat.messages[0].role"),
    # field case 59
    ({"text": "a", "request_id": ""}, "request_id"),
    ({"text": "a", "request_id": "x" * 10_000}, "request_id"),
    ({"text": "a", "request_id": "a\nb"}, "request_id"),
    (sampled(min_tokens=-1), "sampling.min_tokens"),
    (sampled(min_tokens=2**31), "sampling.min_tokens"),
    (sampled(min_tokens=3, max_tokens=2), "sampling.min_tokens"),
    (sampled(min_tokens=3, max_tokens=0), "sampling.max_tokens"),
    (sampled(min_tokens=LIMIT), "sampling.min_tokens"),
    (sampled(repetition_penalty=0), "sampling.repetition_penalty"),
    (sampled(repetition_penalty=-1), "sampling.repetition_penalty"),
    (sampled(repetition_penalty=10.1), "sampling.repetition_penalty"),
    (sampled(repetition_penalty=math.nan), "sampling.repetition_penalty"),
    (sampled(presence_penalty=2.1), "sampling.presence_penalty"),
    (sampled(presence_penalty=-2.1), "sampling.presence_penalty"),
    (sampled(presence_penalty=math.nan), "sampling.presence_penalty"),
    (sampled(frequency_penalty=2.1), "sampling.frequency_penalty"),
    (sampled(frequency_penalty=-2.1), "sampling.frequency_penalty"),
    (sampled(frequency_penalty=-math.inf), "sampling.frequency_penalty"),
    (sampled(logprobs=-1), "sampling.logprobs"),
    (sampled(logprobs=21), "sampling.logprobs"),
    ({"text": "a", "priority": 101}, "priority"),
    ({"text": "a", "priority": -101}, "priority"),
    ({"text": "a", "workload": "w" * 65}, "workload"),
    ({"text": "a", "workload": "a\nb"}, "workload"),
    ({"text": "a", "timeout_ms": 0}, "timeout_ms"),
    ({"text": "a", "timeout_ms": 2**64 - 1}, "timeout_ms"),
    ({"text": "a", "cache_domain": "d" * 257}, "cache_domain"),
]


@pytest.mark.parametrize(("request_fields", "field"), BAD)
async def test_bad_fields_are_named(served: Served, request_fields: dict[str, Any], field: str):
    got = await refused(unary(served, **request_fields))
    assert (got.code, got.field, got.reason) == (INVALID, field, "INVALID_FIELD")
    assert got.message.startswith(f"{field}: ")
    streamed = await refused(stream(served, **request_fields))
    assert (streamed.code, streamed.field) == (INVALID, field)
    assert (await unary(served, tokens=script("ok"))).text == "ok"
    assert served.scheduler.seen.submits[0].prompt_ids[:4] == b"p\0\0\0"


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0},
        {"temperature": 1e-9},
        {"temperature": 100},
        {"top_p": 1e-9},
        {"top_p": 1},
        {"top_k": 0},
        {"top_k": NUM_IDS + 1},
        {"top_k": 2**62},
        {"min_p": 0},
        {"min_p": 1},
        {"seed": 2**63 - 1},
        {"max_tokens": 2**31 - 1},
        {"stop": ["a" * 256] * 16},
        {"min_tokens": 0},
        {"min_tokens": 3, "max_tokens": 3},
        {"min_tokens": LIMIT - 5},
        {"repetition_penalty": 1e-9},
        {"repetition_penalty": 10},
        {"presence_penalty": -2, "frequency_penalty": 2},
        {"presence_penalty": 2, "frequency_penalty": -2},
        {"logprobs": 0},
        {"logprobs": 20},
    ],
)
async def test_edges_that_are_allowed(served: Served, sampling: dict[str, Any]):
    reply = await unary(served, tokens=script("ok"), sampling=pb.SamplingParams(**sampling))
    assert reply.text == "ok"
    sent = served.scheduler.seen.submits[0].sampling
    assert sent.top_k == min(sampling.get("top_k", 0), NUM_IDS)
    assert sent.temperature == pytest.approx(sampling.get("temperature", 0))
    assert sent.top_p == pytest.approx(sampling.get("top_p", 1))
    assert sent.min_tokens == sampling.get("min_tokens", 0)
    assert sent.repetition_penalty == pytest.approx(sampling.get("repetition_penalty", 0))
    assert sent.presence_penalty == sampling.get("presence_penalty", 0)
    assert sent.frequency_penalty == sampling.get("frequency_penalty", 0)
    assert sent.HasField("logprobs") == ("logprobs" in sampling)


@pytest.mark.parametrize(("priority", "workload"), [(0, ""), (-100, "chat"), (100, "長" * 64)])
async def test_what_operators_see_goes_along(served: Served, priority: int, workload: str):
    fields = {"priority": priority, "workload": workload, "request_id": "mine"}
    assert (await unary(served, tokens=script("ok"), **fields)).text == "ok"
    await unary(served, tokens=script("ok"))
    sent, plain = served.scheduler.seen.submits
    assert (sent.priority, sent.workload, sent.client_request_id) == (priority, workload, "mine")
    assert sent.request_id != "mine"
    assert (plain.priority, plain.workload, plain.tenant, plain.pin) == (0, "", "", 0)
    assert plain.client_request_id


@pytest.mark.parametrize("request_id", ["x", "id with spaces", "名前", "x" * 128, "a/b.c"])
async def test_request_ids_that_are_allowed(served: Served, request_id: str):
    reply = await unary(served, tokens=script("ok"), request_id=request_id)
    assert (reply.text, reply.request_id) == ("ok", request_id)
    assert 1 <= len(served.scheduler.seen.submits[0].request_id) <= 128


# field case 87
async def test_max_tokens_one_and_missing(served: Served):
    one = await unary(served, text="a", sampling=pb.SamplingParams(max_tokens=1))
    assert (len(one.token_ids), one.finish_reason) == (1, pb.FINISH_REASON_LENGTH)
    served.scheduler.behavior.tokens_per_step = 512
    missing = await unary(served, text="abc")
    assert len(missing.token_ids) == LIMIT - 3


# field case 88
@pytest.mark.parametrize("length", [LIMIT - 2, LIMIT - 1, LIMIT, LIMIT + 1])
@pytest.mark.parametrize("max_tokens", [1, 5, None])
async def test_at_the_context_limit(served: Served, length: int, max_tokens: int | None):
    sampling = pb.SamplingParams(max_tokens=max_tokens)
    call = unary(served, text="x" * length, sampling=sampling)
    if length >= LIMIT:
        got = await refused(call)
        assert (got.code, got.field) == (INVALID, "text")
        assert f"{length} tokens" in got.message
        assert f"{LIMIT} is the limit" in got.message
        return
    reply = await call
    assert len(reply.token_ids) == min(max_tokens or LIMIT, LIMIT - length)
    assert reply.finish_reason == pb.FINISH_REASON_LENGTH
    assert reply.usage.prompt_tokens == length


async def test_whitespace_is_a_prompt(served: Served):
    assert (await unary(served, text=" ", sampling=pb.SamplingParams(max_tokens=2))).text


# field case 122
async def test_a_text_above_the_limit_is_refused_by_name(served: Served):
    text = "a" * 10_000_000
    for request in ({"text": text}, {**chat(pb.ROLE_USER, text)}):
        got = await refused(unary(served, **request))
        assert got.code == INVALID
        assert got.field in ("text", "chat.messages[0].content")
        assert str(4 << 20) in got.message
    got = await refused(served.tokenizer.Tokenize(tokenizer_pb2.TokenizeRequest(text=text)))
    assert (got.code, got.field) == (INVALID, "text")
    assert (await unary(served, tokens=script("ok"))).text == "ok"


async def test_the_limit_counts_bytes_of_all_messages(serve: Serve):
    served = await serve(max_prompt_bytes=10)
    assert (await refused(unary(served, text="漢" * 4))).field == "text"
    got = await refused(
        unary(
            served,
            chat=pb.ChatPrompt(
                messages=[
                    pb.ChatMessage(role=pb.ROLE_USER, content="漢漢"),
                    pb.ChatMessage(role=pb.ROLE_USER, content="漢漢"),
                ]
            ),
        )
    )
    assert got.field == "chat.messages[1].content"
    sampling = pb.SamplingParams(max_tokens=1)
    assert (await unary(served, text="漢漢漢a", sampling=sampling)).usage.prompt_tokens == 10


# field case 74
async def test_as_many_live_requests_as_may_be(serve: Serve):
    served = await serve(max_live=1)
    served.scheduler.behavior.num_before_hold = 1
    call = served.inference.Generate(pb.GenerateRequest(text="a", request_id="first"))
    await call.read()
    got = await refused(unary(served, text="b"))
    assert (got.code, got.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    assert got.retry_after_ms == 1000
    call.cancel()
    await served.idle()
    served.scheduler.behavior.num_before_hold = None
    assert (await unary(served, tokens=script("ok"))).text == "ok"
