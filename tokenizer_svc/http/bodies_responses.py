"""Bodies of /v1/responses: OpenAI's other way to write a conversation, as far as it is text.

Nothing is stored here, so whatever refers to an earlier response is refused.
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from tokenizer_svc.http.bodies import (
    Body,
    Effort,
    GenerationBody,
    Int64,
    JsonObject,
    Natural,
    OnlyFalse,
    schema_ref,
    within,
)
from tokenizer_svc.http.bodies_chat import ToolChoiceBody
from tokenizer_svc.validation_sampling import MAX_LOGPROBS

WITH_LOGPROBS = "message.output_text.logprobs"


class InputText(Body):
    """A part of an item; there are only texts."""

    type: Literal["input_text", "output_text", "text", "reasoning_text"]
    text: str
    # Of replies that are sent back.
    annotations: list[JsonObject] | None = None
    logprobs: list[JsonObject] | None = None


def as_parts(value: object) -> object:
    """A text alone is one part."""
    return [{"type": "input_text", "text": value}] if isinstance(value, str) else value


Parts = Annotated[
    list[InputText],
    BeforeValidator(as_parts),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": schema_ref("InputText")},
            ]
        }
    ),
]


class InputItem(Body):
    """A message, what the model thought, a call that it made, or the answer to one."""

    type: Literal["message", "reasoning", "function_call", "function_call_output"] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Parts | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: Parts | None = None
    # Of replies that are sent back.
    id: str | None = None
    status: str | None = None
    summary: Annotated[list[JsonObject], Field(max_length=0)] | None = None


def as_items(value: object) -> object:
    """A text alone is one message of the user."""
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


Items = Annotated[
    list[InputItem],
    BeforeValidator(as_items),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": schema_ref("InputItem")},
            ]
        }
    ),
]


class TextFormat(Body):
    """What the text must look like."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: JsonObject | None = Field(None, alias="schema")
    strict: bool | None = None
    """Without meaning: an output always meets its schema."""


class TextOptions(Body):
    """Of the text."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class Reasoning(Body):
    """How the model is to think."""

    effort: Effort | None = None
    summary: Literal["auto"] | None = Field(
        None, description="Without meaning: thoughts come whole, as the item's content."
    )
    generate_summary: Literal["auto"] | None = Field(None, description="The same as summary.")


class ResponseStreamOptions(Body):
    """What a stream carries beside its text."""

    include_obfuscation: bool | None = None
    """Without meaning: there is none."""


Include = Literal[
    "message.output_text.logprobs",
    # Without meaning: thoughts are never encrypted, and the other items never occur here.
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


class FlatTool(Body):
    """A function that the model may call."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None
    """Without meaning here."""


def as_tool_choice(value: object) -> object:
    """A word alone is a mode; a function is named beside its type."""
    if isinstance(value, str) and value in ("auto", "none", "required"):
        return {"mode": value, "function": {"name": ""}}
    if (
        isinstance(value, dict)
        and set(value) == {"type", "name"}
        and isinstance(value["name"], str)
    ):
        return {"type": value["type"], "function": {"name": value["name"]}}
    raise ValueError("must be auto, none, required or a function by name")


class ResponseBody(GenerationBody):
    """POST /v1/responses."""

    input: Items
    instructions: str | None = None
    max_output_tokens: Int64 | None = Field(None, json_schema_extra=within(1, (1 << 31) - 1))
    include: list[Include] | None = None
    top_logprobs: Int64 | None = Field(
        None,
        description=f"With {WITH_LOGPROBS} in include.",
        json_schema_extra=within(0, MAX_LOGPROBS),
    )
    reasoning: Reasoning | None = None
    stream_options: ResponseStreamOptions | None = None
    text: TextOptions | None = None
    tools: list[FlatTool] | None = None
    tool_choice: (
        Annotated[
            ToolChoiceBody,
            BeforeValidator(as_tool_choice),
            WithJsonSchema(
                {
                    "anyOf": [
                        {"enum": ["auto", "none", "required"]},
                        {
                            "type": "object",
                            "required": ["type", "name"],
                            "additionalProperties": False,
                            "properties": {
                                "type": {"const": "function"},
                                "name": {"type": "string"},
                            },
                        },
                    ]
                }
            ),
        ]
        | None
    ) = None
    parallel_tool_calls: bool | None = None
    truncation: Literal["disabled"] | None = None
    background: OnlyFalse | None = None
    store: bool | None = Field(
        None, description="Nothing is stored; true is refused.", json_schema_extra={"const": False}
    )
    previous_response_id: str | None = Field(
        None, description="Nothing is stored; refused.", json_schema_extra={"const": None}
    )
    max_tool_calls: Natural | None = None
    """Without meaning: it counts calls of tools that the server has, and there are none."""
