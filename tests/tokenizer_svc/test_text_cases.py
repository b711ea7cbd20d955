"""Texts over the wire, stream and unary alike: what is cut, what is odd, what is long."""

import asyncio
from collections.abc import Sequence

import grpc
import pytest

from protos.radixd.v1 import inference_pb2 as pb
from protos.radixd.v1 import tokenizer_pb2
from radixd.cli.client import Client
from tests.tokenizer_svc.client import refused, script, stream, unary, wait_until
from tests.tokenizer_svc.conftest import Serve, Served
from tests.tokenizer_svc.fake_scheduler import FakeScheduler
from tokenizer_svc.tokenizers.byte_tokenizer import EOS, IM_END

HALF = "🙂".encode()[:2]
ODD_TEXTS = [
    "\x00",
    "\x1b[31mred\x1b[0m",
    "\ufeffa\ufeff",
    "\u200fab\u202ec\u202c",
    "\U0010ffff\ue000\ufdd0",
    "e" + "\u0301" * 500_000,
]


async def both(served: Served, **request: object) -> tuple[str, list[int], int]:
    """Text, ids and reason, after showing that stream and unary reply agree."""
    streamed, whole = await stream(served, **request), await unary(served, **request)
    said = (streamed.text, streamed.token_ids, streamed.last.finish_reason)
    assert said == (whole.text, list(whole.token_ids), whole.finish_reason)
    assert streamed.last.usage == whole.usage
    return said


# field case 64
@pytest.mark.parametrize(
    ("output", "stop", "text"),
    [
        # The stop text begins with the character that is whole, and after the one that is not.
        (b"a" + "🙂".encode() + b"END", ["🙂END"], "a"),
        (b"a" + HALF + b"END", ["END"], "a\ufffd"),
        (b"a" + HALF, ["\ufffd"], "a"),
    ],
)
async def test_half_a_character_before_a_stop_text(
    served: Served, output: bytes, stop: Sequence[str], text: str
):
    sampling = pb.SamplingParams(stop=stop, max_tokens=3 if len(output) == 3 else 50)
    said, _, reason = await both(served, tokens=script(output), sampling=sampling)
    assert (said, reason) == (text, pb.FINISH_REASON_STOP)


# field case 64
async def test_half_a_character_at_the_end_of_the_context(serve: Serve):
    scheduler = FakeScheduler()
    prompt = script("🙂" * 20)
    scheduler.model = type(scheduler.model)()
    scheduler.model.CopyFrom(FakeScheduler().model)
    scheduler.model.max_length = len(prompt.ids) + 6
    served = await serve(scheduler=scheduler)
    said, ids, reason = await both(served, tokens=prompt)
    assert (said, len(ids), reason) == ("🙂\ufffd", 6, pb.FINISH_REASON_LENGTH)


# field case 64
@pytest.mark.parametrize("streams", [True, False])
async def test_half_a_character_at_a_cancellation(served: Served, streams: bool):
    served.scheduler.behavior.num_before_hold = 3
    ask = stream if streams else unary
    call = asyncio.create_task(ask(served, tokens=script(b"a" + HALF + b"b"), request_id="x"))
    await wait_until(lambda: [len(one.token_ids) for one in served.front.live.all()] == [3])
    await served.inference.Cancel(pb.CancelRequest(request_id="x"), timeout=10)
    answer = await call
    last = answer.last if streams else answer
    assert (answer.text, list(answer.token_ids)) == ("a\ufffd", [*b"a", *HALF])
    assert last.finish_reason == pb.FINISH_REASON_CANCELLED


# field case 71
@pytest.mark.parametrize("eos", [EOS, IM_END])
@pytest.mark.parametrize("skip", [True, False])
async def test_each_end_of_sequence_is_in_the_ids_and_not_in_the_text(
    serve: Serve, eos: int, skip: bool
):
    scheduler = FakeScheduler()
    model = type(scheduler.model)()
    model.CopyFrom(scheduler.model)
    model.eos_token_ids.append(IM_END)
    scheduler.model = model
    served = await serve(scheduler=scheduler)
    sampling = pb.SamplingParams(logprobs=2, max_tokens=9)
    request = {"tokens": script([*b"ab", eos, *b"cd"]), "sampling": sampling}
    said, ids, reason = await both(served, **request, skip_special_tokens=skip)
    assert (said, ids, reason) == ("ab", [*b"ab", eos], pb.FINISH_REASON_STOP)
    whole = await unary(served, **request, skip_special_tokens=skip)
    assert whole.matched_token_id == eos
    assert [entry.token_id for entry in whole.logprobs] == ids


# field case 76
async def test_tokenize_counts_what_a_generation_is_charged(served: Served):
    for prompt in (
        {"text": "<|bos|>hé"},
        {"chat": pb.ChatPrompt(messages=[pb.ChatMessage(role=pb.ROLE_USER, content="hé")])},
    ):
        tokenized = await served.tokenizer.Tokenize(tokenizer_pb2.TokenizeRequest(**prompt))
        reply = await unary(served, **prompt, sampling=pb.SamplingParams(max_tokens=1))
        assert reply.usage.prompt_tokens == len(tokenized.ids)
        assert list(served.scheduler.seen.submits[-1].prompt_ids[::4]) == [
            i % 256 for i in tokenized.ids
        ]


# field case 78
@pytest.mark.parametrize("text", ODD_TEXTS, ids=range(len(ODD_TEXTS)))
async def test_odd_texts_go_in_and_come_out(served: Served, text: str):
    tokenized = await served.tokenizer.Tokenize(tokenizer_pb2.TokenizeRequest(text=text))
    asked = tokenizer_pb2.DetokenizeRequest(ids=tokenized.ids[:4_000_000])
    is_same = (await served.tokenizer.Detokenize(asked)).text == text
    assert is_same  # a difference in half a million characters is not for showing
    if len(tokenized.ids) < 100:
        assert (await both(served, tokens=script(text)))[0] == text


# field case 78
async def test_a_surrogate_names_its_field(served: Served):
    """A JSON body with \\ud800 becomes these three bytes where nobody looks."""
    honest = pb.GenerateUnaryRequest(
        chat=pb.ChatPrompt(messages=[pb.ChatMessage(role=pb.ROLE_USER, content="???")])
    ).SerializeToString()
    path = "/radixd.v1.InferenceService/GenerateUnary"
    call = served.channel.unary_unary(path)(honest.replace(b"???", b"\xed\xa0\x80"), timeout=10)
    got = await refused(call)
    assert (got.code, got.field) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "chat.messages[0].content",
    )
    assert (await unary(served, tokens=script("ok"))).text == "ok"


# field case 79
async def test_cached_tokens_are_those_of_the_scheduler(served: Served):
    served.scheduler.behavior.cached_tokens = 5
    reply = await unary(served, text="a" * 200, sampling=pb.SamplingParams(max_tokens=1))
    assert (reply.usage.cached_tokens, reply.usage.prompt_tokens) == (5, 200)


# field case 122
async def test_four_megabytes_there_and_back_with_the_shipped_client(serve: Serve):
    scheduler = FakeScheduler()
    model = type(scheduler.model)()
    model.CopyFrom(scheduler.model)
    model.max_length = 10 << 20
    scheduler.model = model
    served = await serve(scheduler=scheduler, max_prompt_bytes=8 << 20)
    text = "漢字" * 690_000

    def generate(prompt: str) -> str:
        request = pb.GenerateRequest(
            text=prompt, echo=True, sampling=pb.SamplingParams(max_tokens=1)
        )
        with Client(served.address) as client:
            return "".join(message.text for message in client.generate(request))

    said = await asyncio.to_thread(generate, text)
    begins = said.startswith(text)
    assert begins  # a difference in two million characters is not for showing
    assert len(said) > len(text)
    got = await refused(unary(served, text="a" * ((8 << 20) + 1)))
    assert got.field == "text"
    assert "max_prompt_bytes" in got.message
    assert str(8 << 20) in got.message
