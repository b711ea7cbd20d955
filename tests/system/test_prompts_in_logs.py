"""What users write and what the model answers is in no service's log, unless it was asked for."""

import json

import grpc
import httpx2
import pytest

from protos.radixd.v1 import inference_pb2 as pb
from tests.http.ask import script, user
from tests.system.ask import whole
from tests.system.stack import Client, launched

SECRET, ANSWER = "Xq7 the secret of my life Zv9", "Kw3 nobody else may read this Pj5"


async def say_everything(stack) -> None:
    """The secret by every way, to a happy end and to refusals that may quote it."""
    async with Client(stack.address) as client:
        for prompt in (
            {"text": SECRET},
            {"tokens": pb.TokenIds(ids=script(ANSWER))},
            {"chat": pb.ChatPrompt(messages=[pb.ChatMessage(role=pb.ROLE_USER, content=SECRET)])},
        ):
            sampling = pb.SamplingParams(max_tokens=80)
            await whole(client, pb.GenerateRequest(**prompt, sampling=sampling))
        for bad in (
            pb.GenerateRequest(text=SECRET, request_id=SECRET * 9),
            pb.GenerateRequest(text=SECRET, sampling=pb.SamplingParams(stop=[SECRET] * 17)),
            pb.GenerateRequest(text=SECRET, constraint=pb.Constraint(regex=f"({SECRET}")),
        ):
            with pytest.raises(grpc.aio.AioRpcError):
                await whole(client, bad)
    async with httpx2.AsyncClient(base_url=stack.http, trust_env=False, timeout=30) as http:
        body = {"messages": user(SECRET), "max_tokens": 5}
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
        body = {"prompt": script(ANSWER), "max_tokens": 80, "temperature": 0}
        answer = await http.post("/v1/completions", json=body)
        assert answer.json()["choices"][0]["text"] == ANSWER
        for content in (f'{{"prompt": "{SECRET}"', json.dumps({"prompt": "x", SECRET: SECRET})):
            answer = await http.post("/v1/completions", content=content)
            assert answer.status_code == 400
        await http.post("/tokenize", json={"text": SECRET})
        await http.post("/preheat", json={"prefixes": [SECRET]})


def told(log: str) -> list[str]:
    """Signs of either text in a log: words of it, and its tokens, which are its bytes."""
    signs = [
        *("Xq7", "secret of my", "Zv9", "Kw3", "nobody else", "Pj5"),
        ", ".join(str(byte) for byte in SECRET.encode()[4:9]),
        ", ".join(str(byte) for byte in ANSWER.encode()[4:9]),
    ]
    return [sign for sign in signs if sign in log]


async def test_nothing_of_either_is_logged():
    with launched("--fake-worker", "--log-level", "debug") as stack:
        await say_everything(stack)
    log = "\n".join(stack.lines)
    assert '"call_refused"' in log, "the level is as low as it gets"
    assert told(log) == []


async def test_an_operator_may_ask_for_it():
    with launched("--fake-worker", "--log-prompts") as stack:
        async with Client(stack.address) as client:
            few = pb.SamplingParams(max_tokens=5)  # the fake worker has no end of its own
            await whole(client, pb.GenerateRequest(text=SECRET, sampling=few, request_id="r-1"))
            tokens = pb.TokenIds(ids=script(ANSWER))
            await whole(client, pb.GenerateRequest(tokens=tokens, request_id="r-2"))
        said = stack.wait_for_line("Kw3")
    assert json.loads(stack.wait_for_line('"prompt_received"'))["prompt"] == SECRET
    said = json.loads(said)
    assert (said["event"], said["request_id"]) == ("answer_sent", "r-2")
    assert said["texts"] == {"0": ANSWER}
