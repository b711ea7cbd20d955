"""Replies of more than 4 MiB, which is as much as a gRPC client takes that says nothing of it.

They are made in a thread of their own, a slice at a time, so that no other stream waits for them.
"""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Iterator

import grpc
import pytest

from protos.radixd.v1 import inference_pb2 as pb
from protos.radixd.v1 import inference_pb2_grpc
from protos.wire import unpack_floats, unpack_ids
from radixd.cli.client import Client
from tests.http.ask import CHAT, PLAIN, RESPONSES, refused, streamed, user
from tests.tokenizer_svc.client import refused as grpc_refused
from tests.tokenizer_svc.fake_scheduler import logprobs_of
from tokenizer_svc import fit, long_replies
from tokenizer_svc.long_replies import SLICE_ROWS

MORE_THAN_BYTES = 4 << 20
NUM_TOP = 20


def scores(ids):
    """What the scheduler says of each token but the first."""
    return list(unpack_floats(logprobs_of(ids, 1, NUM_TOP).chosen))


@contextlib.asynccontextmanager
async def inference_of(served):
    options = [("grpc.max_receive_message_length", -1)]
    address = f"127.0.0.1:{served.front.port}"
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        yield inference_pb2_grpc.InferenceServiceStub(channel)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The threads that pause between two slices; the event loop's is never among them."""
    names: list[str] = []

    class Clock:
        @staticmethod
        def sleep(seconds: float) -> None:
            names.append(threading.current_thread().name)
            time.sleep(seconds)

    monkeypatch.setattr(long_replies, "time", Clock)
    yield names
    assert all(name.startswith("long-replies") for name in names)


# field case 122
@pytest.mark.parametrize("path", [CHAT, PLAIN])
@pytest.mark.parametrize("stream", [False, True])
async def test_scores_of_a_long_prompt_over_http(served, path, stream, pauses):
    text = "abcdefgh" * 700
    prompt = {"prompt": text} if path == PLAIN else {"messages": user(text)}
    body = {**prompt, "max_tokens": 1, "prompt_logprobs": NUM_TOP, "stream": stream}
    answer = await served.http.post(path, json=body)
    assert answer.status_code == 200
    assert len(answer.content) > MORE_THAN_BYTES
    data = answer.text.partition("data: ")[2].partition("\n\n")[0] if stream else answer.text
    reply = json.loads(data)
    first, *rows = (reply if path == CHAT else reply["choices"][0])["prompt_logprobs"]
    assert first is None
    ids = list(unpack_ids(served.scheduler.seen.submits[0].prompt_ids, typecode="I"))
    said = [row[str(token_id)]["logprob"] for token_id, row in zip(ids[1:], rows, strict=True)]
    assert said == scores(ids)
    assert len(pauses) >= len(ids) // SLICE_ROWS - 1
    assert {len(row) for row in rows} <= {NUM_TOP, NUM_TOP + 1}


# field case 122
async def test_scores_of_a_long_prompt_over_grpc(served, pauses):
    ids = [97 + number % 8 for number in range(25_000)]

    def ask() -> list[pb.GenerateResponse]:
        request = pb.GenerateRequest(
            tokens=pb.TokenIds(ids=ids),
            sampling=pb.SamplingParams(max_tokens=1),
            prompt_logprobs=NUM_TOP,
        )
        with Client(f"127.0.0.1:{served.front.port}") as client:
            return list(client.generate(request))

    first, *_ = await asyncio.to_thread(ask)
    assert first.ByteSize() > MORE_THAN_BYTES
    assert [row.token_id for row in first.prompt_logprobs] == ids[1:]
    assert [row.logprob for row in first.prompt_logprobs] == scores(ids)
    assert {len(row.top) for row in first.prompt_logprobs} == {NUM_TOP}
    assert len(pauses) >= len(ids) // SLICE_ROWS - 1


async def test_a_whole_reply_over_grpc_says_what_the_stream_says(served, pauses):
    fields = {
        "tokens": pb.TokenIds(ids=[97] * 3000),
        "sampling": pb.SamplingParams(max_tokens=600, logprobs=3, ignore_eos=True, seed=5),
        "prompt_logprobs": NUM_TOP,
        "n": 2,
        "request_id": "r",
    }

    async with inference_of(served) as stub:
        call = stub.Generate(pb.GenerateRequest(**fields), timeout=20)
        pieces = [piece async for piece in call]
        whole = await stub.GenerateUnary(pb.GenerateUnaryRequest(**fields), timeout=20)
    assert list(whole.prompt_logprobs) == list(pieces[0].prompt_logprobs)
    assert len(whole.prompt_logprobs) == 2999
    for number, choice in enumerate(whole.choices):
        mine = [piece for piece in pieces if piece.choice == number]
        assert choice.text == "".join(piece.text for piece in mine)
        assert list(choice.token_ids) == [i for piece in mine for i in piece.token_ids]
        assert list(choice.logprobs) == [row for piece in mine for row in piece.logprobs]
        assert choice.finish_reason == pb.FINISH_REASON_LENGTH
    assert (whole.text, list(whole.logprobs)) == (
        whole.choices[0].text,
        list(whole.choices[0].logprobs),
    )
    assert whole.usage == pieces[-1].usage
    assert len(pauses) >= 2 * 3000 // SLICE_ROWS


@pytest.mark.parametrize("path", [CHAT, PLAIN, RESPONSES])
async def test_scores_of_a_long_output(served, path, pauses):
    body = {"temperature": 0, "ignore_eos": True, "seed": 5}
    if path == RESPONSES:
        include = ["message.output_text.logprobs"]
        body |= {"input": "x", "max_output_tokens": 700, "top_logprobs": 3, "include": include}
    elif path == CHAT:
        body |= {"messages": user("x"), "max_tokens": 700, "logprobs": True, "top_logprobs": 3}
    else:
        body |= {"prompt": "x", "max_tokens": 700, "logprobs": 3, "echo": True, "n": 2}
    answer = (await served.http.post(path, json=body)).json()
    assert len(pauses) >= 700 // SLICE_ROWS
    events = await streamed(served.http, path, **body)
    if path == RESPONSES:
        assert events[-1]["response"]["output"][0]["content"] == answer["output"][0]["content"]
        assert len(answer["output"][0]["content"][0]["logprobs"]) == 700
        return
    for choice in answer["choices"]:
        mine = [e["choices"][0] for e in events if e["choices"][0]["index"] == choice["index"]]
        for name, entries in choice["logprobs"].items():
            said = [part["logprobs"] and part["logprobs"][name] for part in mine]
            assert entries == ([x for each in said for x in each or ()] or None)
        assert len(choice["logprobs"].get("tokens", range(701))) == 701


# Both would be more than a gRPC client takes.
@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"messages": user("x" * 90), "prompt_logprobs": 2}, "prompt_logprobs"),
        (PLAIN, {"prompt": "x" * 90, "prompt_logprobs": 2}, "prompt_logprobs"),
        (PLAIN, {"prompt": "x" * 90, "echo": True, "logprobs": 2}, "logprobs"),
    ],
)
async def test_more_scores_than_a_reply_holds_are_refused(served, monkeypatch, path, fields, param):
    monkeypatch.setattr(fit, "MAX_SCORE_BYTES", 2000)
    error = await refused(served.http, path, fields)
    assert error["param"] == param
    assert "2 alternatives for each of" in error["message"]
    assert "at most 2000" in error["message"]
    assert not served.scheduler.seen.submits


@pytest.mark.parametrize("num_top", [0, 1, 20])
@pytest.mark.parametrize("vocab_size", [100, 128, 129, 49152, 151936, 1 << 21])
def test_the_bytes_of_scores_are_never_more_than_counted(num_top, vocab_size):
    last = vocab_size - 1
    top = [pb.TopLogprob(token_id=last, logprob=-1.5)] * num_top
    row = pb.TokenLogprobs(token_id=last, logprob=-1.5, top=top)
    num_bytes = pb.GenerateResponse(prompt_logprobs=[row] * 1000).ByteSize() / 1000
    assert num_bytes <= fit._row_bytes(num_top, vocab_size) <= 1.2 * num_bytes


async def test_they_are_refused_over_grpc(served, monkeypatch):
    monkeypatch.setattr(fit, "MAX_SCORE_BYTES", 1000)
    request = pb.GenerateUnaryRequest(tokens=pb.TokenIds(ids=[97] * 90), prompt_logprobs=2)
    async with inference_of(served) as stub:
        found = await grpc_refused(stub.GenerateUnary(request, timeout=10))
        assert (found.reason, found.field) == ("INVALID_FIELD", "prompt_logprobs")
        request.ClearField("prompt_logprobs")
        request.sampling.max_tokens = 1
        assert (await stub.GenerateUnary(request, timeout=10)).text
