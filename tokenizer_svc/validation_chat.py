"""Checks at the door: conversations, the tools their model may call, and what the template gets.

All texts of one conversation share the bytes that a prompt may have.
"""

import re
from collections.abc import Sequence
from typing import Literal

from protos.errors import InvalidRequest
from protos.radixd.v1 import inference_pb2 as pb
from tokenizer_svc.field_checks import check_count, check_name, check_size, json_object
from tokenizer_svc.generation_request import ChatPrompt
from tokenizer_svc.tokenizers.tokenizer import ChatTurn, FunctionTool, ToolCall, ToolChoice

MAX_MESSAGES = 4096
MAX_TOOLS = 128
MAX_CALLS = 128
"""Of one message."""
MAX_CALL_ID_LENGTH = 256
MAX_PARAMETERS_BYTES = 256 << 10
MAX_TEMPLATE_ARGUMENTS_BYTES = 64 << 10

_FUNCTION_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ROLES = {
    pb.ROLE_SYSTEM: "system",
    pb.ROLE_USER: "user",
    pb.ROLE_ASSISTANT: "assistant",
    pb.ROLE_TOOL: "tool",
}
_MODES: dict[int, Literal["auto", "none", "required"]] = {
    pb.ToolChoice.MODE_UNSPECIFIED: "auto",
    pb.ToolChoice.MODE_AUTO: "auto",
    pb.ToolChoice.MODE_NONE: "none",
    pb.ToolChoice.MODE_REQUIRED: "required",
}


def read_chat(chat: pb.ChatPrompt, field: str, *, max_prompt_bytes: int) -> ChatPrompt:
    """A conversation of at least one message.

    Raises:
        InvalidRequest: names the field, which begins with `field`.
    """
    if not chat.messages:
        raise InvalidRequest(f"{field}.messages", "empty; at least one message is needed")
    check_count(chat.messages, f"{field}.messages", "messages", most=MAX_MESSAGES)
    room = _Room(max_prompt_bytes)
    turns = tuple(
        _turn(message, f"{field}.messages[{i}]", room) for i, message in enumerate(chat.messages)
    )
    tools = _tools(chat.tools, f"{field}.tools", room)
    continues = chat.continue_final_message
    if continues:
        _check_final(turns[-1], f"{field}.continue_final_message")
    if chat.template_arguments:
        where = f"{field}.template_arguments"
        check_size(chat.template_arguments, where, MAX_TEMPLATE_ARGUMENTS_BYTES)
        json_object(chat.template_arguments, where)
    return ChatPrompt(
        turns=turns,
        add_generation_prompt=not continues,
        tools=tools,
        tool_choice=_tool_choice(chat, tools, f"{field}.tool_choice"),
        continue_final_message=continues,
        template_arguments=chat.template_arguments,
        separate_reasoning=chat.separate_reasoning,
        field=field,
    )


class _Room:
    """Bytes left for the texts to come."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes

    def take(self, text: str, field: str) -> str:
        self._num_bytes -= check_size(text, field, self._num_bytes, setting="max_prompt_bytes")
        return text


def _turn(message: pb.ChatMessage, field: str, room: _Room) -> ChatTurn:
    if message.role not in _ROLES:
        raise InvalidRequest(
            f"{field}.role",
            f"{message.role} is not a role; system is 1, user 2, assistant 3, tool 4",
        )
    role = _ROLES[message.role]
    if role != "assistant":
        for name in ("tool_calls", "reasoning"):
            if getattr(message, name):
                raise InvalidRequest(f"{field}.{name}", f"only the assistant's has it, not {role}")
    if role == "tool":
        check_name(message.tool_call_id, f"{field}.tool_call_id", most=MAX_CALL_ID_LENGTH)
    elif message.tool_call_id:
        raise InvalidRequest(f"{field}.tool_call_id", f"only a tool's has it, not {role}")
    return ChatTurn(
        role=role,
        content=room.take(message.content, f"{field}.content"),
        tool_calls=_calls(message.tool_calls, f"{field}.tool_calls", room),
        tool_call_id=message.tool_call_id,
        reasoning=room.take(message.reasoning, f"{field}.reasoning"),
    )


def _calls(calls: Sequence[pb.ToolCall], field: str, room: _Room) -> tuple[ToolCall, ...]:
    check_count(calls, field, "calls", most=MAX_CALLS)
    found = []
    for i, call in enumerate(calls):
        where = f"{field}[{i}]"
        check_name(call.id, f"{where}.id", most=MAX_CALL_ID_LENGTH)
        _check_function_name(call.name, f"{where}.name")
        # Of a function without parameters, clients send back nothing.
        arguments = room.take(call.arguments, f"{where}.arguments") or "{}"
        json_object(arguments, f"{where}.arguments")
        found.append(ToolCall(id=call.id, name=call.name, arguments=arguments))
    return tuple(found)


def _tools(tools: Sequence[pb.FunctionTool], field: str, room: _Room) -> tuple[FunctionTool, ...]:
    check_count(tools, field, "functions", most=MAX_TOOLS)
    found: dict[str, FunctionTool] = {}
    for i, tool in enumerate(tools):
        where = f"{field}[{i}]"
        _check_function_name(tool.name, f"{where}.name")
        if tool.name in found:
            raise InvalidRequest(f"{where}.name", f"a second function called {tool.name}")
        room.take(tool.description, f"{where}.description")
        if room.take(tool.parameters, f"{where}.parameters"):
            check_size(tool.parameters, f"{where}.parameters", MAX_PARAMETERS_BYTES)
            json_object(tool.parameters, f"{where}.parameters")
        found[tool.name] = FunctionTool(
            name=tool.name, description=tool.description, parameters=tool.parameters
        )
    return tuple(found.values())


def _check_function_name(name: str, field: str) -> None:
    if not _FUNCTION_NAME.fullmatch(name):
        raise InvalidRequest(field, "1 to 64 letters, digits, _ and - are needed")


def _check_final(turn: ChatTurn, field: str) -> None:
    if turn.role != "assistant":
        raise InvalidRequest(field, f"the last message is not the assistant's but {turn.role}")
    if turn.tool_calls or not turn.content:
        raise InvalidRequest(field, "the last message has calls or no text, so nothing goes on")


def _tool_choice(chat: pb.ChatPrompt, tools: Sequence[FunctionTool], field: str) -> ToolChoice:
    mode, name = chat.tool_choice.mode, chat.tool_choice.name
    if mode not in _MODES:
        raise InvalidRequest(
            f"{field}.mode", f"{mode} is not a mode; auto is 1, none 2, required 3"
        )
    if name and _MODES[mode] != "required":
        raise InvalidRequest(f"{field}.name", "only a call that is required can be named")
    if name and all(tool.name != name for tool in tools):
        raise InvalidRequest(f"{field}.name", "no function of this name is among the tools")
    if _MODES[mode] == "required" and not tools:
        raise InvalidRequest(f"{field}.mode", "a call is required, and there are no tools")
    return ToolChoice(mode=_MODES[mode], name=name)
