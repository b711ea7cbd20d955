"""What the front asks of a tokenizer.

One rule for all of them: control tokens spelled in a caller's text are ordinary text.  Only the
chat template, the model's BOS rule and token ids given as ids make control tokens.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from tokenizer_svc.chat.chat_format import ChatFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a function, made by the assistant."""

    id: str
    name: str
    arguments: str
    """A JSON object, as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionTool:
    """A function that the model may call."""

    name: str
    description: str = ""
    parameters: str = ""
    """A JSON Schema of an object, as JSON text; empty: no parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """Whether and which function must be called."""

    mode: Literal["auto", "none", "required"] = "auto"
    name: str = ""
    """Of mode required: the function to call; empty: any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """One message of a conversation."""

    role: str
    """system, user, assistant or tool."""
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    """Of the assistant's: the calls it made."""
    tool_call_id: str = ""
    """Of a tool's: the call it answers."""
    reasoning: str = ""
    """Of the assistant's: what it thought before this message."""


class Decoder(Protocol):
    """Turns the token ids of one output into text, piece by piece.

    The pieces of `feed` and `finish`, joined, do not depend on how the ids were cut into calls,
    and no piece ends in the middle of a character.
    """

    def feed(self, token_ids: Iterable[int]) -> str:
        """The text that these ids complete; bytes of an unfinished character wait."""
        ...

    def finish(self) -> str:
        """What is left: U+FFFD for an unfinished character."""
        ...


class Tokenizer(Protocol):
    """Text to ids and back; safe to use from several threads at once."""

    @property
    def num_ids(self) -> int:
        """Ids are below this."""
        ...

    @property
    def special_ids(self) -> Mapping[str, int]:
        """Control tokens by their spelling."""
        ...

    def added_id(self, spelling: str) -> int | None:
        """The token of its own that this is, control token or not; None: it is made of others."""
        ...

    def encode_text(self, text: str) -> list[int]:
        """The ids of plain text, after the BOS token where the model wants one."""
        ...

    @property
    def chat_format(self) -> ChatFormat:
        """How the model marks its thoughts and its calls of tools."""
        ...

    def encode_chat(
        self,
        turns: Sequence[ChatTurn],
        *,
        add_generation_prompt: bool,
        tools: Sequence[FunctionTool] = (),
        continue_final_message: bool = False,
        template_arguments: str = "",
    ) -> list[int]:
        """The ids of a conversation, rendered by the model's chat template.

        With `continue_final_message` the last turn stays open.  `template_arguments` is the text of
        a JSON object, or empty.

        Raises:
            InvalidRequest: there is no template, or it refuses these messages; names `chat`.
        """
        ...

    def decoder(
        self,
        *,
        skip_special_tokens: bool,
        context_ids: Sequence[int] = (),
        shown_tokens: Iterable[str] = (),
    ) -> Decoder:
        """A fresh decoder for text that continues `context_ids`.

        `shown_tokens` are spellings of control tokens that are in the text although others are
        skipped; those that the vocabulary does not have are no error.
        """
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to a text that has begun; perhaps a part of a character."""
        ...


def decode(tokenizer: Tokenizer, token_ids: Iterable[int], *, skip_special_tokens: bool) -> str:
    """The text of all ids at once, with nothing before them."""
    decoder = tokenizer.decoder(skip_special_tokens=skip_special_tokens)
    return decoder.feed(token_ids) + decoder.finish()
