"""The shipped text as tokens of a model, near enough to its tokenizer to compare two arithmetics.

Both arithmetics see the same tokens, so that it matters little whether a word is cut as the
tokenizer would cut it.  Not here: the tokenizer that requests go through.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import structlog

from gpu_worker.accuracy_text import TEXT
from radixd.chassis.gguf_file import GgufFile

_TOKENS, _FAMILY = "tokenizer.ggml.tokens", "tokenizer.ggml.model"
_BOS, _ADDS_BOS = "tokenizer.ggml.bos_token_id", "tokenizer.ggml.add_bos_token"
_SPACE = "\u2581"
"""How sentencepiece writes a space."""
_LONGEST_PIECE = 32
"""In characters.  Longer pieces of a vocabulary are rare and not worth the look-ups."""

_log = structlog.get_logger(__name__)


def gguf_token_ids(file: GgufFile) -> list[int]:
    """The text, cut from the left into the longest pieces that the vocabulary has.

    Raises:
        ModelError: the file has no vocabulary.
    """
    ids = {piece: token_id for token_id, piece in enumerate(file.strings(_TOKENS))}
    spelled_in_bytes = file.text(_FAMILY, "gpt2") == "gpt2"
    if spelled_in_bytes:
        spelling = _byte_spelling()
        text = "".join(spelling[byte] for byte in TEXT.encode())
    else:
        text = _SPACE + TEXT.replace(" ", _SPACE)
    cut = list(_cut(text, ids))
    if file.metadata.get(_ADDS_BOS, not spelled_in_bytes) and _BOS in file.metadata:
        cut.insert(0, file.integer(_BOS))
    return cut


def folder_token_ids(folder: Path) -> list[int]:
    """The text, cut by the tokenizer of a Hugging Face folder; empty where it has none."""
    path = folder / "tokenizer.json"
    try:
        import tokenizers

        tokenizer = tokenizers.Tokenizer.from_file(str(path))
        return list(tokenizer.encode(TEXT).ids)
    except Exception as error:  # the library raises nothing more precise
        _log.warning("accuracy_text_not_cut", path=str(path), reason=str(error))
        return []


def _cut(text: str, ids: Mapping[str, int]) -> Iterator[int]:
    """The longest piece at each place; bytes where there is none, nothing where those lack too."""
    longest = min(max(map(len, ids), default=0), _LONGEST_PIECE)
    at = 0
    while at < len(text):
        for size in range(longest, 0, -1):
            piece = text[at : at + size]
            if piece in ids:
                yield ids[piece]
                at += len(piece)
                break
        else:
            names = [f"<0x{byte:02X}>" for byte in text[at].encode()]
            yield from (ids[name] for name in names if name in ids)
            at += 1


def _byte_spelling() -> list[str]:
    """[256] the character that byte-level vocabularies write for each byte, as GPT-2 does.

    Bytes that print as Latin-1 stand for themselves, the others follow from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(b) if b in printable else chr(0x100 + others.index(b)) for b in range(256)]
