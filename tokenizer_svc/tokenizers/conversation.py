"""A conversation as chat templates take it: plain values, from which no control token can come."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tokenizer_svc.tokenizers.spelling_guard import SpellingGuard
from tokenizer_svc.tokenizers.tokenizer import ChatTurn, FunctionTool, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages, and what is to be done with them."""

    turns: Sequence[ChatTurn]
    tools: Sequence[FunctionTool] = ()
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_calls(self) -> bool:
        """True where tools were called."""
        return any(turn.tool_calls or turn.role == "tool" for turn in self.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageForm:
    """How one template wants its messages."""

    content_is_parts: bool = False
    """True: content is a list of parts, each with a type; else a text."""
    arguments_are_text: bool = False
    """True: arguments of calls are JSON text; else an object."""
    no_content_is_none: bool = False
    """True: an assistant that only calls has content None; else an empty text."""


def num_characters(turns: Sequence[ChatTurn], tools: Sequence[FunctionTool]) -> int:
    """Of all long texts in a conversation."""
    described = sum(len(tool.description) + len(tool.parameters) for tool in tools)
    return described + sum(
        len(turn.content)
        + len(turn.reasoning)
        + sum(len(call.arguments) for call in turn.tool_calls)
        for turn in turns
    )


def guarded_turns(turns: Sequence[ChatTurn], guard: SpellingGuard) -> list[ChatTurn]:
    """The turns with their texts protected, save for arguments.

    Those are JSON, which may spell a token by escapes: they are protected in the form in which
    they are used.
    """
    return [
        replace(
            turn,
            content=guard.protect(turn.content),
            reasoning=guard.protect(turn.reasoning),
            tool_call_id=guard.protect(turn.tool_call_id),
            tool_calls=tuple(
                replace(call, id=guard.protect(call.id), name=guard.protect(call.name))
                for call in turn.tool_calls
            ),
        )
        for turn in turns
    ]


def tool_values(tools: Sequence[FunctionTool], guard: SpellingGuard) -> list[dict[str, Any]]:
    """The tools as templates list them, protected."""
    return [{"type": "function", "function": _function(tool, guard)} for tool in tools]


def messages(
    turns: Sequence[ChatTurn], form: MessageForm, guard: SpellingGuard
) -> list[dict[str, Any]]:
    """Protected turns as templates take them."""
    names = {call.id: call.name for turn in turns for call in turn.tool_calls}
    return [_message(turn, form, guard, names) for turn in turns]


def _function(tool: FunctionTool, guard: SpellingGuard) -> dict[str, Any]:
    function = {"name": guard.protect(tool.name)}
    if tool.description:
        function["description"] = guard.protect(tool.description)
    if tool.parameters:
        function["parameters"] = guard.protect_all(json.loads(tool.parameters))
    return function


def _message(
    turn: ChatTurn, form: MessageForm, guard: SpellingGuard, names: Mapping[str, str]
) -> dict[str, Any]:
    content: Any = turn.content
    if turn.tool_calls and not content and form.no_content_is_none:
        content = None
    elif form.content_is_parts:
        content = [{"type": "text", "text": content}]
    message = {"role": turn.role, "content": content}
    if turn.reasoning:
        message["reasoning_content"] = turn.reasoning
    if turn.tool_calls:
        message["tool_calls"] = [_call(call, form, guard) for call in turn.tool_calls]
    if turn.role == "tool":
        message["tool_call_id"] = turn.tool_call_id
        if turn.tool_call_id in names:
            message["name"] = names[turn.tool_call_id]
    return message


def _call(call: ToolCall, form: MessageForm, guard: SpellingGuard) -> dict[str, Any]:
    arguments = (
        guard.protect(call.arguments)
        if form.arguments_are_text
        else guard.protect_all(json.loads(call.arguments))
    )
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}
