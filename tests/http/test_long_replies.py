"""Replies of more than 4 MiB: as much as a gRPC client takes that says nothing of it."""

import asyncio
import json

import pytest

from protos.radixd.v1 import inference_pb2 as pb
from protos.wire import unpack_floats, unpack_ids
from radixd.cli.client import Client
from tests.http.ask import CHAT, PLAIN, user
from tests.tokenizer_svc.fake_scheduler import logprobs_of

MORE_THAN_BYTES = 4 << 20
NUM_TOP = 20


def scores(ids):
    """What the scheduler says of each token but the first."""
    return list(unpack_floats(logprobs_of(ids, 1, NUM_TOP).chosen))


# field case 122
@pytest.mark.parametrize("path", [CHAT, PLAIN])
@pytest.mark.parametrize("stream", [False, True])
async def test_scores_of_a_long_prompt_over_http(served, path, stream):
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
    # The fake scheduler says another number of a token where it is also among the likeliest.
    assert said == pytest.approx(scores(ids), abs=0.5)
    assert {len(row) for row in rows} <= {NUM_TOP, NUM_TOP + 1}


# field case 122
async def test_scores_of_a_long_prompt_over_grpc(served):
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
