"""What a chat template can do, found by letting it render small conversations."""

import json
from dataclasses import dataclass
from typing import Any

from tokenizer_svc.tokenizers.conversation import MessageForm
from tokenizer_svc.tokenizers.template_sandbox import CompiledTemplate, TemplateFailure

_NEEDLE = "needle-7531"
_FUNCTION = "needle_function"
_RESULT = "needle-result"
_ARGUMENTS = '{"needle_key": "needle value"}'
_CALL_ID = "needle123"
"""Of nine letters and digits, as some templates insist."""
_MAX_CHARACTERS = 1 << 20

Message = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What one template can do."""

    shows_system: bool
    """False: system messages are refused or left out."""
    shows_tools: bool
    """False: it never looks at the tools."""
    shows_calls: bool
    """False: it has no way to write calls, or what came of them."""
    form: MessageForm


def abilities(template: CompiledTemplate, named_tokens: dict[str, str]) -> Abilities:
    """The abilities of a template whose model has these named tokens."""
    probe = _Probe(template, named_tokens)
    parts = probe.wants_parts()
    form = probe.form_of_calls(content_is_parts=parts)
    return Abilities(
        shows_system=probe.shows_system(content_is_parts=parts),
        shows_tools=probe.reads_tools,
        shows_calls=form is not None,
        form=form or MessageForm(content_is_parts=parts),
    )


class _Probe:
    def __init__(self, template: CompiledTemplate, named_tokens: dict[str, str]) -> None:
        self._template = template
        self._named_tokens = named_tokens
        self.reads_tools = "tools" in template.variables

    def wants_parts(self) -> bool:
        """True for a template that shows a message only where its content is a list of parts."""
        text, parts = (
            self._rendered([{"role": "user", "content": _content(_NEEDLE, is_parts=is_parts)}])
            for is_parts in (False, True)
        )
        return _NEEDLE not in text and _NEEDLE in parts

    def shows_system(self, *, content_is_parts: bool) -> bool:
        """True also where nothing can be told."""
        user = {"role": "user", "content": _content("hi", is_parts=content_is_parts)}
        system = {"role": "system", "content": _content(_NEEDLE, is_parts=content_is_parts)}
        return _NEEDLE in self._rendered([system, user]) or not self._rendered([user])

    def form_of_calls(self, *, content_is_parts: bool) -> MessageForm | None:
        """The form in which calls and results are shown; arguments as they were written if so."""
        for arguments_are_text in (True, False):
            for no_content_is_none in (False, True):
                form = MessageForm(
                    content_is_parts=content_is_parts,
                    arguments_are_text=arguments_are_text,
                    no_content_is_none=no_content_is_none,
                )
                if self._shows_calls(form):
                    return form
        return None

    def _shows_calls(self, form: MessageForm) -> bool:
        arguments = _ARGUMENTS if form.arguments_are_text else json.loads(_ARGUMENTS)
        function = {"name": _FUNCTION, "arguments": arguments}
        calls = [{"id": _CALL_ID, "type": "function", "function": function}]
        parts = form.content_is_parts
        nothing = None if form.no_content_is_none else _content("", is_parts=parts)
        rendered = self._rendered(
            [
                {"role": "user", "content": _content("hi", is_parts=parts)},
                {"role": "assistant", "content": nothing, "tool_calls": calls},
                {
                    "role": "tool",
                    "content": _content(_RESULT, is_parts=parts),
                    "tool_call_id": _CALL_ID,
                    "name": _FUNCTION,
                },
            ],
            tools=[{"type": "function", "function": {"name": "f", "description": "d"}}],
        )
        # A text that was put into quotes has its own escaped.
        shown = _ARGUMENTS if form.arguments_are_text else "needle value"
        return all(each in rendered for each in (_FUNCTION, shown, _RESULT))

    def _rendered(self, messages: list[Message], tools: list[Any] | None = None) -> str:
        """Empty where the template refuses them."""
        try:
            return self._template.render(
                {
                    **self._named_tokens,
                    "messages": messages,
                    "tools": tools if self.reads_tools else None,
                    "documents": None,
                    "add_generation_prompt": True,
                },
                max_characters=_MAX_CHARACTERS,
            )
        except TemplateFailure:
            return ""


def _content(text: str, *, is_parts: bool) -> Any:
    return [{"type": "text", "text": text}] if is_parts else text
