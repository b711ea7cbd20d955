"""What a request asks of the parser, and of the grammar where it demands a call."""

import asyncio
from array import array
from dataclasses import replace

from protos.errors import InvalidRequest
from tokenizer_svc.chat.call_formats import CallFormat
from tokenizer_svc.chat.call_grammar import call_grammar
from tokenizer_svc.chat.chat_format import Thoughts
from tokenizer_svc.chat.output_parser import OutputParser, ParserRules
from tokenizer_svc.constraints.form_error import FormError
from tokenizer_svc.generation_request import ChatPrompt, Constraint, GenerationRequest
from tokenizer_svc.tokenizers.tokenizer import Tokenizer, decode

_NUM_LAST_IDS = 32
"""Enough of a prompt to see an opening of thoughts at its end, spelled in bytes at worst."""


def parser_rules(
    request: GenerationRequest, tokenizer: Tokenizer, prompt_ids: "array[int]"
) -> ParserRules | None:
    """How the outputs of this request are to be parsed; None: all of them is text."""
    chat = request.prompt
    if not isinstance(chat, ChatPrompt):
        return None
    tools = chat.shown_tools
    if not tools and not chat.separate_reasoning:
        return None
    thoughts = tokenizer.chat_format.thoughts
    # With a form of its own an output has no room for thoughts.
    has_form = request.constraint is not None
    return ParserRules(
        calls=tokenizer.chat_format.calls if tools and not has_form else None,
        names=frozenset(tool.name for tool in tools),
        thoughts=None if has_form else thoughts,
        separates_thoughts=chat.separate_reasoning,
        begins_in_thoughts=(
            thoughts is not None and _begins_in_thoughts(chat, tokenizer, prompt_ids, thoughts)
        ),
    )


def parser_for(rules: ParserRules | None, request_id: str, seed: int) -> OutputParser | None:
    """The parser of one output, which its seed tells from the others of the request."""
    if rules is None:
        return None
    return OutputParser(replace(rules, id_seed=f"{request_id}:{seed}"))


async def with_demanded_call(
    request: GenerationRequest, rules: ParserRules | None, tokenizer: Tokenizer
) -> GenerationRequest:
    """The request with a constraint that makes its outputs calls, where it demands one.

    Raises:
        InvalidRequest: it has a constraint already, so that no call could be made, or a tool's
            parameters can be met by nothing.
    """
    chat = request.prompt
    if not isinstance(chat, ChatPrompt) or not chat.shown_tools:
        return request
    if request.constraint is not None:
        raise InvalidRequest(
            "constraint",
            f"with tools only where {chat.field}.tool_choice is none: it would forbid their calls",
        )
    if chat.tool_choice.mode != "required":
        return request
    assert rules is not None
    assert rules.calls is not None, "such a prompt was refused"
    try:
        # Elsewhere: schemas may be long.
        grammar = await asyncio.to_thread(_grammar, chat, rules, rules.calls, tokenizer)
    except FormError as error:
        raise InvalidRequest(f"{chat.field}.tools", str(error)) from None
    return replace(request, constraint=Constraint(kind="lark", text=grammar))


def _grammar(chat: ChatPrompt, rules: ParserRules, calls: CallFormat, tokenizer: Tokenizer) -> str:
    named, special_ids = chat.tool_choice.name, tokenizer.special_ids
    markers = tokenizer.chat_format.markers
    return call_grammar(
        calls,
        [tool for tool in chat.shown_tools if named in ("", tool.name)],
        {marker: special_ids[marker] for marker in markers if marker in special_ids},
        thoughts=rules.thoughts,
        begins_in_thoughts=rules.begins_in_thoughts,
        is_single=bool(named),
    )


def _begins_in_thoughts(
    chat: ChatPrompt, tokenizer: Tokenizer, prompt_ids: "array[int]", thoughts: Thoughts
) -> bool:
    if chat.continue_final_message:
        written = chat.turns[-1].content
        return written.rfind(thoughts.opening) > written.rfind(thoughts.closing)
    # A template may open them itself, with a line end behind.
    end = decode(tokenizer, prompt_ids[-_NUM_LAST_IDS:], skip_special_tokens=False)
    return end.rstrip().endswith(thoughts.opening)
