"""Renders a conversation by a model's chat template, so that no message can forge a control token.

What a template cannot do is done for it: see `default_tools`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from protos.errors import InvalidRequest
from tokenizer_svc.chat.call_formats import HERMES
from tokenizer_svc.chat.chat_format import chat_format
from tokenizer_svc.tokenizers.conversation import (
    Conversation,
    guarded_turns,
    messages,
    num_characters,
    tool_values,
)
from tokenizer_svc.tokenizers.default_tools import instructions, spelled_out, with_instructions
from tokenizer_svc.tokenizers.spelling_guard import SpellingGuard, fresh_mark
from tokenizer_svc.tokenizers.template_abilities import abilities
from tokenizer_svc.tokenizers.template_sandbox import CompiledTemplate, TemplateFailure
from tokenizer_svc.tokenizers.tokenizer import ChatTurn

_OWN_VARIABLES = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message"})
_FREE_CHARACTERS = 4 << 20
_MOST_GROWTH = 4
"""What a template may make of n characters: _FREE_CHARACTERS + _MOST_GROWTH * n."""


class ChatTemplate:
    """A template with the spellings of the model's named tokens (bos_token, ...)."""

    def __init__(self, source: str, named_tokens: Mapping[str, str]) -> None:
        """Compiles it and finds out what it can do.

        Raises:
            ValueError: the source is not a template; says where.
        """
        self._template = CompiledTemplate(source)
        self._named_tokens = dict(named_tokens)
        self._abilities = abilities(self._template, self._named_tokens)
        self.format = chat_format(source, shows_tools=self._abilities.shows_tools)
        self.free_variables = self._template.variables - _OWN_VARIABLES - set(named_tokens)
        """What callers may set besides."""

    def render(self, conversation: Conversation, guard: SpellingGuard) -> str:
        """The conversation as text, with the guard's marks in it.

        Raises:
            InvalidRequest: the template refuses it or has no use for a part of it; names that.
        """
        self._check_arguments(conversation.template_arguments)
        turns = guarded_turns(conversation.turns, guard)
        mark = ""
        if conversation.continue_final_message:
            mark = fresh_mark()
            # The space tells whether the template trims the message.
            turns[-1] = replace(turns[-1], content=turns[-1].content + mark + " ")
        tools = tool_values(conversation.tools, guard)
        turns = self._made_fit(conversation, turns, tools, guard)
        variables = {
            **self._named_tokens,
            "documents": None,
            **guard.protect_all(conversation.template_arguments),
            "messages": messages(turns, self._abilities.form, guard),
            "tools": tools if tools and self._abilities.shows_tools else None,
            "add_generation_prompt": (
                conversation.add_generation_prompt and not conversation.continue_final_message
            ),
        }
        size = num_characters(conversation.turns, conversation.tools)
        rendered = self._rendered(variables, max_characters=_FREE_CHARACTERS + _MOST_GROWTH * size)
        return _cut(rendered, mark, guard, conversation.turns[-1]) if mark else rendered

    def _made_fit(
        self,
        conversation: Conversation,
        turns: list[ChatTurn],
        tools: Sequence[dict[str, Any]],
        guard: SpellingGuard,
    ) -> list[ChatTurn]:
        """The turns without what this template cannot show."""
        can = self._abilities
        is_told = bool(tools) and not can.shows_tools
        if conversation.has_calls and (is_told or not can.shows_calls):
            turns = spelled_out(turns, self.format.calls or HERMES, guard)
        if is_told:
            turns = with_instructions(turns, instructions(tools), has_system=can.shows_system)
        return turns

    def _rendered(self, variables: Mapping[str, Any], *, max_characters: int) -> str:
        try:
            return self._template.render(variables, max_characters=max_characters)
        except TemplateFailure as failure:
            raise InvalidRequest("chat.messages", f"the model's chat template, {failure}") from None

    def _check_arguments(self, arguments: Mapping[str, Any]) -> None:
        field = "chat.template_arguments"
        for name in arguments:
            if name in _OWN_VARIABLES or name in self._named_tokens:
                raise InvalidRequest(field, f"{name!r} is not for callers to set")
            if name not in self._template.variables:
                known = ", ".join(sorted(self.free_variables)) or "none"
                raise InvalidRequest(
                    field, f"the model's chat template has no variable {name!r}; it has: {known}"
                )


def _cut(rendered: str, mark: str, guard: SpellingGuard, final: ChatTurn) -> str:
    """The rendering up to the end of the final message, which the mark shows."""
    before, found, after = rendered.rpartition(mark)
    is_whole = guard.restore(before).rstrip().endswith(final.content.strip())
    if not found or not is_whole:
        raise InvalidRequest(
            "chat.continue_final_message",
            "the model's chat template does not show the last message as it stands",
        )
    return before if after.startswith(" ") else before.rstrip()
