"""What shapes a reply: the prompt before the text, tokens by the message, the likeliest choices."""

import math
from array import array
from typing import Any

import pytest

from protos.plan import LogprobColumns
from protos.radixd.v1 import inference_pb2 as pb
from tests.tokenizer_svc.client import Streamed, script, stream, unary
from tests.tokenizer_svc.conftest import Served
from tokenizer_svc.choices import likeliest
from tokenizer_svc.delivery import ChoicePiece, Usage
from tokenizer_svc.generate import Piece
from tokenizer_svc.tokenizers.byte_tokenizer import BOS
from tokenizer_svc.validation import read_request

DRAWN: dict[str, Any] = {"temperature": 1, "seed": 42, "max_tokens": 40}


# --- echo -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ({"text": "déjà "}, "déjà "),
        ({"text": " <|bos|>x"}, " <|bos|>x"),
        ({"tokens": pb.TokenIds(ids=[BOS, *"漢字".encode()])}, "漢字"),
        ({"tokens": pb.TokenIds(ids=[*"漢".encode()][:2])}, "\ufffd"),
        (
            {"chat": pb.ChatPrompt(messages=[pb.ChatMessage(role=pb.ROLE_USER, content="hi")])},
            "user\nhi\nassistant\n",
        ),
    ],
    ids=str,
)
async def test_the_prompt_comes_first_in_every_choice(
    served: Served, prompt: dict[str, Any], text: str
):
    sampling = pb.SamplingParams(**DRAWN)
    bare = await unary(served, n=2, sampling=sampling, **prompt)
    echoed = await unary(served, n=2, echo=True, sampling=sampling, **prompt)
    for choice, plain in zip(echoed.choices, bare.choices, strict=True):
        assert choice.text == text + plain.text
        assert choice.token_ids == plain.token_ids
    assert echoed.usage == bare.usage
    streamed = await stream(served, n=2, echo=True, sampling=sampling, **prompt)
    for number, choice in enumerate(echoed.choices):
        of_it = Streamed(messages=[m for m in streamed.messages if m.choice == number])
        assert of_it.text == choice.text
        assert of_it.messages[0].text.startswith(text)


async def test_control_tokens_of_the_prompt_show_where_asked_for(served: Served):
    tokens = pb.TokenIds(ids=[BOS, ord("a")])
    sampling = pb.SamplingParams(max_tokens=1)
    shown = await unary(
        served, tokens=tokens, echo=True, skip_special_tokens=False, sampling=sampling
    )
    assert shown.text.startswith("<|bos|>a")


async def test_no_stop_text_is_looked_for_in_the_prompt(served: Served):
    sampling = pb.SamplingParams(stop=["s", "pt"])
    reply = await unary(served, tokens=script("script one"), echo=True, sampling=sampling)
    assert reply.text == "pscript one"
    assert reply.matched_stop == "s"


# --- stream_interval ------------------------------------------------------------------------------


@pytest.mark.parametrize("interval", [1, 2, 7, 1024])
@pytest.mark.parametrize("tokens_per_step", [1, 3])
async def test_messages_carry_so_many_tokens(served: Served, interval: int, tokens_per_step: int):
    served.scheduler.behavior.tokens_per_step = tokens_per_step
    text = "one 🙂 two 漢字 END of it"
    request: dict[str, Any] = {
        "tokens": script(text),
        "n": 2,
        "sampling": pb.SamplingParams(stop=["END"], logprobs=1),
    }
    streamed = await stream(served, stream_interval=interval, **request)
    whole = await unary(served, **request)
    for number in range(2):
        of_it = Streamed(messages=[m for m in streamed.messages if m.choice == number])
        assert all(len(m.token_ids) >= interval for m in of_it.messages[:-1])
        assert all(len(m.logprobs) == len(m.token_ids) for m in of_it.messages)
        kept = whole.choices[number]
        assert (of_it.text, of_it.token_ids) == (kept.text, list(kept.token_ids))
        assert [e for m in of_it.messages for e in m.logprobs] == list(kept.logprobs)
        assert of_it.text == "one 🙂 two 漢字 "
    assert streamed.last.usage == whole.usage


# --- best_of --------------------------------------------------------------------------------------


async def test_the_likeliest_come_first(served: Served):
    # To the fake model, shorter outputs are likelier on average.
    request = {"text": "several"}
    params = {**DRAWN, "stop": ["e"]}
    sampling = pb.SamplingParams(**params)
    every = (await unary(served, n=6, sampling=sampling, **request)).choices
    ranked = sorted(every, key=lambda choice: len(choice.token_ids))
    assert len({len(choice.token_ids) for choice in ranked}) > 3
    best = await unary(served, n=3, best_of=6, sampling=sampling, **request)
    assert list(best.choices) == ranked[:3]
    assert not any(choice.logprobs for choice in best.choices)
    assert best.usage.completion_tokens == sum(len(choice.token_ids) for choice in every)
    assert best.usage.prompt_tokens == len("several")
    streamed = await stream(served, n=3, best_of=6, sampling=sampling, **request)
    order = [m.choice for m in streamed.messages]
    assert order == sorted(order), "one after the other, at the end"
    for number, choice in enumerate(best.choices):
        of_it = Streamed(messages=[m for m in streamed.messages if m.choice == number])
        assert (of_it.text, of_it.token_ids) == (choice.text, list(choice.token_ids))
        assert of_it.last.finish_reason == choice.finish_reason
    assert streamed.last.usage == best.usage
    assert [m.HasField("usage") for m in streamed.messages].count(True) == 1
    one = await unary(served, best_of=6, sampling=sampling, **request)
    assert (one.text, len(one.choices)) == (ranked[0].text, 0)


async def test_log_probabilities_show_where_asked_for(served: Served):
    sampling = pb.SamplingParams(**DRAWN, logprobs=2)
    best = await unary(served, text="several", n=2, best_of=4, sampling=sampling)
    for choice in best.choices:
        assert [entry.token_id for entry in choice.logprobs] == list(choice.token_ids)
        assert {len(entry.top) for entry in choice.logprobs} == {2}


def piece(choice: int, text: str, *logprobs: float, prompt: bool = False) -> ChoicePiece:
    columns = LogprobColumns(
        chosen=array("f", logprobs), top_ids=array("i"), top_logprobs=array("f")
    )
    said = {"prompt_ids": array("I", [1, 2]), "prompt_logprobs": columns} if prompt else {}
    return ChoicePiece(
        choice=choice,
        piece=Piece(
            text=text, token_ids=array("I", range(len(logprobs))), logprobs=columns, **said
        ),
    )


def test_ties_and_empty_outputs_have_a_place():
    usage = Usage(num_prompt_tokens=1, num_output_tokens=2, num_cached_tokens=0)
    pieces = [
        piece(0, "empty", prompt=True),
        piece(1, "late ", -1.0),
        piece(2, "early", -0.5, -0.5),
        piece(3, "same", -0.5),
        piece(1, "but rising", -0.1),
        piece(4, "impossible", -math.inf),
    ]
    pieces[-1] = ChoicePiece(choice=4, piece=pieces[-1].piece, usage=usage)
    request = read_request(pb.GenerateRequest(text="a", n=5, best_of=5), max_prompt_bytes=100)
    found = likeliest(pieces, request)
    texts = [each.piece.text for each in found]
    assert texts == ["early", "same", "late ", "but rising", "empty", "impossible"]
    assert [each.choice for each in found] == [0, 1, 2, 2, 3, 4]
    assert [each.usage for each in found] == [None] * 5 + [usage]
    assert all(each.piece.logprobs is None for each in found)
    # The prompt's log probabilities come first, though who said them does not.
    assert [each.piece.prompt_ids is not None for each in found] == [True] + [False] * 5
