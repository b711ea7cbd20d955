"""Renders a model's chat template so that no message can forge a control token.

Templates are Jinja programs that come with the model: they run in Jinja's immutable sandbox,
with the names and filters that published templates use.  Jinja itself is used here, and not the
wrapper in transformers, because importing that one loads torch wherever torch is installed
(six seconds and 250 MB in a service that needs neither).
"""

import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from protos.errors import InvalidRequest
from tokenizer_svc.tokenizers.tokenizer import ChatTurn

_GUARD_EDGE = "\ufdd0"
"""A noncharacter: no text means it."""


class ChatTemplate:
    """A compiled template with the spellings of the model's named tokens (bos_token, ...)."""

    def __init__(self, source: str, named_tokens: Mapping[str, str]) -> None:
        """Compiles the template.

        Raises:
            ValueError: the source is not a template; says where.
        """
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _GenerationBlock],
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"line {error.lineno}: {error.message}") from None
        self._named_tokens = dict(named_tokens)

    def render(self, turns: Sequence[ChatTurn], *, add_generation_prompt: bool) -> str:
        """The conversation as text.

        Raises:
            InvalidRequest: the template refuses these messages; names `chat.messages`.
        """
        messages = [{"role": turn.role, "content": turn.content} for turn in turns]
        try:
            return self._template.render(
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self._named_tokens,
            )
        except jinja2.TemplateError as error:
            raise InvalidRequest(
                "chat.messages", f"the model's chat template refuses them: {error.message}"
            ) from None
        except (TypeError, ValueError, ArithmeticError, LookupError):
            raise InvalidRequest(
                "chat.messages", "the model's chat template cannot render them"
            ) from None


class SpellingGuard:
    """Breaks the spellings of control tokens in messages with a mark, and takes the mark out again.

    The mark survives trimming and changes of case, and it is drawn anew for every conversation,
    so that no message can contain it.
    """

    def __init__(self, spellings: Iterable[str]) -> None:
        breakable = [spelling for spelling in spellings if len(spelling) > 1]
        self._spelling = re.compile(any_of(breakable))
        # A message may end like the start of a control token that the template would complete.
        openings = {text[:length] for text in breakable for length in range(1, len(text))}
        self._open_end = re.compile(f"(?:{any_of(openings)})\\Z")
        self._max_open = max(map(len, openings), default=0)
        self.mark = f"{_GUARD_EDGE}{secrets.randbelow(10**16):016d}{_GUARD_EDGE}"

    def protect(self, text: str) -> str:
        """The text with a mark inside every spelling of a control token."""
        while self._spelling.search(text):  # again where one spelling lies inside another
            text = self._spelling.sub(self._broken, text)
        tail_from = max(0, len(text) - self._max_open)
        return text[:tail_from] + self._open_end.sub(self._closed, text[tail_from:])

    def restore(self, text: str) -> str:
        """The text without marks."""
        return text.replace(self.mark, "")

    def _broken(self, match: re.Match[str]) -> str:
        spelled = match.group()
        return spelled[0] + self.mark + spelled[1:]

    def _closed(self, match: re.Match[str]) -> str:
        return match.group() + self.mark


def any_of(texts: Iterable[str]) -> str:
    """A regular expression for any of these texts, the longest first; never matches for none."""
    longest_first = sorted(texts, key=len, reverse=True)
    return "|".join(map(re.escape, longest_first)) or "(?!)"


class _GenerationBlock(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %}, which training uses; here its body counts."""

    tags = {"generation"}  # noqa: RUF012 (the name and kind are Jinja's)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """The statements of the body, as if the tag were not there."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(value: Any, indent: int | None = None, **options: Any) -> str:
    # Jinja's own filter escapes for HTML, which prompts are not.
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)
