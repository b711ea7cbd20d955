"""Bad values of choices, forms, biases and the like: refused by name; the next request works."""

import math
import time
from array import array
from typing import Any

import grpc
import pytest

from protos.errors import InvalidRequest
from protos.plan import SamplingParams
from protos.radixd.v1 import inference_pb2 as pb
from tests.tokenizer_svc.client import refused, script, stream, unary
from tests.tokenizer_svc.conftest import Served
from tokenizer_svc.choices import of_choice
from tokenizer_svc.generation_request import Constraint, GenerationRequest
from tokenizer_svc.live_request import Submission
from tokenizer_svc.tokenizers.byte_tokenizer import NUM_IDS
from tokenizer_svc.validation import read_request
from tokenizer_svc.validation_constraint import MAX_CONSTRAINT_BYTES

NUMBERS = ("n", "best_of", "prompt_logprobs", "stream_interval")


def read(**fields: Any) -> GenerationRequest:
    fields = {"text": "a"} | fields
    return read_request(pb.GenerateRequest(**fields), max_prompt_bytes=1 << 22)


def biased(*biases: tuple[int, float]) -> dict[str, Any]:
    return {"sampling": pb.SamplingParams(logit_bias=dict(biases))}


def form(**fields: Any) -> dict[str, Any]:
    return {"constraint": pb.Constraint(**fields)}


def choice(*texts: str) -> dict[str, Any]:
    return form(choice=pb.Choices(texts=texts))


BAD: list[tuple[dict[str, Any], str]] = [
    # field case 83
    ({"n": 10**6}, "n"),
    ({"n": 17}, "n"),
    ({"n": 0}, "n"),
    ({"n": -1}, "n"),
    ({"best_of": 17}, "best_of"),
    ({"best_of": 0}, "best_of"),
    ({"n": 3, "best_of": 2}, "best_of"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"prompt_logprobs": NUM_IDS + 1}, "prompt_logprobs"),
    ({"prompt_logprobs": -1}, "prompt_logprobs"),
    ({"stream_interval": 0}, "stream_interval"),
    ({"stream_interval": 1025}, "stream_interval"),
    *(({name: 2**63 - 1}, name) for name in NUMBERS),
    *(({name: -(2**63)}, name) for name in NUMBERS),
    ({"sampling": pb.SamplingParams(logprobs=NUM_IDS + 1)}, "sampling.logprobs"),
    ({"sampling": pb.SamplingParams(max_tokens=2**31)}, "sampling.max_tokens"),
    ({"sampling": pb.SamplingParams(seed=-1)}, "sampling.seed"),
    ({"sampling": pb.SamplingParams(stop=["s"] * 10**6)}, "sampling.stop"),
    ({"priority": 2**31 - 1}, "priority"),
    ({"priority": -(2**31)}, "priority"),
    # field case 87
    ({"sampling": pb.SamplingParams(max_tokens=0)}, "sampling.max_tokens"),
    ({"sampling": pb.SamplingParams(max_tokens=0), "echo": True}, "sampling.max_tokens"),
    (
        {"sampling": pb.SamplingParams(max_tokens=0), "prompt_logprobs": 0, "n": 2},
        "sampling.max_tokens",
    ),
    # field cases 80, 82
    (biased((-1, 1.0)), "sampling.logit_bias"),
    (biased((-(2**63), 1.0)), "sampling.logit_bias"),
    (biased((5, math.nan)), "sampling.logit_bias"),
    (biased((5, math.inf)), "sampling.logit_bias"),
    (biased((5, 1e30)), "sampling.logit_bias"),
    (biased((5, 100.1)), "sampling.logit_bias"),
    (biased((5, -100.1)), "sampling.logit_bias"),
    (biased(*((i, 1.0) for i in range(1025))), "sampling.logit_bias"),
    # field case 93
    (form(), "constraint"),
    (form(json_object=False), "constraint.json_object"),
    (form(json_schema=""), "constraint.json_schema"),
    (form(regex=""), "constraint.regex"),
    (form(ebnf=""), "constraint.ebnf"),
    (form(json_schema="{" + " " * MAX_CONSTRAINT_BYTES), "constraint.json_schema"),
    (form(regex="é" * (MAX_CONSTRAINT_BYTES // 2 + 1)), "constraint.regex"),
    (form(ebnf="a" * (MAX_CONSTRAINT_BYTES + 1)), "constraint.ebnf"),
    (choice(), "constraint.choice.texts"),
    (choice("a", ""), "constraint.choice.texts[1]"),
    (choice("a", "é" * 513), "constraint.choice.texts[1]"),
    (choice(*(["a"] * 1025)), "constraint.choice.texts"),
    (choice(*(["a" * 1024] * 257)), "constraint.choice.texts[256]"),
    ({"session": ""}, "session"),
    ({"session": "s" * 129}, "session"),
    ({"session": "a\nb"}, "session"),
    ({"session": "a", "no_store": True}, "session"),
]


@pytest.mark.parametrize(("fields", "field"), BAD)
def test_each_refusal_names_its_field(fields: dict[str, Any], field: str):
    with pytest.raises(InvalidRequest) as caught:
        read(**fields)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


# field cases 82, 83
@pytest.mark.parametrize("fields", [BAD[0][0], BAD[1][0], biased((-1, 1.0)), choice()])
async def test_over_the_wire_and_the_next_request_works(served: Served, fields: dict[str, Any]):
    for call in (unary, stream):
        got = await refused(call(served, text="a", **fields))
        assert got.code == grpc.StatusCode.INVALID_ARGUMENT
        assert (got.field or "").startswith(tuple(fields))
    assert (await unary(served, tokens=script("ok"))).text == "ok"


# field cases 82, 83
@pytest.mark.parametrize("token_id", [NUM_IDS, 2**31, 2**63 - 1])
async def test_ids_beyond_the_vocabulary(served: Served, token_id: int):
    got = await refused(unary(served, text="a", **biased((token_id, 1.0))))
    assert (got.code, got.field) == (grpc.StatusCode.INVALID_ARGUMENT, "sampling.logit_bias")
    assert str(token_id) in got.message
    fine = biased((NUM_IDS - 1, 100.0), (0, -100.0))
    assert (await unary(served, tokens=script("ok"), **fine)).text == "ok"


# field cases 83, 84
@pytest.mark.parametrize(("fields", "field"), BAD[:1] + BAD[15:25])
def test_a_refusal_costs_nothing(fields: dict[str, Any], field: str):
    request = pb.GenerateRequest(text="a", **fields)
    started_s = time.process_time()
    with pytest.raises(InvalidRequest):
        read_request(request, max_prompt_bytes=1 << 22)
    assert time.process_time() - started_s < 0.1


def test_values_arrive_as_they_are():
    plain = read()
    assert (plain.n, plain.best_of, plain.echo, plain.stream_interval) == (1, 1, False, 1)
    assert (plain.session, plain.constraint) == ("", None)
    assert (plain.sampling.prompt_logprobs, plain.sampling.logit_bias) == (-1, ())
    full = read(
        n=16,
        best_of=16,
        echo=True,
        stream_interval=1024,
        prompt_logprobs=0,
        **biased((7, -100.0), (3, 0.5), (2**40, 100.0)),
    )
    assert (full.n, full.best_of, full.echo, full.stream_interval) == (16, 16, True, 1024)
    assert full.sampling.prompt_logprobs == 0
    assert full.sampling.logit_bias == ((3, 0.5), (7, -100.0), (2**40, 100.0))
    assert read(n=3).best_of == 3
    assert read(best_of=3).n == 1
    # field case 87
    assert read(prompt_logprobs=0, sampling=pb.SamplingParams(max_tokens=0)).max_tokens == 0


@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        (form(json_schema="{}"), Constraint(kind="json_schema", text="{}")),
        (form(json_object=True), Constraint(kind="json_object")),
        (form(regex="a+"), Constraint(kind="regex", text="a+")),
        (form(ebnf='root ::= "a"'), Constraint(kind="ebnf", text='root ::= "a"')),
        (choice("a", "漢"), Constraint(kind="choice", choices=("a", "漢"))),
        (choice(*(["a" * 256] * 1024)), Constraint(kind="choice", choices=("a" * 256,) * 1024)),
    ],
    ids=str,
)
def test_forms_arrive_as_they_are(fields: dict[str, Any], constraint: Constraint):
    assert read(**fields).constraint == constraint


def test_sessions_arrive_as_they_are():
    assert read(session="a session / 7").session == "a session / 7"
    assert read(session="s" * 128, no_store=False).session == "s" * 128


async def test_a_session_reaches_the_scheduler_with_the_first_choice_alone(served: Served):
    await unary(served, tokens=script("ok"), session="mine", n=3)
    await unary(served, tokens=script("ok"))
    sent = [submit.session for submit in served.scheduler.seen.submits]
    assert sent == ["mine", "", "", ""]


def test_only_the_first_choice_asks_for_the_prompt():
    first = Submission(
        prompt_ids=array("I", [1, 2]),
        max_tokens=1,
        session="mine",
        sampling=SamplingParams(prompt_logprobs=3, seed=5),
    )
    assert of_choice(first, 0, scored=False) == first
    second = of_choice(first, 1, scored=True)
    assert (second.sampling.prompt_logprobs, second.sampling.logprobs) == (-1, 0)
    assert second.sampling.seed != 5
    assert second.session == ""
