"""Constrained output through the whole stack, on the fake worker."""

import asyncio
import json
import math
import os
import signal

import grpc
import jsonschema
import pytest
from google.protobuf.json_format import MessageToJson

from protos.radixd.v1 import inference_pb2 as pb
from tests.constraints.test_forms import BAD
from tests.system.ask import Running, ids, refused, request, unary, whole
from tests.system.stack import launched
from tokenizer_svc.tokenizers.byte_tokenizer import EOS

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 3},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "tags", "size"],
    "additionalProperties": False,
}
BY_SCHEMA = {"json_schema": json.dumps(SCHEMA)}


@pytest.fixture(scope="module")
def stack():
    with launched("--fake-worker", "--kv-slots", "8192", "--fake-step-ms", "1") as running:
        yield running


def constrained(form, max_tokens=300, *, prompt=10, **fields):
    sampling = {"temperature": 1.0, "seed": 5, "ignore_eos": False} | fields.pop("sampling", {})
    return request(
        ids(prompt, "form"),
        max_tokens,
        sampling=sampling,
        constraint=pb.Constraint(**form),
        **fields,
    )


async def ask(client, form, max_tokens=300, **fields):
    message = constrained(form, max_tokens, **fields)
    return await client.inference.GenerateUnary(unary(message), timeout=50)


@pytest.mark.parametrize("seed", range(5))
async def test_a_schema_is_met(client, seed):
    message = constrained(BY_SCHEMA, sampling={"seed": seed})
    answer = await client.inference.GenerateUnary(unary(message), timeout=50)
    jsonschema.validate(json.loads(answer.text), SCHEMA)
    assert answer.finish_reason == pb.FINISH_REASON_STOP
    assert (await whole(client, message)).text == answer.text


async def test_each_form(client):
    assert isinstance(json.loads((await ask(client, {"json_object": True}, 2000)).text), dict)
    assert len((await ask(client, {"regex": "[a-c]{3,5}"})).text) in (3, 4, 5)
    assert (await ask(client, {"ebnf": 'root ::= "(" root? ")"'})).text.count("(") >= 1
    choices = pb.Choices(texts=["naïve", "日本", 'a"b'])
    assert (await ask(client, {"choice": choices})).text in choices.texts


@pytest.mark.parametrize(("kind", "text", "words"), BAD)
async def test_a_bad_form_is_refused_by_name(client, kind, text, words):  # field cases 93, 94
    if not text:
        words = "empty"
    with refused(grpc.StatusCode.INVALID_ARGUMENT, f"constraint.{kind}", words):
        await ask(client, {kind: text})


async def test_after_all_of_them_the_next_is_served(client):  # field case 93
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "constraint.regex", "complex"):
        await ask(client, {"regex": "b(a{1000}){1000}"})
    answer = await client.inference.GenerateUnary(unary(request(ids(5), 5)), timeout=5)
    assert len(answer.token_ids) == 5
    await client.idle()


async def test_length_cuts_a_form_short(client):
    answer = await ask(client, BY_SCHEMA, 5)
    assert answer.finish_reason == pb.FINISH_REASON_LENGTH
    assert answer.usage.completion_tokens == 5
    assert answer.text == '{"name"'[:5]


async def test_a_stop_text_ends_a_form(client):
    answer = await ask(client, BY_SCHEMA, sampling={"stop": ['"tags"']})
    assert answer.matched_stop == '"tags"'
    assert answer.text.startswith('{"name"')
    assert "tags" not in answer.text


async def test_each_choice_has_the_form(client):
    message = constrained(BY_SCHEMA, n=4)
    answer = await client.inference.GenerateUnary(unary(message), timeout=50)
    texts = [choice.text for choice in answer.choices]
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMA)
    assert len(set(texts)) == 4
    assert texts[0] == (await ask(client, BY_SCHEMA)).text, "the first is that of n = 1"


async def test_the_end_of_the_form_is_above_ignore_eos_and_min_tokens(client):
    for more in ({"ignore_eos": True}, {"min_tokens": 50}):
        answer = await ask(client, {"regex": "abc"}, sampling=more)
        assert list(answer.token_ids) == [*b"abc", EOS]
        assert answer.finish_reason == pb.FINISH_REASON_STOP


async def test_log_probabilities_stay_finite(client):  # field case 104
    answer = await ask(client, {"choice": pb.Choices(texts=["a"])}, sampling={"logprobs": 5})
    assert len(answer.logprobs) == 2
    values = [value for entry in answer.logprobs for value in (entry, *entry.top)]
    assert all(math.isfinite(value.logprob) for value in values)
    assert "Infinity" not in MessageToJson(answer)


async def test_company_makes_no_difference(client):
    alone = await ask(client, BY_SCHEMA)
    others = [constrained({"regex": "[a-z]{50}"}, prompt=20 + i) for i in range(6)]
    others += [request(ids(9, i), 80) for i in range(6)]
    answers = await asyncio.gather(
        ask(client, BY_SCHEMA),
        *(client.inference.GenerateUnary(unary(message), timeout=50) for message in others),
    )
    assert answers[0].text == alone.text
    assert all(len(answer.text) == 50 for answer in answers[1:7])


async def test_a_worker_that_dies_changes_nothing(client, stack):
    wanted = (await ask(client, {"regex": "[a-z]{200}"})).text
    running = Running(client, constrained({"regex": "[a-z]{200}"}))
    await running.began(20)
    os.kill(stack.pids()["gpu_worker"], signal.SIGKILL)
    assert "".join(piece.text for piece in await running) == wanted
