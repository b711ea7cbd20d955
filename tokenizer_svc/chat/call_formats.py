"""How families of models write their calls of tools: one class each, and the table of them.

Known are the forms of Hermes (Qwen 2.5 and 3 and many finetunes write it), Llama 3, Mistral and
DeepSeek V3.  A reader starts where something may open a call and steps over what belongs to it;
that it finds no call is no error: what it stepped over is then ordinary text.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from tokenizer_svc.chat.incoming_text import SPACE, IncomingText, Reader
from tokenizer_svc.chat.json_text import is_object, members

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""The names that functions may have."""
_MAX_NAME_LENGTH = 128
"""Room for a name that turns out to be none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCall:
    """A call as the model wrote it."""

    name: str
    arguments: str
    """The text of a JSON object."""


class CallFormat(Protocol):
    """How one family writes calls."""

    starts: tuple[str, ...]
    """Texts that open a call wherever they come."""
    markers: tuple[str, ...]
    """Every text besides JSON that may be a token of its own."""
    is_bare: bool
    """True: an object at the very beginning, or after a call, may be one without an opening."""
    short_ids: bool
    """True: ids of calls have nine characters, as the templates want; else the usual."""
    between: str | None
    """What separates two calls; None: one that is forced comes alone."""

    def read(self, text: IncomingText, names: Collection[str]) -> Reader[list[FoundCall]]:
        """The calls that begin here, of functions that may have these names."""
        ...

    def written(self, name: str) -> tuple[str, str]:
        """What a call of this function has before and after its arguments."""
        ...


class HermesCalls:
    """<tool_call>{"name": ..., "arguments": {...}}</tool_call>, one such block a call."""

    starts: tuple[str, ...] = ("<tool_call>",)
    markers: tuple[str, ...] = ("<tool_call>", "</tool_call>")
    is_bare = False
    short_ids = False
    between: str | None = "\n"

    def read(self, text: IncomingText, names: Collection[str]) -> Reader[list[FoundCall]]:
        """One call; the closing mark may be missing."""
        yield from text.skip("<tool_call>")
        yield from text.skip_any(SPACE)
        call = _call((yield from text.json_object()))
        if call is None:
            return []
        yield from text.skip_any(SPACE)
        yield from text.skip_closing("</tool_call>")
        return [call]

    def written(self, name: str) -> tuple[str, str]:
        """A block on lines of its own."""
        return f'<tool_call>\n{{"name": "{name}", "arguments": ', "}\n</tool_call>"


class LlamaCalls:
    """{"name": ..., "parameters": {...}}, after <|python_tag|> or bare; several with "; "."""

    starts: tuple[str, ...] = ("<|python_tag|>",)
    markers: tuple[str, ...] = ("<|python_tag|>",)
    is_bare = True
    short_ids = False
    between: str | None = "; "

    def read(self, text: IncomingText, names: Collection[str]) -> Reader[list[FoundCall]]:
        """One call; without an opening only of a known name, as an answer may be JSON, too."""
        yield from text.skip("<|python_tag|>")
        yield from text.skip_any(SPACE)
        start = text.at
        if not (yield from self._may_be_call(text)):
            return []  # known at once, so that an answer in JSON is not held back
        text.at = start
        call = _call((yield from text.json_object()))
        return [call] if call is not None and call.name in names else []

    def written(self, name: str) -> tuple[str, str]:
        """The bare object."""
        return f'{{"name": "{name}", "parameters": ', "}"

    def _may_be_call(self, text: IncomingText) -> Reader[bool]:
        if not (yield from text.skip("{")):
            return False
        yield from text.skip_any(SPACE)
        for key in ("name", "type", "parameters"):
            if (yield from text.skip(f'"{key}"')):
                return True
        return False


class MistralCalls:
    """[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...], or [TOOL_CALLS]name[ARGS]{...}."""

    starts: tuple[str, ...] = ("[TOOL_CALLS]",)
    markers: tuple[str, ...] = ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")
    is_bare = False
    short_ids = True
    between: str | None = None

    def read(self, text: IncomingText, names: Collection[str]) -> Reader[list[FoundCall]]:
        """All calls of a list, or one."""
        yield from text.skip("[TOOL_CALLS]")
        yield from text.skip_any(SPACE)
        if (yield from text.skip("[")):
            return (yield from self._list(text))
        name = yield from _until_any(text, "{[")
        if (yield from text.skip("[CALL_ID]")):
            yield from _until_any(text, "{[")
        yield from text.skip("[ARGS]")
        yield from text.skip_any(SPACE)
        return _row(_valid(name, (yield from text.json_object())))

    def written(self, name: str) -> tuple[str, str]:
        """A list of one."""
        return f'[TOOL_CALLS][{{"name": "{name}", "arguments": ', "}]"

    def _list(self, text: IncomingText) -> Reader[list[FoundCall]]:
        calls = []
        while True:
            yield from text.skip_any(SPACE)
            call = _call((yield from text.json_object()))
            if call is None:
                return []
            calls.append(call)
            yield from text.skip_any(SPACE)
            if not (yield from text.skip(",")):
                break
        if not (yield from text.skip("]")) and (yield from text.next()):
            return []
        return calls


class DeepSeekCalls:
    """Blocks between markers of their own, with the arguments fenced (V3) or bare (V3.1)."""

    starts: tuple[str, ...] = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>")
    markers: tuple[str, ...] = (
        *starts,
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    )
    is_bare = False
    short_ids = False
    between: str | None = None

    def read(self, text: IncomingText, names: Collection[str]) -> Reader[list[FoundCall]]:
        """One call, with what opens and closes the row of them."""
        yield from text.skip("<｜tool▁calls▁begin｜>")
        yield from text.skip_any(SPACE)
        if not (yield from text.skip("<｜tool▁call▁begin｜>")):
            return []
        name = yield from text.until("<｜tool▁sep｜>", within=_MAX_NAME_LENGTH)
        is_fenced = (yield from text.next()) != "{"
        if is_fenced:
            name = yield from text.until("\n", within=_MAX_NAME_LENGTH)
            yield from text.skip("```json")
            yield from text.skip_any(SPACE)
        call = _valid(name, (yield from text.json_object()))
        if call is not None:
            yield from text.skip_any(SPACE)
            yield from text.skip_closing("```")
            for end in ("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"):
                yield from text.skip_any(SPACE)
                yield from text.skip_closing(end)
        return _row(call)

    def written(self, name: str) -> tuple[str, str]:
        """The form of V3."""
        before = f"{''.join(self.starts)}function<｜tool▁sep｜>{name}\n```json\n"
        return before, "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"


HERMES: CallFormat = HermesCalls()
FAMILIES: tuple[tuple[str, CallFormat], ...] = (
    ("<｜tool▁call▁begin｜>", DeepSeekCalls()),
    ("[TOOL_CALLS]", MistralCalls()),
    ("<tool_call>", HERMES),
    ("<|python_tag|>", LlamaCalls()),
    ('"parameters": dictionary of argument name', LlamaCalls()),
)
"""(what a template has of which the model writes calls in this form, the form); the first holds."""
_OTHER_FAMILIES = ("<function=", "<arg_key>")
"""Within <tool_call>, but no JSON."""


def call_format(template: str) -> CallFormat | None:
    """How a model with this chat template writes calls; None: in no form that is known here."""
    if any(mark in template for mark in _OTHER_FAMILIES):
        return None
    return next((calls for mark, calls in FAMILIES if mark in template), None)


def _until_any(text: IncomingText, ends: str) -> Reader[str]:
    """Steps over a short text up to one of these characters."""
    start = text.at
    while (character := (yield from text.next())) and character not in ends:
        if text.at - start >= _MAX_NAME_LENGTH:
            break
        text.at += 1
    return text.since(start)


def _call(written: str | None) -> FoundCall | None:
    """The call that an object of name and arguments stands for."""
    found = None if written is None else members(written)
    if found is None or "name" not in found:
        return None
    arguments = next((found[key] for key in ("arguments", "parameters") if key in found), None)
    if arguments is None:
        return _valid(found["name"].value, "{}")
    # Some models put the object into a string once more.
    is_text = isinstance(arguments.value, str)
    return _valid(found["name"].value, arguments.value if is_text else arguments.text)


def _valid(name: str | None, arguments: str | None) -> FoundCall | None:
    if not isinstance(name, str) or arguments is None or not is_object(arguments):
        return None
    try:
        arguments.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, from a string within a string
        return None
    is_name = _NAME.fullmatch(name.strip())
    return FoundCall(name=name.strip(), arguments=arguments) if is_name else None


def _row(call: FoundCall | None) -> list[FoundCall]:
    return [] if call is None else [call]
