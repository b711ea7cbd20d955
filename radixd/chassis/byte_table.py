"""What bytes each token id stands for, read from a tokenizer's decoder.

Knows the two families in use: byte-level BPE (each byte spelled as a printable character) and
sentencepiece (a mark for spaces, <0xNN> for single bytes).  For other decoders there is no table.

Bytes that are no UTF-8 are the one difference from the library's own decoding: of single bytes in
a row it spoils all when one is wrong, which nobody can know while the row goes on; here only
those that are wrong become U+FFFD, one for each maximal broken part, in both families.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteTable:
    """The bytes of every id, and whether a text's first space is only a word mark."""

    entries: tuple[bytes, ...]
    """[num_ids]"""
    drops_leading_space: bool


def byte_table(
    decoder: Mapping[str, Any] | None, tokens: Sequence[str | None], added: Collection[str]
) -> ByteTable | None:
    """The table for a decoder as tokenizer.json describes it; None where no table is exact.

    `tokens` holds the spelling of each id (None: unused), `added` those of added tokens.  Those
    stand for their own text in a byte-level vocabulary; in the other family the mark means a space
    in them, too (runs of spaces are often added tokens).
    """
    steps = list(_steps(decoder))
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        own = {token: token.encode() for token in added}
        entry, drops = _byte_level_entry(own), False
    elif kinds == ["Metaspace"]:
        mark = steps[0].get("replacement", "▁")
        entry, drops = _marked_entry(mark), steps[0].get("prepend_scheme", "always") != "never"
    elif kinds in (
        ["Replace", "ByteFallback", "Fuse"],
        ["Replace", "ByteFallback", "Fuse", "Strip"],
    ):
        if steps[0].get("content") != " " or not _strips_one_space(steps[3:]):
            return None
        entry, drops = _marked_entry(steps[0]["pattern"]["String"]), len(steps) > 3
    else:
        return None
    entries = tuple(b"" if token is None else entry(token) for token in tokens)
    return ByteTable(entries=entries, drops_leading_space=drops)


def _steps(decoder: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    if decoder is None:
        return
    if decoder.get("type") == "Sequence":
        for step in decoder["decoders"]:
            yield from _steps(step)
    else:
        yield decoder


def _strips_one_space(strip: Sequence[Mapping[str, Any]]) -> bool:
    return all((s["content"], s["start"], s["stop"]) == (" ", 1, 0) for s in strip)


def _marked_entry(mark: str) -> Callable[[str], bytes]:
    def entry(token: str) -> bytes:
        if match := _BYTE_TOKEN.match(token):
            return bytes([int(match.group(1), 16)])
        return token.replace(mark, " ").encode()

    return entry


def _byte_level_alphabet() -> dict[str, int]:
    # Bytes that print stand for themselves; the others, in order, for characters from U+0100 on.
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in printable]
    alphabet = {chr(value): value for value in printable}
    return alphabet | {chr(0x100 + n): value for n, value in enumerate(others)}


_NO_BYTE = "\uffff"
_BYTES_OF_ALPHABET = str.maketrans(
    {chr(value): _NO_BYTE for value in range(0x100)}
    | {character: chr(value) for character, value in _byte_level_alphabet().items()}
)
"""To the character with the number of the byte; latin-1 has exactly those."""


def _byte_level_entry(own: Mapping[str, bytes]) -> Callable[[str], bytes]:
    def entry(token: str) -> bytes:
        if token in own:
            return own[token]
        try:
            return token.translate(_BYTES_OF_ALPHABET).encode("latin-1")
        except UnicodeEncodeError:
            return token.encode()

    return entry
