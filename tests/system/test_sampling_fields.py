"""min_tokens, penalties, log probabilities: through the whole stack, over a worker's death."""

import itertools
import os
import signal

import pytest

from protos.plan import SamplingParams
from protos.radixd.v1 import inference_pb2
from tests.system.ask import Running, has_logprobs, ids, request, unary, whole
from tests.system.stack import FAKE, launched
from tokenizer_svc.tokenizers.byte_tokenizer import EOS, GO, SCRIPT

PENALTIES = {
    "none": {},
    "repetition": {"repetition_penalty": 1.25},
    "presence": {"presence_penalty": 0.5},
    "frequency": {"frequency_penalty": -0.5},
    "all, sampled": {
        "repetition_penalty": 1.5,
        "presence_penalty": 1.0,
        "frequency_penalty": 0.25,
        "temperature": 0.75,
        "seed": 11,
    },
}
"""Values that float32 holds exactly, so that the reference hashes the same."""

LETTERS = list(range(97, 113))
"""As many stop tokens as may be: without min_tokens one of them soon ends any output."""


@pytest.fixture(scope="module")
def stack():
    with launched("--fake-worker", "--kv-slots", "8192", "--fake-step-ms", "1") as running:
        yield running


async def both_ways(client, message):
    """The answer, which is the same whole and in pieces."""
    at_once = await client.inference.GenerateUnary(unary(message), timeout=30)
    in_pieces = await whole(client, message)
    for answer in (at_once, in_pieces):
        answer.ClearField("request_id")
        answer.usage.ClearField("cached_tokens")
        if not message.sampling.HasField("seed"):
            answer.ClearField("seed")
    assert in_pieces == at_once
    return at_once


async def test_penalties_reach_the_sampler_and_each_counts(client):
    prompt, said = ids(20, "penalties"), {}
    for name, fields in PENALTIES.items():
        answer = await both_ways(client, request(prompt, 40, sampling=fields))
        said[name] = list(answer.token_ids)
        assert said[name] == FAKE.generate(prompt, 40, SamplingParams(**fields)), name
    assert all(one != other for one, other in itertools.combinations(said.values(), 2))


@pytest.mark.parametrize("num_top", [0, 1, 5, 20])
async def test_each_token_has_its_log_probability(client, num_top):
    prompt = ids(15, "logprobs")
    answer = await both_ways(client, request(prompt, 30, sampling={"logprobs": num_top}))
    assert list(answer.token_ids) == FAKE.generate(prompt, 30)
    has_logprobs(answer.logprobs, prompt, answer.token_ids, num_top)


async def test_without_asking_there_are_none(client):
    assert not (await both_ways(client, request(ids(15, "none"), 5))).logprobs


@pytest.mark.parametrize("stop", [["END"], ["xx", "END"], ["D."], ["h"]])
async def test_log_probabilities_end_with_the_tokens_that_count(client, stop):
    # The model says this letter by letter; a stop text is held back and found inside.
    text = "the END. and more of it"
    prompt = [112, SCRIPT, *text.encode(), GO]
    sampling = {"logprobs": 2, "stop": stop, "ignore_eos": False}
    answer = await both_ways(client, request(prompt, 60, sampling=sampling))
    found = min(text.index(one) for one in stop if one in text)
    matched = next(one for one in stop if one in text)
    assert (answer.text, answer.matched_stop) == (text[:found], matched)
    assert answer.finish_reason == inference_pb2.FINISH_REASON_STOP
    assert bytes(answer.token_ids).decode() == text[: found + len(matched)]
    assert answer.usage.completion_tokens == len(answer.token_ids)
    has_logprobs(answer.logprobs, prompt, answer.token_ids, 2)


async def test_the_end_of_sequence_waits_for_min_tokens(client):
    prompt = [112, SCRIPT, *b"hi", GO]
    for least, expected in ((None, 3), (0, 3), (2, 3), (3, 4), (10, 11)):
        sampling = {"ignore_eos": False} | ({} if least is None else {"min_tokens": least})
        answer = await both_ways(client, request(prompt, 50, sampling=sampling))
        assert list(answer.token_ids) == FAKE.generate(
            prompt, 50, SamplingParams(min_tokens=least or 0)
        )
        assert answer.usage.completion_tokens == expected
        assert answer.token_ids[-1] == EOS
        assert answer.matched_token_id == EOS


async def test_stop_tokens_and_texts_wait_for_min_tokens(client):
    prompt = ids(12, "early")
    text = "".join(map(chr, FAKE.generate(prompt, 40)))
    first = text[0]
    again = text.index(first, 1) if first in text[1:] else None
    assert again is not None, "the letter comes twice, or this test says nothing"
    sampling = {"stop": [first], "min_tokens": again}
    answer = await both_ways(client, request(prompt, 40, sampling=sampling))
    assert answer.text == text[:again]
    assert answer.usage.completion_tokens == again + 1
    sampling = {"stop_token_ids": LETTERS, "min_tokens": 20}
    answer = await both_ways(client, request(prompt, 200, sampling=sampling))
    expected = FAKE.generate(
        prompt, 200, SamplingParams(min_tokens=20), ignore_eos=True, stop_token_ids=LETTERS
    )
    assert list(answer.token_ids) == expected
    assert len(expected) > 20
    assert answer.matched_token_id == expected[-1]


STREAMS = {
    **{name: ({**fields, "logprobs": 3}, 500) for name, fields in PENALTIES.items()},
    "min_tokens": ({"min_tokens": 450, "stop_token_ids": LETTERS, "logprobs": 1}, 2000),
    "min_tokens, penalized": (
        {"min_tokens": 450, "stop_token_ids": LETTERS, "presence_penalty": 1.5},
        2000,
    ),
}


def undisturbed(prompt, fields, max_tokens):
    """What the model says of it when nothing happens."""
    known = {name: value for name, value in fields.items() if name != "stop_token_ids"}
    return FAKE.generate(
        prompt,
        max_tokens,
        SamplingParams(**known),
        ignore_eos=True,
        stop_token_ids=fields.get("stop_token_ids", ()),
    )


@pytest.mark.timeout(240)
async def test_a_killed_worker_changes_no_token_and_no_number(client, stack):  # field case 134
    before, prompts, streams = stack.pids()["gpu_worker"], {}, {}
    for name, (fields, max_tokens) in STREAMS.items():
        prompts[name] = ids(24, f"killed {name}")
        streams[name] = Running(client, request(prompts[name], max_tokens, sampling=fields))
    for stream in streams.values():
        await stream.began(40)
    os.kill(before, signal.SIGKILL)
    so_far = {name: stream.num_tokens for name, stream in streams.items()}
    ended = {name: await stream for name, stream in streams.items()}
    for name, pieces in ended.items():
        fields, max_tokens = STREAMS[name]
        got = [i for piece in pieces for i in piece.token_ids]
        expected = undisturbed(prompts[name], fields, max_tokens)
        assert got == expected, name
        assert so_far[name] < len(expected), "it was killed in the middle"
        entries = [entry for piece in pieces for entry in piece.logprobs]
        if "logprobs" in fields:
            has_logprobs(entries, prompts[name], expected, fields["logprobs"])
        else:
            assert not entries
    assert stack.pids()["gpu_worker"] != before
