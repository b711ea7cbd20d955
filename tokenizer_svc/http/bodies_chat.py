"""Bodies of /v1/chat/completions: messages, tools and what goes with them."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from tokenizer_svc.http.bodies import (
    Body,
    CacheControl,
    ChoicesBody,
    Effort,
    Int64,
    JsonObject,
    schema_ref,
    within,
)
from tokenizer_svc.validation_sampling import MAX_LOGPROBS

Role = Literal["system", "developer", "user", "assistant", "tool"]


class TextPart(Body):
    """A part of a message; there are only texts."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None


def as_parts(value: object) -> object:
    """A text alone is one part."""
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


Content = Annotated[
    list[TextPart],
    BeforeValidator(as_parts),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": schema_ref("TextPart")},
            ]
        }
    ),
]


class CalledFunction(Body):
    """What a tool call calls."""

    name: str
    arguments: str
    """A JSON object, as text."""


class ToolCallBody(Body):
    """A call that the assistant made."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None
    """Without meaning: clients send it back from streams."""


class ChatMessageBody(Body):
    """One message."""

    role: Role
    content: Content | None = None
    name: str | None = None
    """Without meaning: chat templates know roles alone."""
    tool_calls: list[ToolCallBody] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = Field(None, description="The same as reasoning_content.")
    cache_control: CacheControl | None = None
    # A reply is sent back with all its fields; this one is empty in ours.
    annotations: Annotated[list[JsonObject], Field(max_length=0)] | None = None


class FunctionBody(Body):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None
    """Without meaning for a call the model makes of itself; one it must make meets its schema."""


class ToolBody(Body):
    """A tool; there are only functions."""

    type: Literal["function"]
    function: FunctionBody


class NamedFunction(Body):
    """A function by its name."""

    name: str


class ToolChoiceBody(Body):
    """Whether and what must be called."""

    type: Literal["function"] | None = None
    mode: Literal["auto", "none", "required"] | None = Field(None, exclude=True)
    function: NamedFunction


def as_tool_choice(value: object) -> object:
    """A word alone is a mode."""
    if isinstance(value, dict) and "mode" not in value:
        return value
    if not isinstance(value, str) or value not in ("auto", "none", "required"):
        raise ValueError("must be auto, none, required or a function by name")
    return {"mode": value, "function": {"name": ""}}


ToolChoice = Annotated[
    ToolChoiceBody,
    BeforeValidator(as_tool_choice),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["auto", "none", "required"]},
                {
                    "type": "object",
                    "required": ["type", "function"],
                    "additionalProperties": False,
                    "properties": {
                        "type": {"const": "function"},
                        "function": schema_ref("NamedFunction"),
                    },
                },
            ]
        }
    ),
]


class TemplateFields(Body):
    """How messages become a prompt."""

    tools: list[ToolBody] | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="More variables for the template: enable_thinking, for one."
    )
    continue_final_message: bool | None = Field(
        None, description="True: the assistant's last message is continued."
    )
    add_generation_prompt: bool | None = Field(
        None, description="Whether the assistant's turn is opened; null: as the endpoint needs it."
    )


class ChatBody(ChoicesBody, TemplateFields):
    """POST /v1/chat/completions."""

    messages: list[ChatMessageBody] = Field(json_schema_extra={"minItems": 1})
    max_completion_tokens: Int64 | None = Field(None, json_schema_extra=within(1, (1 << 31) - 1))
    logprobs: bool | None = None
    top_logprobs: Int64 | None = Field(None, json_schema_extra=within(0, MAX_LOGPROBS))
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = Field(
        None, description="False: calls after the first are left out."
    )
    separate_reasoning: bool | None = Field(
        None, description="False: what the model thinks stays in the content; null: true."
    )
    reasoning_effort: Effort | None = Field(
        None, description="A variable of the chat template; refused where that has none."
    )
    modalities: list[Literal["text"]] | None = None
    verbosity: Literal["medium"] | None = None
