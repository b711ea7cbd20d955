"""What a field of the public schema is called in the bodies of HTTP.

Checks are made on the schema, the same as for gRPC; whoever sent JSON is told his own names.
"""

import contextlib
import re
from collections.abc import Iterator, Sequence

from protos.errors import InvalidRequest, PromptTooLarge

Names = Sequence[tuple[re.Pattern[str], str]]
"""Tried in this order; the first that matches the beginning of a field renames it."""


def names(*pairs: tuple[str, str]) -> Names:
    """From patterns of fields to the names that bodies have for them."""
    return tuple((re.compile(pattern), name) for pattern, name in pairs)


_FORMS = (
    (r"constraint\.choice\.texts", "choice"),
    (r"constraint\.(regex|ebnf|choice)", r"\1"),
)
_CHAT_FORMS = (
    (r"constraint\.json_schema", "response_format.json_schema.schema"),
    (r"constraint(\.json_object)?", "response_format"),
)
_CHAT_FIELDS = (
    (
        r"chat\.messages(\[\d+\])\.tool_calls(\[\d+\])\.(name|arguments)",
        r"messages\1.tool_calls\2.function.\3",
    ),
    (r"chat\.messages(\[\d+\])\.reasoning\b", r"messages\1.reasoning_content"),
    (r"chat\.tools(\[\d+\])\.", r"tools\1.function."),
    (r"chat\.tool_choice\.name", "tool_choice.function.name"),
    (r"chat\.tool_choice\.mode", "tool_choice"),
    (r"chat\.template_arguments", "chat_template_kwargs"),
)

CHAT = names(
    *_CHAT_FIELDS,
    (r"chat\.", ""),
    (r"chat\b", "messages"),
    (r"prompt\Z", "messages"),
    (r"sampling\.logprobs", "top_logprobs"),
    *_FORMS,
    *_CHAT_FORMS,
    (r"sampling\.", ""),
)

RESPONSES = names(
    (r"chat\.messages.*", "input"),
    (r"chat\.tool_choice\.name", "tool_choice.name"),
    (r"chat\.tool_choice\.mode", "tool_choice"),
    (r"chat\.template_arguments", "reasoning.effort"),
    (r"chat\.", ""),
    (r"(chat\b|prompt\Z)", "input"),
    (r"sampling\.max_tokens", "max_output_tokens"),
    (r"sampling\.logprobs", "top_logprobs"),
    (r"constraint\.json_schema", "text.format.schema"),
    (r"constraint.*", "text.format"),
    (r"sampling\.", ""),
)

TOKENIZE = names(*_CHAT_FIELDS, (r"chat\.", ""), (r"chat\b", "messages"), (r"text\b", "prompt"))

AS_THEY_ARE: Names = ()


def completions(prompt: str) -> Names:
    """Of a completion whose prompt the body calls `prompt` (`prompt[3]`, for one)."""
    return names(
        (r"(text|tokens\.ids|tokens|prompt\Z)", prompt),
        *_FORMS,
        *_CHAT_FORMS,
        (r"sampling\.", ""),
    )


def renamed(field: str, known: Names) -> str:
    """The field as the body calls it."""
    for pattern, name in known:
        found = pattern.match(field)
        if found:
            return found.expand(name) + field[found.end() :]
    return field


@contextlib.contextmanager
def in_words_of(known: Names) -> Iterator[None]:
    """Errors that leave the block name their field as the body does."""
    try:
        yield
    except (InvalidRequest, PromptTooLarge) as error:
        raise type(error)(renamed(error.field, known), error.message) from None
