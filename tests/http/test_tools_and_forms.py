"""Tools beside a form, and tools that may not be called, through whole stacks and both doors."""

import json

import pytest

from protos.radixd.v1 import inference_pb2 as pb
from tests.http.ask import CHAT, RESPONSES, joined, ok, refused, streamed, user

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Brno", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
SCHEMA = {
    "type": "object",
    "properties": {"sky": {"enum": ["blue", "grey"]}},
    "required": ["sky"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "sky", "schema": SCHEMA}}
AGENT = {"tools": [TOOL], "response_format": FORM, "max_tokens": 400, "temperature": 1}
SEEDS, CALLS_AT_ONCE = range(8), 3


def kind(message):
    """Calls or an answer; each meets its schema."""
    calls = message.get("tool_calls")
    if not calls:
        assert json.loads(message["content"])["sky"] in ("blue", "grey")
        return "answer"
    assert not message.get("content")
    for call in calls:
        assert call["function"]["name"] == "weather"
        assert json.loads(call["function"]["arguments"])["city"] in ("Brno", "Oslo")
    return "calls"


async def test_an_agent_gets_calls_or_an_answer_of_the_form(http):
    kinds = set()
    for seed in SEEDS:
        # The fake model would think for ever.
        banned = {str(ord("<")): -100 if seed % 2 else 0}
        body = {**AGENT, "seed": seed, "messages": user("Sky?"), "logit_bias": banned}
        body["separate_reasoning"] = False
        choice = (await ok(http, CHAT, **body))["choices"][0]
        kinds.add(kind(choice["message"]))
        reason = "tool_calls" if choice["message"].get("tool_calls") else "stop"
        assert choice["finish_reason"] == reason
    assert kinds == {"calls", "answer"}


async def test_the_same_over_grpc(grpc_client):
    tool = pb.FunctionTool(name="weather", parameters=json.dumps(PARAMETERS))
    message = pb.ChatMessage(role=pb.ROLE_USER, content="Sky?")
    kinds = set()
    for seed in SEEDS:
        request = pb.GenerateUnaryRequest(
            chat=pb.ChatPrompt(messages=[message], tools=[tool]),
            constraint=pb.Constraint(json_schema=json.dumps(SCHEMA)),
            sampling=pb.SamplingParams(
                max_tokens=400, temperature=1, seed=seed, logit_bias={60: -100 if seed % 2 else 0}
            ),
        )
        answer = await grpc_client.inference.GenerateUnary(request, timeout=30)
        calls = [
            {"function": {"name": c.name, "arguments": c.arguments}} for c in answer.tool_calls
        ]
        kinds.add(kind({"content": answer.text, "tool_calls": calls}))
    assert kinds == {"calls", "answer"}


@pytest.mark.parametrize(
    "form",
    [
        {"response_format": {"type": "json_object"}},
        {"regex": "[0-9]{4}"},
        {"ebnf": 'root ::= "(" root? ")"'},
        {"choice": ["yes", "no"]},
    ],
)
async def test_each_form_may_be_beside_tools(http, form):
    body = {"messages": user("?"), "tools": [TOOL], "max_tokens": 900, **form}
    for banned in ("<", "{([0123456789yn"):
        biases = {str(ord(character)): -100 for character in banned}
        answer = await ok(http, CHAT, **body, logit_bias=biases, separate_reasoning=False)
        message = answer["choices"][0]["message"]
        assert bool(message.get("tool_calls")) is (banned != "<")
        assert bool(message["content"]) is (banned == "<")


async def test_a_demanded_call_leaves_the_form_no_say(http):
    body = {**AGENT, "messages": user("Sky?"), "tool_choice": "required"}
    # One with which the call comes at once, and not after long thoughts.
    message = (await ok(http, CHAT, **body, seed=CALLS_AT_ONCE))["choices"][0]["message"]
    assert kind(message) == "calls"
    body["response_format"] = {
        "type": "json_schema",
        "json_schema": {"name": "none", "schema": {"enum": []}},
    }
    error = await refused(http, CHAT, body)
    assert error["param"].startswith("response_format")


async def test_no_call_is_made_where_none_is_wanted(http):
    body = {**AGENT, "messages": user("Sky?"), "tool_choice": "none"}
    for seed in SEEDS:
        choice = (await ok(http, CHAT, **body, seed=seed))["choices"][0]
        assert kind(choice["message"]) == "answer"
        assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("other", ["none", "auto", "required"])
async def test_every_tool_choice_shares_the_prompt(http, other):
    turns = user(f"What is the sky like today, when {other}?")
    body = {"tools": [TOOL], "max_tokens": 4}
    first = (await ok(http, CHAT, **body, messages=turns))["usage"]
    again = (await ok(http, CHAT, **body, messages=turns, tool_choice=other))["usage"]
    assert again["prompt_tokens"] == first["prompt_tokens"]
    assert again["prompt_tokens_details"]["cached_tokens"] == first["prompt_tokens"] - 1
    events = await streamed(
        http,
        CHAT,
        **body,
        messages=turns,
        tool_choice=other,
        stream_options={"include_usage": True},
    )
    assert events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == (
        first["prompt_tokens"] - 1
    )
    joined(events[:-1])


async def test_responses_take_both(http):
    tool = {"type": "function", **TOOL["function"]}
    text = {"format": {"type": "json_schema", "name": "sky", "schema": SCHEMA}}
    body = {"input": "Sky?", "tools": [tool], "text": text, "max_output_tokens": 400}
    kinds = set()
    for seed in SEEDS:
        answer = await ok(http, RESPONSES, **body, seed=seed, temperature=1)
        kinds |= {item["type"] for item in answer["output"]}
    assert kinds <= {"function_call", "message", "reasoning"}
    answer = await ok(http, RESPONSES, **body, tool_choice="none")
    assert json.loads(answer["output"][-1]["content"][0]["text"])["sky"] in ("blue", "grey")
