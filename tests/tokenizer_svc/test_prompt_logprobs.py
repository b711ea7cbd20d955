"""Log probabilities of the prompt and biases, from the request to the reply."""

import asyncio
from array import array
from typing import Any

import pytest

from protos.radixd.scheduler.v1 import scheduler_pb2 as internal
from protos.radixd.v1 import inference_pb2 as pb
from protos.wire import pack_ids, unpack_floats, unpack_ids
from tests.tokenizer_svc.client import refused, script, stream, unary, wait_until
from tests.tokenizer_svc.conftest import Served
from tests.tokenizer_svc.fake_scheduler import SCORES_PER_STEP, logprobs_of
from tests.tokenizer_svc.test_logprobs import expected
from tokenizer_svc.tokenizers.byte_tokenizer import NUM_IDS

PROMPT = script("one 🙂 two")


def scores(prompt: list[int], num_top: int) -> list[pb.TokenLogprobs]:
    """What the fake scheduler says of each token of a prompt but the first."""
    return expected(prompt, num_top)[1:]


@pytest.mark.parametrize("num_top", [0, 3])
async def test_they_come_with_the_first_message_and_whole(served: Served, num_top: int):
    # field case 23
    request = {"tokens": PROMPT, "prompt_logprobs": num_top}
    streamed = await stream(served, **request, sampling=pb.SamplingParams(logprobs=num_top))
    wanted = scores(list(PROMPT.ids), num_top)
    assert [list(message.prompt_logprobs) for message in streamed.messages] == [
        wanted,
        *([[]] * (len(streamed.messages) - 1)),
    ]
    assert streamed.text == "one 🙂 two"
    whole = await unary(served, **request)
    assert list(whole.prompt_logprobs) == wanted
    assert not whole.logprobs


async def test_none_unless_asked_for(served: Served):
    assert not (await unary(served, tokens=PROMPT)).prompt_logprobs
    assert not served.scheduler.seen.submits[0].sampling.HasField("prompt_logprobs")


@pytest.mark.parametrize("prompt", [PROMPT, pb.TokenIds(ids=[97])])
async def test_a_prompt_alone(served: Served, prompt: pb.TokenIds):
    # field case 87
    sampling = pb.SamplingParams(max_tokens=0)
    request = {"tokens": prompt, "prompt_logprobs": 1, "sampling": sampling}
    whole = await unary(served, **request)
    assert (whole.text, list(whole.token_ids)) == ("", [])
    assert whole.finish_reason == pb.FINISH_REASON_LENGTH
    assert list(whole.prompt_logprobs) == scores(list(prompt.ids), 1)
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (len(prompt.ids), 0)
    streamed = await stream(served, **request)
    assert [list(message.prompt_logprobs) for message in streamed.messages] == [
        list(whole.prompt_logprobs)
    ]
    refusal = await refused(unary(served, tokens=prompt, sampling=sampling))
    assert refusal.field == "sampling.max_tokens"


async def test_another_scheduler_begins_them_anew(served: Served):
    served.scheduler.behavior.holds_scores = True
    call = asyncio.create_task(unary(served, tokens=PROMPT, prompt_logprobs=2))
    await wait_until(lambda: any(one.scores for one in served.front.live.all()))
    await wait_until(lambda: len(served.scheduler.seen.running) == 1)
    await asyncio.sleep(0.1)
    await served.scheduler.stop()
    await wait_until(lambda: not served.front.link.is_ready)
    served.scheduler.behavior.holds_scores = False
    await served.scheduler.start()
    whole = await call
    assert whole.text == "one 🙂 two"
    assert list(whole.prompt_logprobs) == scores(list(PROMPT.ids), 2)
    first, again = served.scheduler.seen.submits
    assert first.sampling == again.sampling, "all of them are asked for again"


async def test_another_scheduler_is_not_asked_for_those_that_came(served: Served):
    served.scheduler.behavior.num_before_hold = 5
    call = asyncio.create_task(stream(served, tokens=PROMPT, prompt_logprobs=2))
    await wait_until(lambda: [len(one.token_ids) for one in served.front.live.all()] == [5])
    await served.scheduler.stop()
    await wait_until(lambda: not served.front.link.is_ready)
    served.scheduler.behavior.num_before_hold = None
    await served.scheduler.start()
    streamed = await call
    assert streamed.text == "one 🙂 two"
    entries = [entry for message in streamed.messages for entry in message.prompt_logprobs]
    assert entries == scores(list(PROMPT.ids), 2)
    assert not served.scheduler.seen.submits[1].sampling.HasField("prompt_logprobs")


async def test_a_prompt_alone_that_only_lacks_its_ending_needs_no_scheduler(served: Served):
    columns = logprobs_of([97, 98, 99], 1, 0)
    served.scheduler.behavior.answer = lambda submit: internal.Output(prompt_logprobs=columns)
    call = asyncio.create_task(
        unary(
            served,
            tokens=pb.TokenIds(ids=[97, 98, 99]),
            prompt_logprobs=0,
            sampling=pb.SamplingParams(max_tokens=0),
        )
    )
    await wait_until(
        lambda: any(one.scores and one.scores.is_complete for one in served.front.live.all())
    )
    await served.scheduler.stop()
    await served.scheduler.start()
    assert list((await call).prompt_logprobs) == scores([97, 98, 99], 0)
    assert len(served.scheduler.seen.submits) == 1


@pytest.mark.parametrize(
    ("asked", "columns", "token_ids"),
    [
        (2, logprobs_of([97] * 4, 1, 1), b""),
        (1, logprobs_of([97] * 5, 0, 1), b""),
        (-1, logprobs_of([97] * 4, 1, 1), b""),
        (1, logprobs_of([97] * 3, 1, 1), pack_ids(array("I", [97]))),
        (1, None, pack_ids(array("I", [97]))),
        (1, internal.LogprobColumns(chosen=b"\0\0\0\xbf", top_ids=b"\xff\xff\xff\x7f",
                                    top_logprobs=b"\0\0\0\xbf"), b""),
        (1, internal.LogprobColumns(chosen=b"abc"), b""),
    ],
)  # fmt: skip
async def test_nonsense_from_the_scheduler_ends_that_request(
    served: Served, asked: int, columns: internal.LogprobColumns | None, token_ids: bytes
):
    # field case 75
    served.scheduler.behavior.answer = lambda submit: internal.Output(
        prompt_logprobs=columns, token_ids=token_ids
    )
    request: dict[str, Any] = {"tokens": pb.TokenIds(ids=[97] * 4)}
    if asked >= 0:
        request["prompt_logprobs"] = asked
    got = await refused(unary(served, **request))
    assert (got.reason, "cannot be right" in got.message) == ("INTERNAL", True)


async def test_biases_arrive(served: Served):
    biases = {NUM_IDS - 1: 100.0, 3: -2.5, 0: 0.0}
    await unary(served, tokens=PROMPT, sampling=pb.SamplingParams(logit_bias=biases))
    sent = served.scheduler.seen.submits[0].sampling
    assert list(unpack_ids(sent.bias_ids)) == [0, 3, NUM_IDS - 1]
    assert list(unpack_floats(sent.biases)) == [0.0, -2.5, 100.0]


@pytest.mark.parametrize(
    "biases",
    [
        {NUM_IDS: 1.0},
        {10**9: 1.0},
        {2**31: 1.0},
        {2**63 - 1: 1.0},
        {-1: 1.0},
        {1: 100.5},
        {1: 1e30},
        {1: float("nan")},
        {1: float("-inf")},
        dict.fromkeys(range(1025), 1.0),
    ],
    ids=lambda biases: str(biases)[:30],
)
async def test_biases_that_cannot_be_are_refused(served: Served, biases: dict[int, float]):
    # field cases 80, 82
    refusal = await refused(
        unary(served, tokens=PROMPT, sampling=pb.SamplingParams(logit_bias=biases))
    )
    assert (refusal.reason, refusal.field) == ("INVALID_FIELD", "sampling.logit_bias")
    assert (await unary(served, tokens=PROMPT)).text == "one 🙂 two"


def test_the_fake_scheduler_says_scores_in_pieces():
    """Or the tests above would not see them joined."""
    assert len(PROMPT.ids) > 2 * SCORES_PER_STEP
