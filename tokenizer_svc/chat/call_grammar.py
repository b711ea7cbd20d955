"""A grammar by which a model can only call, or call or answer in a form.

For conversations that demand a call, and for those that have tools and a form as well.

In the notation of the worker's constraints (Lark's, with `%json` for schemas and `<[id]>` for
control tokens), so that each schema stands as its tool has it, references and all.
"""

import json
import re
from collections.abc import Mapping, Sequence

from tokenizer_svc.chat.call_formats import CallFormat
from tokenizer_svc.chat.chat_format import Thoughts
from tokenizer_svc.constraints.forms import FormRules
from tokenizer_svc.constraints.json_schema import JSON_OPTIONS, read_schema
from tokenizer_svc.tokenizers.tokenizer import FunctionTool

_UNITS = {
    "text": re.compile(r"(?s:.+)"),
    "character": re.compile(r"(?s:.)"),
    "json": re.compile(r'"[^"]*"|[{}\[\]]|[,:] ?|[^"{}\[\],:]+'),
}
"""A unit of each kind (see FormRules)."""
_NO_PARAMETERS = '{"type": "object", "properties": {}, "additionalProperties": false}'


def call_grammar(
    calls: CallFormat,
    tools: Sequence[FunctionTool],
    special_ids: Mapping[str, int],
    *,
    thoughts: Thoughts | None,
    begins_in_thoughts: bool,
    is_single: bool,
    form: FormRules | None = None,
) -> str:
    """The grammar of one or more calls of these tools, after thoughts where the model has them.

    With a form: of such calls or of a text of this form.  `special_ids` may leave out control
    tokens that no call has.

    Raises:
        FormError: the parameters of a tool are no schema that can be met.
    """
    between = None if is_single or calls.between is None else _literal(calls.between, special_ids)
    row = "call" if between is None else f"call ({between} call)*"
    unit = "text" if form is None else form.unit
    before, rules = _before(thoughts, special_ids, unit, begins_in_thoughts=begins_in_thoughts)
    lines = [
        f"start: {before}{row}" if form is None else f"start: {before}(calls | form)",
        *([] if form is None else [f"calls: {row}", form.rules]),
        *rules,
        "call: " + " | ".join(f"call_{i}" for i in range(len(tools))),
    ]
    for i, tool in enumerate(tools):
        opening, closing = calls.written(tool.name)
        before = _literal(opening, special_ids, unit)
        after = _literal(closing, special_ids)
        lines.append(f"call_{i}: {before} arguments_{i} {after}")
        # One line: the notation knows no other end of a schema.
        schema = read_schema(tool.parameters or _NO_PARAMETERS)
        lines.append(f"arguments_{i}: %json {json.dumps({'x-guidance': JSON_OPTIONS, **schema})}")
    return "\n".join([*lines, ""])


def _before(
    thoughts: Thoughts | None,
    special_ids: Mapping[str, int],
    unit: str,
    *,
    begins_in_thoughts: bool,
) -> tuple[str, list[str]]:
    """What comes before the calls, and the rules for it."""
    if thoughts is None:
        return "", []
    if thoughts.closing in special_ids:
        closing = _literal(thoughts.closing, special_ids)
        rules = [f"thoughts: /(?s:.*)/ {closing} /\\n*/"]
    else:
        rules = [
            "thoughts: thought /\\n*/",
            f"thought[suffix={json.dumps(thoughts.closing)}]: /(?s:.*)/",
        ]
    if begins_in_thoughts:
        return "thoughts ", rules
    return f"({_literal(thoughts.opening, special_ids, unit)} thoughts)? ", rules


def _literal(text: str, special_ids: Mapping[str, int], unit: str = "text") -> str:
    """A text in these units, whose control tokens are tokens."""
    spelled = "|".join(re.escape(token) for token in special_ids if token)
    parts = re.split(f"({spelled or '(?!)'})", text)
    return " ".join(
        f"<[{special_ids[part]}]>"
        if part in special_ids
        else " ".join(json.dumps(piece) for piece in _UNITS[unit].findall(part))
        for part in parts
        if part
    )
