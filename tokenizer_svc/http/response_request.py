"""From a body of /v1/responses to the message of gRPC that asks for the same.

Items become turns as the chat template has them: what the model thought, said and called in one
go is one turn, so that a conversation which is sent back meets its own beginning in the cache.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from protos.errors import InvalidRequest
from protos.radixd.v1 import inference_pb2 as pb
from tokenizer_svc.http.bodies_responses import WITH_LOGPROBS, InputItem, InputText, ResponseBody
from tokenizer_svc.http.json_body import json_text
from tokenizer_svc.http.to_request import effort_arguments, plain_request, tool_choice

_ROLES = {
    "system": pb.ROLE_SYSTEM,
    "developer": pb.ROLE_SYSTEM,
    "user": pb.ROLE_USER,
    "assistant": pb.ROLE_ASSISTANT,
}


def response_request(body: ResponseBody) -> pb.GenerateRequest:
    """The request of a response.

    Raises:
        InvalidRequest: names the field of the body.
    """
    _refuse_memory(body)
    request = plain_request(body)
    request.chat.CopyFrom(pb.ChatPrompt(messages=_messages(body), separate_reasoning=True))
    for tool in body.tools or ():
        request.chat.tools.add(
            name=tool.name,
            description=tool.description or "",
            parameters="" if tool.parameters is None else json_text(tool.parameters),
        )
    if body.tool_choice is not None:
        request.chat.tool_choice.CopyFrom(tool_choice(body.tool_choice))
    if body.reasoning is not None and body.reasoning.effort is not None:
        request.chat.template_arguments = effort_arguments(body.reasoning.effort)
    if body.max_output_tokens is not None:
        request.sampling.max_tokens = body.max_output_tokens
    if WITH_LOGPROBS in (body.include or ()):
        request.sampling.logprobs = body.top_logprobs or 0
    elif body.top_logprobs:
        raise InvalidRequest("top_logprobs", f"include must have {WITH_LOGPROBS} for it")
    _set_form(request, body)
    return request


def _set_form(request: pb.GenerateRequest, body: ResponseBody) -> None:
    wanted = None if body.text is None else body.text.format
    if wanted is None:
        return
    if (wanted.schema_ is None) == (wanted.type == "json_schema"):
        problem = "needed" if wanted.schema_ is None else "only where type is json_schema"
        raise InvalidRequest("text.format.schema", problem)
    if wanted.schema_ is not None:
        request.constraint.json_schema = json_text(wanted.schema_)
    elif wanted.type == "json_object":
        request.constraint.json_object = True


def _refuse_memory(body: ResponseBody) -> None:
    if body.previous_response_id is not None:
        text = "responses are not stored here; send the whole conversation as input"
        raise InvalidRequest("previous_response_id", text)
    if body.store:
        raise InvalidRequest("store", "responses are not stored here; only false is taken")


def _messages(body: ResponseBody) -> list[pb.ChatMessage]:
    messages: list[pb.ChatMessage] = []
    if body.instructions is not None:
        messages.append(pb.ChatMessage(role=pb.ROLE_SYSTEM, content=body.instructions))
    is_open = False
    for i, item in enumerate(body.input):
        part = _message(item, f"input[{i}]")
        is_assistants = part.role == pb.ROLE_ASSISTANT
        if is_open and is_assistants and _goes_on(messages[-1], part):
            messages[-1].MergeFrom(part)
        else:
            messages.append(part)
        is_open = is_assistants
    return messages


def _goes_on(turn: pb.ChatMessage, part: pb.ChatMessage) -> bool:
    """Whether this part of the assistant's is of the same turn: thoughts, then text, then calls."""
    if part.tool_calls:
        return True
    return not turn.tool_calls and not turn.content and not part.reasoning


def _message(item: InputItem, where: str) -> pb.ChatMessage:
    if item.type == "message":
        role = _ROLES[_needed(item.role, f"{where}.role")]
        return pb.ChatMessage(role=role, content=_text(item.content, f"{where}.content"))
    if item.type == "reasoning":
        return pb.ChatMessage(role=pb.ROLE_ASSISTANT, reasoning="".join(_texts(item.content or ())))
    call_id = _needed(item.call_id, f"{where}.call_id")
    if item.type == "function_call_output":
        output = _text(item.output, f"{where}.output")
        return pb.ChatMessage(role=pb.ROLE_TOOL, content=output, tool_call_id=call_id)
    call = pb.ToolCall(
        id=call_id,
        name=_needed(item.name, f"{where}.name"),
        arguments=_needed(item.arguments, f"{where}.arguments"),
    )
    return pb.ChatMessage(role=pb.ROLE_ASSISTANT, tool_calls=[call])


def _text(parts: Sequence[InputText] | None, field: str) -> str:
    return "".join(_texts(_needed(parts, field)))


def _texts(parts: Sequence[InputText]) -> Iterator[str]:
    return (part.text for part in parts)


def _needed(value: Any, field: str) -> Any:
    if value is None:
        raise InvalidRequest(field, "needed")
    return value
