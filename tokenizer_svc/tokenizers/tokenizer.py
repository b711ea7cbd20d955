"""What the front asks of a tokenizer.

One rule for all of them: control tokens spelled in a caller's text are ordinary text.  Only the
chat template, the model's BOS rule and token ids given as ids make control tokens.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """One message of a conversation."""

    role: str
    """system, user or assistant."""
    content: str


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

    def encode_text(self, text: str) -> list[int]:
        """The ids of plain text, after the BOS token where the model wants one."""
        ...

    def encode_chat(self, turns: Sequence[ChatTurn], *, add_generation_prompt: bool) -> list[int]:
        """The ids of a conversation, rendered by the model's chat template.

        Raises:
            InvalidRequest: there is no template, or it refuses these messages; names `chat`.
        """
        ...

    def decoder(self, *, skip_special_tokens: bool, context_ids: Sequence[int] = ()) -> Decoder:
        """A fresh decoder for text that continues `context_ids`."""
        ...


def decode(tokenizer: Tokenizer, token_ids: Iterable[int], *, skip_special_tokens: bool) -> str:
    """The text of all ids at once, with nothing before them."""
    decoder = tokenizer.decoder(skip_special_tokens=skip_special_tokens)
    return decoder.feed(token_ids) + decoder.finish()
