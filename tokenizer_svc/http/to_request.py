"""From a body of HTTP to the message of gRPC that asks for the same.

Checks only what the message cannot say; everything else is checked on the message, as for gRPC.
"""

from collections.abc import Iterator, Sequence

from protos.errors import InvalidRequest
from protos.radixd.v1 import inference_pb2 as pb
from tokenizer_svc.http import field_names
from tokenizer_svc.http.bodies import (
    DEFAULT_TEMPERATURE,
    ChoicesBody,
    Effort,
    GenerationBody,
    given,
)
from tokenizer_svc.http.bodies_chat import ChatBody, ChatMessageBody, TemplateFields, ToolChoiceBody
from tokenizer_svc.http.bodies_completions import CompletionBody, OnePrompt
from tokenizer_svc.http.field_names import Names
from tokenizer_svc.http.json_body import json_text

_SAMPLING = (
    *("temperature", "top_k", "top_p", "min_p", "seed", "ignore_eos", "min_tokens"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "stop", "stop_token_ids"),
)
_REQUEST = (
    *("request_id", "timeout_ms", "cache_domain", "no_store", "skip_special_tokens"),
    *("priority", "workload", "session", "stream_interval"),
)
_CHOICES = ("n", "best_of", "echo", "prompt_logprobs")
_ROLES = {
    "system": pb.ROLE_SYSTEM,
    "developer": pb.ROLE_SYSTEM,
    "user": pb.ROLE_USER,
    "assistant": pb.ROLE_ASSISTANT,
    "tool": pb.ROLE_TOOL,
}
_MODES = {
    "auto": pb.ToolChoice.MODE_AUTO,
    "none": pb.ToolChoice.MODE_NONE,
    "required": pb.ToolChoice.MODE_REQUIRED,
}
_MAX_DIGITS = 18
_OTHER_NAMES = (
    ("guided_json", field_names.names((r"constraint\.json_schema", "guided_json"))),
    ("guided_regex", field_names.names((r"constraint\.regex", "guided_regex"))),
    ("guided_grammar", field_names.names((r"constraint\.ebnf", "guided_grammar"))),
    ("guided_choice", field_names.names((r"constraint\.choice(\.texts)?", "guided_choice"))),
    ("reasoning_effort", field_names.names((r"chat\.template_arguments", "reasoning_effort"))),
)


def chat_request(body: ChatBody) -> pb.GenerateRequest:
    """The request of a chat completion.

    Raises:
        InvalidRequest: names the field of the body.
    """
    request = _with_choices(body)
    request.chat.CopyFrom(chat_prompt(body.messages, body))
    if body.add_generation_prompt is not None:
        _check_opening(body)
    if body.tool_choice is not None:
        request.chat.tool_choice.CopyFrom(tool_choice(body.tool_choice))
    if body.reasoning_effort is not None:
        if body.chat_template_kwargs is not None:
            raise InvalidRequest(
                "reasoning_effort", "excludes chat_template_kwargs; give the variable there"
            )
        request.chat.template_arguments = effort_arguments(body.reasoning_effort)
    request.chat.separate_reasoning = body.separate_reasoning is not False
    if body.logprobs:
        request.sampling.logprobs = body.top_logprobs or 0
    elif body.top_logprobs is not None:
        raise InvalidRequest("top_logprobs", "logprobs must be true for it")
    limits = (body.max_completion_tokens, body.max_tokens)
    if None not in limits and limits[0] != limits[1]:
        raise InvalidRequest("max_tokens", f"{limits[1]} is not max_completion_tokens, {limits[0]}")
    limit = limits[1] if limits[0] is None else limits[0]
    if limit is not None:
        request.sampling.max_tokens = limit
    return request


def completion_request(body: CompletionBody, prompt: OnePrompt) -> pb.GenerateRequest:
    """The request of one prompt of a completion.

    Raises:
        InvalidRequest: names the field of the body.
    """
    request = _with_choices(body)
    if prompt.text is None:
        request.tokens.ids.extend(prompt.ids)
    else:
        request.text = prompt.text
    if body.max_tokens is not None:
        request.sampling.max_tokens = body.max_tokens
    if body.logprobs is not None:
        request.sampling.logprobs = body.logprobs
        if body.echo:
            # The prompt is part of the output, and so are its log probabilities.
            request.prompt_logprobs = body.logprobs
    return request


def names_of(body: ChoicesBody, names: Names) -> Names:
    """The names of a kind of body, for the fields that this body chose among several."""
    chosen = [new for old, new in _OTHER_NAMES if getattr(body, old, None) is not None]
    return (*(pair for pairs in chosen for pair in pairs), *names)


def plain_request(body: GenerationBody) -> pb.GenerateRequest:
    """What every body says in the same words; without a prompt.

    Raises:
        InvalidRequest: names the field of the body.
    """
    sampling = pb.SamplingParams(**given(body, {name: name for name in _SAMPLING}))
    if body.temperature is None:
        sampling.temperature = DEFAULT_TEMPERATURE
    for token, bias in (body.logit_bias or {}).items():
        digits = token.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS):
            raise InvalidRequest(f"logit_bias.{token[:40]}", "is no token id")
        sampling.logit_bias[int(token)] = bias
    return pb.GenerateRequest(sampling=sampling, **given(body, {name: name for name in _REQUEST}))


def chat_prompt(messages: Sequence[ChatMessageBody], fields: TemplateFields) -> pb.ChatPrompt:
    """Messages and tools of a chat."""
    prompt = pb.ChatPrompt(messages=list(_messages(messages)))
    for tool in fields.tools or ():
        function = tool.function
        prompt.tools.add(
            name=function.name,
            description=function.description or "",
            parameters="" if function.parameters is None else json_text(function.parameters),
        )
    if fields.continue_final_message is not None:
        prompt.continue_final_message = fields.continue_final_message
    if fields.chat_template_kwargs is not None:
        prompt.template_arguments = json_text(fields.chat_template_kwargs)
    return prompt


def tool_choice(choice: ToolChoiceBody) -> pb.ToolChoice:
    """Whether and what must be called."""
    if choice.mode is not None:
        return pb.ToolChoice(mode=_MODES[choice.mode])
    return pb.ToolChoice(mode=pb.ToolChoice.MODE_REQUIRED, name=choice.function.name)


def effort_arguments(effort: Effort) -> str:
    """The variable of a chat template that says how much to think, by the names in common use."""
    return json_text(
        {"enable_thinking": False} if effort == "none" else {"reasoning_effort": effort}
    )


def text_of(message: ChatMessageBody) -> str:
    """The texts of a message's parts, joined."""
    return "".join([part.text for part in message.content or ()])


def _messages(messages: Sequence[ChatMessageBody]) -> Iterator[pb.ChatMessage]:
    for i, message in enumerate(messages):
        if message.content is None and not message.tool_calls:
            raise InvalidRequest(f"messages[{i}].content", "needed")
        calls = [
            pb.ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
            for call in message.tool_calls or ()
        ]
        yield pb.ChatMessage(
            role=_ROLES[message.role],
            content=text_of(message),
            tool_calls=calls,
            tool_call_id=message.tool_call_id or "",
            reasoning=message.reasoning_content or message.reasoning or "",
        )


def _check_opening(body: ChatBody) -> None:
    """The two fields of other servers say one thing between them."""
    if body.add_generation_prompt == bool(body.continue_final_message):
        wanted = "false" if body.continue_final_message else "true"
        raise InvalidRequest(
            "add_generation_prompt", f"must be {wanted}, as continue_final_message decides it"
        )


def _with_choices(body: ChoicesBody) -> pb.GenerateRequest:
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options", "only for streams; set stream to true")
    if body.prewarm and body.stream:
        raise InvalidRequest("prewarm", "excludes stream; there is nothing to stream")
    request = plain_request(body)
    for name, value in given(body, {name: name for name in _CHOICES}).items():
        setattr(request, name, value)
    forms = list(_forms(body))
    if len(forms) > 1:
        first, second = forms[0][0], forms[1][0]
        raise InvalidRequest(second, f"excludes {first}; an output has one form")
    if forms:
        request.constraint.CopyFrom(forms[0][1])
    return request


def _forms(body: ChoicesBody) -> Iterator[tuple[str, pb.Constraint]]:
    """What the output is to look like, by the field that says so."""
    wanted = body.response_format
    if wanted is not None and wanted.type != "json_schema" and wanted.json_schema is not None:
        raise InvalidRequest("response_format.json_schema", "only where type is json_schema")
    if wanted is not None and wanted.type == "json_object":
        yield "response_format", pb.Constraint(json_object=True)
    if wanted is not None and wanted.type == "json_schema":
        if wanted.json_schema is None:
            raise InvalidRequest("response_format.json_schema", "needed")
        schema = json_text(wanted.json_schema.schema_)
        yield "response_format", pb.Constraint(json_schema=schema)
    if body.guided_json is not None:
        yield "guided_json", pb.Constraint(json_schema=json_text(body.guided_json))
    for name in ("regex", "guided_regex"):
        if (pattern := getattr(body, name)) is not None:
            yield name, pb.Constraint(regex=pattern)
    for name in ("ebnf", "guided_grammar"):
        if (grammar := getattr(body, name)) is not None:
            yield name, pb.Constraint(ebnf=grammar)
    for name in ("choice", "guided_choice"):
        if (texts := getattr(body, name)) is not None:
            yield name, pb.Constraint(choice=pb.Choices(texts=texts))
