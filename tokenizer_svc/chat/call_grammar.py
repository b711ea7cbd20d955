"""A grammar by which a model can only call: for conversations that demand a call.

In the notation of the worker's constraints (Lark's, with `%json` for schemas and `<[id]>` for
control tokens), so that each schema stands as its tool has it, references and all.
"""

import json
import re
from collections.abc import Mapping, Sequence

from tokenizer_svc.chat.call_formats import CallFormat
from tokenizer_svc.chat.chat_format import Thoughts
from tokenizer_svc.constraints.json_schema import JSON_OPTIONS, read_schema
from tokenizer_svc.tokenizers.tokenizer import FunctionTool

_NO_PARAMETERS = '{"type": "object", "properties": {}, "additionalProperties": false}'


def call_grammar(
    calls: CallFormat,
    tools: Sequence[FunctionTool],
    special_ids: Mapping[str, int],
    *,
    thoughts: Thoughts | None,
    begins_in_thoughts: bool,
    is_single: bool,
) -> str:
    """The grammar of one or more calls of these tools, after thoughts where the model has them.

    Thoughts that are marked by control tokens are left out, or ended at once.  `special_ids` may
    leave out control tokens that no call has.

    Raises:
        FormError: the parameters of a tool are no schema that can be met.
    """
    between = None if is_single or calls.between is None else _literal(calls.between, special_ids)
    row = "call" if between is None else f"call ({between} call)*"
    before, rules = _before(thoughts, special_ids, begins_in_thoughts=begins_in_thoughts)
    lines = [
        f"start: {before}{row}",
        *rules,
        "call: " + " | ".join(f"call_{i}" for i in range(len(tools))),
    ]
    for i, tool in enumerate(tools):
        before, after = (_literal(text, special_ids) for text in calls.written(tool.name))
        lines.append(f"call_{i}: {before} arguments_{i} {after}")
        # One line: the notation knows no other end of a schema.
        schema = read_schema(tool.parameters or _NO_PARAMETERS)
        lines.append(f"arguments_{i}: %json {json.dumps({'x-guidance': JSON_OPTIONS, **schema})}")
    return "\n".join([*lines, ""])


def _before(
    thoughts: Thoughts | None, special_ids: Mapping[str, int], *, begins_in_thoughts: bool
) -> tuple[str, list[str]]:
    """What comes before the calls, and the rules for it."""
    if thoughts is None:
        return "", []
    if thoughts.opening in special_ids or thoughts.closing in special_ids:
        # Beside other tokens the library allows all control tokens where it is to allow one.
        return f"{_literal(thoughts.closing, special_ids)} " if begins_in_thoughts else "", []
    rules = [
        "thoughts: thought /\\n*/",
        f"thought[suffix={json.dumps(thoughts.closing)}]: /(?s:.*)/",
    ]
    if begins_in_thoughts:
        return "thoughts ", rules
    return f"({json.dumps(thoughts.opening)} thoughts)? ", rules


def _literal(text: str, special_ids: Mapping[str, int]) -> str:
    """A text whose control tokens are tokens."""
    spelled = "|".join(re.escape(token) for token in special_ids if token)
    parts = re.split(f"({spelled or '(?!)'})", text)
    return " ".join(
        f"<[{special_ids[part]}]>" if part in special_ids else json.dumps(part)
        for part in parts
        if part
    )
