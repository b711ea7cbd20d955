"""Token ids to text through a table of bytes per id: exact, and linear in the output.

Serves every tokenizer whose ids each stand for fixed bytes (byte-level BPE, sentencepiece with
byte fallback, plain bytes).  It knows nothing of stop strings.
"""

import codecs
from collections.abc import Iterable, Sequence, Set

_REPLACEMENT = "\ufffd"
_MAX_UNFINISHED_BYTES = 3


class TableDecoder:
    """A Decoder (see tokenizer.py) over `table[id]` bytes.

    Invalid UTF-8 becomes U+FFFD as Unicode recommends it (one for each maximal broken part), the
    same in one call as in many.
    """

    __slots__ = ("_drops_space", "_has_begun", "_skipped", "_table", "_utf8")

    def __init__(
        self,
        table: Sequence[bytes],
        *,
        skipped_ids: Set[int],
        drops_leading_space: bool = False,
        begun: bytes = b"",
    ) -> None:
        """`begun`: the bytes of a character that the context leaves unfinished."""
        self._table = table
        self._skipped = skipped_ids
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._drops_space = drops_leading_space
        self._utf8.decode(begun)
        self._has_begun = bool(begun)

    def feed(self, token_ids: Iterable[int]) -> str:
        """The text that these ids complete.  Ids outside the table stand for nothing."""
        table, skipped = self._table, self._skipped
        size = len(table)
        data = b"".join([table[i] for i in token_ids if i < size and i not in skipped])
        return self._opened(self._utf8.decode(data))

    def finish(self) -> str:
        """U+FFFD for the bytes of an unfinished character, if any."""
        return self._opened(self._utf8.decode(b"", final=True))

    def _opened(self, text: str) -> str:
        if text and self._drops_space:
            self._drops_space = False
            return text.removeprefix(" ")
        if text and self._has_begun:
            self._has_begun = False
            # Left unfinished for good, it is at the end of the context's own text already.
            return text.removeprefix(_REPLACEMENT)
        return text


def unfinished_end(
    table: Sequence[bytes], skipped_ids: Set[int], context_ids: Sequence[int]
) -> bytes:
    """The bytes of the character that the context's text leaves unfinished; mostly none."""
    size, end = len(table), b""
    for i in reversed(context_ids):
        if i < size and i not in skipped_ids:
            end = table[i] + end
            if len(end) >= _MAX_UNFINISHED_BYTES:
                break
    utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
    utf8.decode(end)
    return utf8.getstate()[0]


def starts_text(table: Sequence[bytes], skipped_ids: Set[int], context_ids: Iterable[int]) -> bool:
    """True when nothing visible comes before, so that a leading space is only a word mark."""
    size = len(table)
    return not any(i < size and i not in skipped_ids and table[i] for i in context_ids)
