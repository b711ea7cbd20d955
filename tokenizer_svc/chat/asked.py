"""What a request asks of the parser, of the grammar and of the sampler, as its calls go."""

import asyncio
from array import array
from dataclasses import replace

from protos.errors import InvalidRequest
from tokenizer_svc.chat.call_formats import CallFormat
from tokenizer_svc.chat.call_grammar import call_grammar
from tokenizer_svc.chat.chat_format import Thoughts
from tokenizer_svc.chat.output_parser import OutputParser, ParserRules
from tokenizer_svc.constraints.form_error import FormError
from tokenizer_svc.constraints.forms import FormRules, rules_of
from tokenizer_svc.generation_request import ChatPrompt, Constraint, GenerationRequest
from tokenizer_svc.tokenizers.tokenizer import Tokenizer, decode

_NUM_LAST_IDS = 32
"""Enough of a prompt to see an opening of thoughts at its end, spelled in bytes at worst."""
_BAN = -100.0


def parser_rules(
    request: GenerationRequest, tokenizer: Tokenizer, prompt_ids: "array[int]"
) -> ParserRules | None:
    """How the outputs of this request are to be parsed; None: all of them is text.

    Raises:
        InvalidRequest: it has tools, and the model calls them in a form that is not known.
    """
    chat = request.prompt
    if not isinstance(chat, ChatPrompt):
        return None
    if not chat.may_call and not chat.separate_reasoning:
        return None
    calls, thoughts = tokenizer.chat_format.calls, tokenizer.chat_format.thoughts
    if chat.may_call and calls is None:
        raise InvalidRequest(
            f"{chat.field}.tools", "this model writes calls in a form that is not known here"
        )
    # A demanded call leaves a form no say.
    has_form = request.constraint is not None and chat.tool_choice.mode != "required"
    if has_form and not (chat.may_call and chat.separate_reasoning):
        # The form holds from the first token; only our own grammar makes room before it, for
        # thoughts that are taken out of the text again.
        thoughts = None
    return ParserRules(
        calls=calls if chat.may_call else None,
        names=frozenset(tool.name for tool in chat.tools),
        begins_with_calls=has_form,
        thoughts=thoughts,
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


async def call_constraint(
    request: GenerationRequest,
    rules: ParserRules | None,
    tokenizer: Tokenizer,
    form_grammar: str | None,
) -> Constraint | None:
    """The constraint that makes its outputs calls, or one that makes them calls or of its form.

    None: it demands no call, or has no form (`form_grammar`, as it was compiled) beside tools.

    Raises:
        InvalidRequest: a tool's parameters can be met by nothing.
    """
    chat = request.prompt
    if not isinstance(chat, ChatPrompt) or not chat.may_call:
        return None
    is_demanded = chat.tool_choice.mode == "required"
    if not is_demanded and form_grammar is None:
        return None
    assert rules is not None
    assert rules.calls is not None, "such a prompt was refused"
    form = None if is_demanded else form_grammar
    try:
        # Elsewhere: schemas may be long.
        grammar = await asyncio.to_thread(_grammar, chat, rules, rules.calls, tokenizer, form)
    except FormError as error:
        raise InvalidRequest(f"{chat.field}.tools", str(error)) from None
    return Constraint(kind="lark", text=grammar)


def without_calls(
    request: GenerationRequest, tokenizer: Tokenizer, *, vocab_size: int
) -> GenerationRequest:
    """The request with what opens a call banned, where it has tools and may call none.

    As far as that is a token: of texts like `{` an answer may have need.  A form is left alone, as
    it may have need of the token, too.
    """
    chat = request.prompt
    if not isinstance(chat, ChatPrompt) or not chat.tools or chat.may_call or request.constraint:
        return request
    calls = tokenizer.chat_format.calls
    openings = () if calls is None else map(tokenizer.added_id, calls.starts)
    bans = {i: _BAN for i in openings if i is not None and i < vocab_size}
    biases = tuple(sorted((dict(request.sampling.logit_bias) | bans).items()))
    return replace(request, sampling=replace(request.sampling, logit_bias=biases))


def _grammar(
    chat: ChatPrompt,
    rules: ParserRules,
    calls: CallFormat,
    tokenizer: Tokenizer,
    form_grammar: str | None,
) -> str:
    named, special_ids = chat.tool_choice.name, tokenizer.special_ids
    markers = tokenizer.chat_format.markers
    form: FormRules | None = None if form_grammar is None else rules_of(form_grammar)
    return call_grammar(
        calls,
        [tool for tool in chat.tools if named in ("", tool.name)],
        {marker: special_ids[marker] for marker in markers if marker in special_ids},
        thoughts=rules.thoughts,
        begins_in_thoughts=rules.begins_in_thoughts,
        is_single=bool(named),
        form=form,
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
