"""Bodies of /v1/responses: OpenAI's other way to write a conversation, as far as it is text.

Nothing is stored here, so whatever refers to an earlier response is refused.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from protos.errors import InvalidRequest
from protos.radixd.v1 import inference_pb2 as pb
from tokenizer_svc.http.bodies import (
    Body,
    GenerationBody,
    Int64,
    JsonObject,
    OnlyFalse,
    schema_ref,
    within,
)
from tokenizer_svc.http.bodies_chat import ToolChoiceBody
from tokenizer_svc.http.json_body import json_text
from tokenizer_svc.http.to_request import plain_request, tool_choice
from tokenizer_svc.validation_sampling import MAX_LOGPROBS

_ROLES = {
    "system": pb.ROLE_SYSTEM,
    "developer": pb.ROLE_SYSTEM,
    "user": pb.ROLE_USER,
    "assistant": pb.ROLE_ASSISTANT,
}


class InputText(Body):
    """A part of an item; there are only texts."""

    type: Literal["input_text", "output_text", "text"]
    text: str
    # Of replies that are sent back.
    annotations: list[JsonObject] | None = None
    logprobs: list[JsonObject] | None = None


class InputItem(Body):
    """A message, a call that the model made, or the answer to one."""

    type: Literal["message", "function_call", "function_call_output"] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Annotated[list[InputText], BeforeValidator(lambda value: _as_parts(value))] | None = (
        None
    )
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | None = None
    # Of replies that are sent back.
    id: str | None = None
    status: str | None = None


def _as_parts(value: object) -> object:
    return [{"type": "input_text", "text": value}] if isinstance(value, str) else value


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
    if isinstance(value, dict) and set(value) == {"type", "name"}:
        return {"type": value["type"], "function": {"name": value["name"]}}
    raise ValueError("must be auto, none, required or a function by name")


class ResponseBody(GenerationBody):
    """POST /v1/responses."""

    input: Items
    instructions: str | None = None
    max_output_tokens: Int64 | None = Field(None, json_schema_extra=within(1, (1 << 31) - 1))
    top_logprobs: Annotated[Int64, Field(ge=0, le=0)] | None = Field(
        None, description=f"Not shown here; chat completions show up to {MAX_LOGPROBS}."
    )
    text: TextOptions | None = None
    tools: list[FlatTool] | None = None
    tool_choice: (
        Annotated[
            ToolChoiceBody,
            BeforeValidator(as_tool_choice),
            WithJsonSchema({"enum": ["auto", "none", "required"]}),
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
    include: Annotated[list[str], Field(max_length=0)] | None = None


def response_request(body: ResponseBody) -> pb.GenerateRequest:
    """The request of a response.

    Raises:
        InvalidRequest: names the field of the body.
    """
    _refuse_memory(body)
    request = plain_request(body)
    request.chat.CopyFrom(pb.ChatPrompt(messages=list(_messages(body))))
    request.chat.separate_reasoning = True
    for tool in body.tools or ():
        request.chat.tools.add(
            name=tool.name,
            description=tool.description or "",
            parameters="" if tool.parameters is None else json_text(tool.parameters),
        )
    if body.tool_choice is not None:
        request.chat.tool_choice.CopyFrom(tool_choice(body.tool_choice))
    if body.max_output_tokens is not None:
        request.sampling.max_tokens = body.max_output_tokens
    wanted = None if body.text is None else body.text.format
    if wanted is not None and wanted.type == "json_object":
        request.constraint.json_object = True
    elif wanted is not None and wanted.type == "json_schema":
        if wanted.schema_ is None:
            raise InvalidRequest("text.format.schema", "needed")
        request.constraint.json_schema = json_text(wanted.schema_)
    return request


def _refuse_memory(body: ResponseBody) -> None:
    if body.previous_response_id is not None:
        text = "responses are not stored here; send the whole conversation as input"
        raise InvalidRequest("previous_response_id", text)
    if body.store:
        raise InvalidRequest("store", "responses are not stored here; only false is taken")


def _messages(body: ResponseBody) -> Iterator[pb.ChatMessage]:
    if body.instructions is not None:
        yield pb.ChatMessage(role=pb.ROLE_SYSTEM, content=body.instructions)
    for i, item in enumerate(body.input):
        where = f"input[{i}]"
        if item.type == "message":
            role = _needed(item.role, f"{where}.role")
            parts: list[Any] = _needed(item.content, f"{where}.content")
            content = "".join([part.text for part in parts])
            yield pb.ChatMessage(role=_ROLES[role], content=content)
        elif item.type == "function_call":
            call = pb.ToolCall(
                id=_needed(item.call_id, f"{where}.call_id"),
                name=_needed(item.name, f"{where}.name"),
                arguments=_needed(item.arguments, f"{where}.arguments"),
            )
            yield pb.ChatMessage(role=pb.ROLE_ASSISTANT, tool_calls=[call])
        else:
            yield pb.ChatMessage(
                role=pb.ROLE_TOOL,
                content=_needed(item.output, f"{where}.output"),
                tool_call_id=_needed(item.call_id, f"{where}.call_id"),
            )


def _needed(value: Any, field: str) -> Any:
    if value is None:
        raise InvalidRequest(field, "needed")
    return value
