"""Token ids to text for tokenizers whose decoding is not a table of bytes (WordPiece and others).

Decodes a short window twice, with and without the new tokens, and takes the difference, so that
spaces between words come out as in one decode.  TableDecoder is faster and exact: prefer it.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

_REPLACEMENT = "\ufffd"
_MAX_HELD_IDS = 8
"""No character takes this many tokens: what still looks unfinished then is broken for good."""
_MAX_CONTEXT_IDS = 8


class WindowDecoder:
    """A Decoder (see tokenizer.py) over any function from ids to text.

    `visible` tells which ids count: the others (skipped, unknown) must not fill the window, or a
    row of them would part two words from the space between them.
    """

    __slots__ = ("_context", "_decode", "_held", "_visible")

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        *,
        visible: Callable[[int], bool] = lambda _: True,
        context_ids: Sequence[int] = (),
    ) -> None:
        self._decode = decode
        self._visible = visible
        last = list(islice(filter(visible, reversed(context_ids)), _MAX_CONTEXT_IDS))
        self._context = last[::-1]
        """Ids whose text is out already; they decide how what follows is spaced."""
        self._held: list[int] = []
        """Ids of a character that is not finished."""

    def feed(self, token_ids: Iterable[int]) -> str:
        """The text that these ids complete."""
        return "".join([self._feed_one(i) for i in token_ids if self._visible(i)])

    def finish(self) -> str:
        """What is left, broken as it may be."""
        return self._take(self._decode(self._context + self._held))

    def _feed_one(self, token_id: int) -> str:
        self._held.append(token_id)
        text = self._decode(self._context + self._held)
        if text.endswith(_REPLACEMENT) and len(self._held) < _MAX_HELD_IDS:
            return ""
        return self._take(text)

    def _take(self, text: str) -> str:
        piece = text[len(self._decode(self._context)) :]
        if piece:
            self._context = self._held[-_MAX_CONTEXT_IDS:]
        elif len(self._context) + len(self._held) <= _MAX_CONTEXT_IDS:
            # Without a text of their own they may still tell how the next is spaced.
            self._context += self._held
        self._held = []
        return piece
