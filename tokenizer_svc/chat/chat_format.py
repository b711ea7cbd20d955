"""What can be told from a chat template of the way its model answers."""

from dataclasses import dataclass

from tokenizer_svc.chat.call_formats import HERMES, CallFormat, call_format


@dataclass(frozen=True, slots=True, kw_only=True)
class Thoughts:
    """How a model marks what it thinks before its answer."""

    opening: str
    closing: str


THOUGHTS = (
    Thoughts(opening="<think>", closing="</think>"),
    Thoughts(opening="[THINK]", closing="[/THINK]"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """How the answers of one model are to be read."""

    calls: CallFormat | None
    """None: in a form that is not known here."""
    thoughts: Thoughts | None
    """None: it marks none."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that may be control tokens and have to be seen all the same."""
        thoughts = self.thoughts
        marks = () if thoughts is None else (thoughts.opening, thoughts.closing)
        return marks if self.calls is None else (*marks, *self.calls.markers)


NO_FORMAT = ChatFormat(calls=None, thoughts=None)
"""Of a model that takes no conversations."""


def chat_format(template: str, *, shows_tools: bool) -> ChatFormat:
    """The format of a model with this template.

    Where the template does not show tools to the model, we do, and ask for the form of Hermes.
    """
    return ChatFormat(
        calls=call_format(template) if shows_tools else HERMES,
        thoughts=next((marks for marks in THOUGHTS if marks.closing in template), None),
    )
