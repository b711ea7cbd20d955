"""Tools for models whose chat template knows none: described in a message, called in marked JSON.

The instructions ask for the form of Hermes, which most published models have seen.  Calls go back
to the model as it would have written them, results in a message of the user.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from tokenizer_svc.chat.call_formats import CallFormat
from tokenizer_svc.tokenizers.spelling_guard import SpellingGuard
from tokenizer_svc.tokenizers.tokenizer import ChatTurn

_INSTRUCTIONS = """# Tools

You may call one or more of these functions to help the user. Their signatures are between \
<tools> and </tools>:
<tools>
{tools}
</tools>

For each call, write a JSON object with the function's name and arguments between <tool_call> \
and </tool_call>:
<tool_call>
{{"name": <function-name>, "arguments": <arguments-object>}}
</tool_call>"""


def instructions(tools: Sequence[dict[str, Any]]) -> str:
    """What the model is told of its tools (see `tool_values`)."""
    lines = (json.dumps(tool, ensure_ascii=False) for tool in tools)
    return _INSTRUCTIONS.format(tools="\n".join(lines))


def with_instructions(turns: Sequence[ChatTurn], text: str, *, has_system: bool) -> list[ChatTurn]:
    """The turns with this text in the system's message, or where there is none in the user's."""
    role = "system" if has_system else "user"
    told = list(turns)
    at = next((i for i, turn in enumerate(told) if turn.role == role), None)
    if at is None or (has_system and at > 0):
        return [ChatTurn(role=role, content=text), *told]
    content = told[at].content
    joined = (content, text) if has_system else (text, content)
    told[at] = replace(told[at], content="\n\n".join(filter(None, joined)))
    return told


def spelled_out(
    turns: Sequence[ChatTurn], calls: CallFormat, guard: SpellingGuard
) -> list[ChatTurn]:
    """Protected turns with their calls and results as text."""
    told = []
    for is_tool, group in groupby(turns, lambda turn: turn.role == "tool"):
        if is_tool:
            results = "\n".join(
                f"<tool_response>\n{turn.content}\n</tool_response>" for turn in group
            )
            told.append(ChatTurn(role="user", content=results))
        else:
            told.extend(_spelled_out(turn, calls, guard) for turn in group)
    return told


def _spelled_out(turn: ChatTurn, calls: CallFormat, guard: SpellingGuard) -> ChatTurn:
    if not turn.tool_calls:
        return turn
    written = [turn.content] if turn.content else []
    for call in turn.tool_calls:
        before, after = calls.written(call.name)
        written.append(before + guard.protect(call.arguments) + after)
    return replace(turn, content="\n".join(written), tool_calls=())
