"""Every public field of a generation changes what comes out, or is refused: none is without effect.

The table is compared with the schema, so that a new field needs a line here.  # field case 91
"""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor

from protos.radixd.v1 import admin_pb2
from protos.radixd.v1 import inference_pb2 as pb
from tests.system.ask import Running, ids, unary
from tests.system.stack import Client, launched
from tokenizer_svc.tokenizers.byte_tokenizer import GO, IM_END, SCRIPT

Outcome = object
Look = Callable[[Client, pb.GenerateRequest], Awaitable[Outcome]]


@pytest.fixture(scope="module")
def stack():
    with launched("--fake-worker", "--kv-slots", "8192", "--fake-step-ms", "1") as running:
        yield running


async def answer(client: Client, request: pb.GenerateRequest) -> Outcome:
    """All that a client gets, but for names and what the cache did; a refusal is an answer, too."""
    try:
        reply = await client.inference.GenerateUnary(unary(request), timeout=30)
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details()
    reply.ClearField("request_id")
    reply.usage.ClearField("cached_tokens")
    if not request.sampling.HasField("seed"):
        reply.ClearField("seed")
    return reply.SerializeToString(deterministic=True)


async def name(client: Client, request: pb.GenerateRequest) -> Outcome:
    """The id it goes by."""
    return (await client.inference.GenerateUnary(unary(request), timeout=30)).request_id


async def kept(client: Client, request: pb.GenerateRequest) -> Outcome:
    """How much of its prompt a plain request finds cached afterwards."""
    await client.admin.FlushCache(admin_pb2.FlushCacheRequest(), timeout=10)
    await answer(client, request)
    plain = pb.GenerateUnaryRequest(tokens=request.tokens, sampling=request.sampling)
    return (await client.inference.GenerateUnary(plain, timeout=30)).usage.cached_tokens


async def sessions(client: Client, request: pb.GenerateRequest) -> Outcome:
    """The sessions that there are afterwards."""
    await answer(client, request)
    listed = await client.admin.ListSessions(admin_pb2.ListSessionsRequest(), timeout=10)
    for session in listed.sessions:
        closing = admin_pb2.CloseSessionRequest(session=session.session)
        await client.admin.CloseSession(closing, timeout=10)
    return [session.session for session in listed.sessions]


async def listed(client: Client, request: pb.GenerateRequest) -> Outcome:
    """What an operator sees of it while it runs."""
    running = await Running(client, request).began()
    views = await client.admin.ListRequests(admin_pb2.ListRequestsRequest(), timeout=10)
    running.leave()
    await running
    await client.idle()
    return [(view.priority, view.workload) for view in views.requests]


async def fullness(client: Client, request: pb.GenerateRequest) -> Outcome:
    """Whether each message of the stream but the last has 400 tokens or more; a busy machine has
    some wait for others all the same."""
    pieces = await Running(client, request)
    return all(len(piece.token_ids) >= 400 for piece in pieces[:-1])


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two requests of which the field makes two."""

    one: pb.GenerateRequest
    other: pb.GenerateRequest
    look: Look = answer


def tokens(prompt: Any = None, **fields: Any) -> pb.GenerateRequest:
    """A request by ids; what is not of GenerateRequest is of its sampling."""
    own = {key: fields.pop(key) for key in list(fields) if key in _OWN}
    sampling = {"max_tokens": 30} | fields
    prompt = ids(20, "fields") if prompt is None else prompt
    return pb.GenerateRequest(
        tokens=pb.TokenIds(ids=prompt), sampling=pb.SamplingParams(**sampling), **own
    )


_OWN = {field.name for field in pb.GenerateRequest.DESCRIPTOR.fields}
DRAWN = {"temperature": 1, "seed": 42}
CALLS_AT_ONCE = 2
SAYS_HI = [112, SCRIPT, *b"hi", IM_END, *b" all", GO]


def varied(one: dict[str, Any], other: dict[str, Any], look: Look = answer, **both: Any) -> Pair:
    return Pair(one=tokens(**both, **one), other=tokens(**both, **other), look=look)


def message(**fields: Any) -> pb.ChatMessage:
    return pb.ChatMessage(**({"role": pb.ROLE_USER, "content": "hi"} | fields))


def called(**fields: Any) -> pb.ChatMessage:
    call = pb.ToolCall(**({"id": "c1", "name": "f", "arguments": "{}"} | fields))
    return message(role=pb.ROLE_ASSISTANT, tool_calls=[call])


def chat(*messages: pb.ChatMessage, **fields: Any) -> pb.GenerateRequest:
    prompt = pb.ChatPrompt(messages=messages or [message()], **fields)
    sampling = pb.SamplingParams(max_tokens=60, **DRAWN)
    return pb.GenerateRequest(chat=prompt, sampling=sampling)


def tool(**fields: Any) -> dict[str, Any]:
    return {"tools": [pb.FunctionTool(**({"name": "f"} | fields))]}


def must_call(function: str) -> pb.GenerateRequest:
    choice = pb.ToolChoice(mode=pb.ToolChoice.MODE_REQUIRED, name=function)
    request = chat(tools=[pb.FunctionTool(name="f"), pb.FunctionTool(name="g")], tool_choice=choice)
    # One with which the call comes at once, and not after long thoughts.
    request.sampling.seed = CALLS_AT_ONCE
    request.request_id = "ids of calls follow from it"
    return request


def formed(**form: Any) -> Pair:
    sampling = {"max_tokens": 80, **DRAWN}
    return Pair(one=tokens(**sampling), other=tokens(**sampling, constraint=pb.Constraint(**form)))


THINKING = message(role=pb.ROLE_ASSISTANT, content="<think>so")
ANSWERED = message(role=pb.ROLE_ASSISTANT, content="well")
AUTO, REQUIRED = pb.ToolChoice.MODE_AUTO, pb.ToolChoice.MODE_REQUIRED

PAIRS: dict[str, Pair] = {
    "request_id": varied({"request_id": "one"}, {"request_id": "other"}, name),
    "text": Pair(
        one=pb.GenerateRequest(text="a", sampling=pb.SamplingParams(max_tokens=9)),
        other=pb.GenerateRequest(text="b", sampling=pb.SamplingParams(max_tokens=9)),
    ),
    "tokens.ids": Pair(one=tokens([97]), other=tokens([98])),
    "timeout_ms": varied({}, {"timeout_ms": 200}, max_tokens=2000, ignore_eos=True),
    "cache_domain": varied({}, {"cache_domain": "own"}, kept),
    "no_store": varied({}, {"no_store": True}, kept),
    "skip_special_tokens": varied({}, {"skip_special_tokens": False}, prompt=SAYS_HI),
    "priority": varied({}, {"priority": 3}, listed, max_tokens=2000, ignore_eos=True),
    "workload": varied({}, {"workload": "code"}, listed, max_tokens=2000, ignore_eos=True),
    "n": varied({}, {"n": 2}),
    "best_of": varied({}, {"best_of": 8}, **DRAWN),
    "echo": varied({}, {"echo": True}),
    "prompt_logprobs": varied({}, {"prompt_logprobs": 2}),
    "stream_interval": varied({}, {"stream_interval": 400}, fullness, max_tokens=600),
    "session": varied({}, {"session": "a session"}, sessions),
    "sampling.temperature": varied({}, {"temperature": 1}, seed=42),
    "sampling.top_k": varied({}, {"top_k": 5}, **DRAWN),
    "sampling.top_p": varied({}, {"top_p": 0.5}, **DRAWN),
    "sampling.min_p": varied({}, {"min_p": 0.5}, **DRAWN),
    "sampling.seed": varied({"seed": 42}, {"seed": 43}, temperature=1),
    "sampling.max_tokens": varied({"max_tokens": 20}, {"max_tokens": 21}),
    "sampling.stop": varied({}, {"stop": ["i"]}, prompt=SAYS_HI),
    "sampling.stop_token_ids": varied({}, {"stop_token_ids": [105]}, prompt=SAYS_HI),
    "sampling.ignore_eos": varied({}, {"ignore_eos": True}, prompt=SAYS_HI),
    "sampling.min_tokens": varied({}, {"min_tokens": 20}, prompt=SAYS_HI),
    "sampling.repetition_penalty": varied({}, {"repetition_penalty": 1.5}),
    "sampling.presence_penalty": varied({}, {"presence_penalty": 0.5}),
    "sampling.frequency_penalty": varied({}, {"frequency_penalty": -0.5}),
    "sampling.logprobs": varied({}, {"logprobs": 0}),
    "sampling.logit_bias": varied({}, {"logit_bias": {65: 100}}),
    "chat.messages.role": Pair(one=chat(message()), other=chat(message(role=pb.ROLE_SYSTEM))),
    "chat.messages.content": Pair(one=chat(message()), other=chat(message(content="ho"))),
    "chat.messages.tool_calls.id": Pair(one=chat(called()), other=chat(called(id=""))),
    "chat.messages.tool_calls.name": Pair(one=chat(called()), other=chat(called(name="g"))),
    "chat.messages.tool_calls.arguments": Pair(
        one=chat(called()), other=chat(called(arguments='{"a": 1}'))
    ),
    "chat.messages.tool_call_id": Pair(
        one=chat(called(), message(role=pb.ROLE_TOOL, tool_call_id="c1")),
        other=chat(called(), message(role=pb.ROLE_TOOL)),
    ),
    "chat.messages.reasoning": Pair(
        one=chat(ANSWERED, message()),
        other=chat(message(role=pb.ROLE_ASSISTANT, content="well", reasoning="thus"), message()),
    ),
    "chat.tools.name": Pair(one=chat(**tool()), other=chat(**tool(name="g"))),
    "chat.tools.description": Pair(one=chat(**tool()), other=chat(**tool(description="Does."))),
    "chat.tools.parameters": Pair(
        one=chat(**tool()), other=chat(**tool(parameters='{"type": "object"}'))
    ),
    "chat.continue_final_message": Pair(
        one=chat(message(), ANSWERED), other=chat(message(), ANSWERED, continue_final_message=True)
    ),
    "chat.template_arguments": Pair(one=chat(), other=chat(template_arguments='{"loud": true}')),
    "chat.tool_choice.mode": Pair(
        one=chat(**tool(), tool_choice=pb.ToolChoice(mode=AUTO)),
        other=chat(**tool(), tool_choice=pb.ToolChoice(mode=REQUIRED)),
    ),
    "chat.tool_choice.name": Pair(one=must_call("f"), other=must_call("g")),
    "chat.separate_reasoning": Pair(
        one=chat(THINKING, continue_final_message=True),
        other=chat(THINKING, continue_final_message=True, separate_reasoning=True),
    ),
    "constraint.json_schema": formed(json_schema='{"enum": [1, 2]}'),
    "constraint.json_object": formed(json_object=True),
    "constraint.regex": formed(regex="[0-9]{4}"),
    "constraint.ebnf": formed(ebnf='root ::= "yes" | "no"'),
    "constraint.choice.texts": formed(choice=pb.Choices(texts=["yes", "no"])),
}


def paths(message: Descriptor, within: str = "") -> Iterator[str]:
    """Every field that holds a value, by its path from the request."""
    for field in message.fields:
        inner = field.message_type
        if inner is None or inner.GetOptions().map_entry:
            yield within + field.name
        else:
            yield from paths(inner, f"{within}{field.name}.")


def test_every_field_has_a_line():
    assert sorted(PAIRS) == sorted(paths(pb.GenerateRequest.DESCRIPTOR))


def test_both_calls_have_the_same_fields():
    def fields(message: Descriptor) -> list[Any]:
        return [
            (field.name, field.number, field.type, field.message_type, field.has_presence)
            for field in message.fields
        ]

    assert fields(pb.GenerateRequest.DESCRIPTOR) == fields(pb.GenerateUnaryRequest.DESCRIPTOR)


@pytest.mark.parametrize("path", PAIRS)
async def test_it_has_an_effect(client, path):
    pair = PAIRS[path]
    seen = [await pair.look(client, request) for request in (pair.one, pair.other, pair.one)]
    assert seen[0] == seen[2], "only the field makes a difference"
    assert seen[0] != seen[1]
