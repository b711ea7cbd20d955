"""Conversations at the door: messages, tools, calls, template arguments; refused by name."""

from typing import Any

import pytest

from protos.errors import InvalidRequest
from protos.radixd.v1 import inference_pb2 as pb
from tokenizer_svc.generation_request import ChatPrompt
from tokenizer_svc.tokenizers.tokenizer import ChatTurn, FunctionTool, ToolCall, ToolChoice
from tokenizer_svc.validation_chat import read_chat

USER = pb.ChatMessage(role=pb.ROLE_USER, content="hi")
SAID = pb.ChatMessage(role=pb.ROLE_ASSISTANT, content="well")
TOOL = pb.FunctionTool(name="look_up", description="Finds.", parameters='{"type": "object"}')
CALL = pb.ToolCall(id="call_1", name="look_up", arguments='{"of": "漢"}')
ANSWER = pb.ChatMessage(role=pb.ROLE_TOOL, content="found", tool_call_id="call_1")
REQUIRED = pb.ToolChoice.MODE_REQUIRED


def read(*messages: pb.ChatMessage, max_prompt_bytes: int = 1 << 20, **fields: Any) -> ChatPrompt:
    chat = pb.ChatPrompt(messages=messages or [USER], **fields)
    return read_chat(chat, "chat", max_prompt_bytes=max_prompt_bytes)


def called(**fields: Any) -> list[pb.ChatMessage]:
    call = pb.ToolCall()
    call.CopyFrom(CALL)
    for name, value in fields.items():
        setattr(call, name, value)
    return [USER, pb.ChatMessage(role=pb.ROLE_ASSISTANT, tool_calls=[call])]


def tool(**fields: Any) -> dict[str, Any]:
    return {"tools": [pb.FunctionTool(**({"name": "f"} | fields))]}


def test_everything_arrives_as_it_is():
    answered = pb.ChatMessage(role=pb.ROLE_ASSISTANT, reasoning="hm", tool_calls=[CALL])
    prompt = read(
        pb.ChatMessage(role=pb.ROLE_SYSTEM, content="be"),
        USER,
        answered,
        ANSWER,
        SAID,
        tools=[TOOL, pb.FunctionTool(name="bare")],
        tool_choice=pb.ToolChoice(mode=REQUIRED, name="bare"),
        continue_final_message=True,
        template_arguments='{"enable_thinking": false}',
        separate_reasoning=True,
    )
    call = ToolCall(id="call_1", name="look_up", arguments='{"of": "漢"}')
    assert prompt == ChatPrompt(
        turns=(
            ChatTurn(role="system", content="be"),
            ChatTurn(role="user", content="hi"),
            ChatTurn(role="assistant", content="", reasoning="hm", tool_calls=(call,)),
            ChatTurn(role="tool", content="found", tool_call_id="call_1"),
            ChatTurn(role="assistant", content="well"),
        ),
        tools=(
            FunctionTool(name="look_up", description="Finds.", parameters='{"type": "object"}'),
            FunctionTool(name="bare"),
        ),
        tool_choice=ToolChoice(mode="required", name="bare"),
        add_generation_prompt=False,
        continue_final_message=True,
        template_arguments='{"enable_thinking": false}',
        separate_reasoning=True,
    )


def test_a_plain_question_asks_for_nothing_more():
    assert read() == ChatPrompt(turns=(ChatTurn(role="user", content="hi"),))
    unset = read(tool_choice=pb.ToolChoice())
    assert unset.tool_choice == ToolChoice(mode="auto")
    none = read(tools=[TOOL], tool_choice=pb.ToolChoice(mode=pb.ToolChoice.MODE_NONE))
    assert none.tool_choice == ToolChoice(mode="none")


def test_a_call_without_arguments_has_none():
    (_, turn) = read(*called(arguments="")).turns
    assert turn.tool_calls[0].arguments == "{}"


DEEP = "[" * 100_000
BAD_JSON = [
    "[1]",
    "1",
    "null",
    "{",
    "{'a': 1}",
    '{"a": NaN}',
    '{"a": -Infinity}',
    '{"a": "\\ud800"}',
    '{"\\udfff": 1}',
    '{"a": ' + DEEP + "}",
    '{"a": ' + "9" * 5000 + "}",
]

BAD: list[tuple[list[pb.ChatMessage], dict[str, Any], str]] = [
    ([pb.ChatMessage(role=5)], {}, "messages[0].role"),  # type: ignore[arg-type]
    ([pb.ChatMessage(role=pb.ROLE_USER, tool_calls=[CALL])], {}, "messages[0].tool_calls"),
    ([pb.ChatMessage(role=pb.ROLE_USER, reasoning="hm")], {}, "messages[0].reasoning"),
    ([pb.ChatMessage(role=pb.ROLE_TOOL, reasoning="hm")], {}, "messages[0].reasoning"),
    ([pb.ChatMessage(role=pb.ROLE_TOOL, content="x")], {}, "messages[0].tool_call_id"),
    ([pb.ChatMessage(role=pb.ROLE_USER, tool_call_id="x")], {}, "messages[0].tool_call_id"),
    (
        [pb.ChatMessage(role=pb.ROLE_ASSISTANT, tool_calls=[CALL] * 129)],
        {},
        "messages[0].tool_calls",
    ),
    (called(id=""), {}, "messages[1].tool_calls[0].id"),
    (called(id="i" * 257), {}, "messages[1].tool_calls[0].id"),
    (called(name=""), {}, "messages[1].tool_calls[0].name"),
    (called(name="a b"), {}, "messages[1].tool_calls[0].name"),
    *((called(arguments=bad), {}, "messages[1].tool_calls[0].arguments") for bad in BAD_JSON),
    ([], {"tools": [TOOL] * 2}, "tools[1].name"),
    ([], {"tools": [pb.FunctionTool(name=f"f{i}") for i in range(129)]}, "tools"),
    *(([], tool(name=bad), "tools[0].name") for bad in ("", "a" * 65, "a.b", "é", "a\n")),
    *(([], tool(parameters=bad), "tools[0].parameters") for bad in BAD_JSON),
    ([], tool(parameters="{" + " " * (256 << 10)), "tools[0].parameters"),
    *(([], {"template_arguments": bad}, "template_arguments") for bad in BAD_JSON),
    ([], {"template_arguments": "{" + " " * (64 << 10) + "}"}, "template_arguments"),
    ([USER], {"continue_final_message": True}, "continue_final_message"),
    ([SAID, USER], {"continue_final_message": True}, "continue_final_message"),
    (called(), {"continue_final_message": True}, "continue_final_message"),
    (
        [pb.ChatMessage(role=pb.ROLE_ASSISTANT)],
        {"continue_final_message": True},
        "continue_final_message",
    ),
    ([], {"tool_choice": pb.ToolChoice(mode=REQUIRED)}, "tool_choice.mode"),
    ([], {"tool_choice": pb.ToolChoice(mode=9)}, "tool_choice.mode"),  # type: ignore[arg-type]
    (
        [],
        {"tools": [TOOL], "tool_choice": pb.ToolChoice(mode=REQUIRED, name="other")},
        "tool_choice.name",
    ),
    ([], {"tools": [TOOL], "tool_choice": pb.ToolChoice(name="look_up")}, "tool_choice.name"),
]


@pytest.mark.parametrize(("messages", "fields", "field"), BAD)
def test_each_refusal_names_its_field(
    messages: list[pb.ChatMessage], fields: dict[str, Any], field: str
):
    with pytest.raises(InvalidRequest) as caught:
        read(*messages, **fields)
    assert caught.value.field == f"chat.{field}"
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("messages", "fields", "field"),
    [
        ([USER, pb.ChatMessage(role=pb.ROLE_USER, content="漢" * 4)], {}, "messages[1].content"),
        ([pb.ChatMessage(role=pb.ROLE_ASSISTANT, reasoning="r" * 11)], {}, "messages[0].reasoning"),
        (called(), {}, "messages[1].tool_calls[0].arguments"),
        ([], tool(description="d" * 9), "tools[0].description"),
        ([], tool(parameters='{"a": 12}'), "tools[0].parameters"),
    ],
)
def test_all_texts_share_the_bytes_of_a_prompt(
    messages: list[pb.ChatMessage], fields: dict[str, Any], field: str
):
    with pytest.raises(InvalidRequest, match=r"10 bytes|8 bytes") as caught:
        read(*messages, max_prompt_bytes=10, **fields)
    assert caught.value.field == f"chat.{field}"
