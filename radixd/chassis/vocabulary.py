"""The bytes that each token id of a model stands for, read from its files.

Front and worker must agree on them to the byte where an output is constrained, so both read them
here.  Needs no tokenizer library: how a text is cut into tokens plays no part.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protos.errors import ModelError
from radixd.chassis.byte_table import byte_table
from radixd.chassis.gguf_file import GgufFile
from radixd.chassis.model_source import ModelSource

_TOKENS, _KINDS = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
_FAMILY, _ADDS_SPACE = "tokenizer.ggml.model", "tokenizer.ggml.add_space_prefix"
_CONTROL, _USER_DEFINED = 3, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What a model can say, token by token."""

    entries: tuple[bytes, ...]
    """[num_ids]; empty where an id stands for nothing."""
    special_ids: frozenset[int]
    """Control tokens: they are no text, whatever their entry spells."""


def fake_vocabulary() -> Vocabulary:
    """That of the fake worker: 256 bytes, control tokens without a spelling, padding."""
    entries = (*(bytes([value]) for value in range(256)), *(b"" for _ in range(256, 264)))
    return Vocabulary(entries=entries, special_ids=frozenset(range(256, 262)))


def read_vocabulary(source: ModelSource) -> Vocabulary | None:
    """The vocabulary of a model; None where its files do not tell exactly.

    Raises:
        ModelError: a file is not what it should be.
    """
    if source.kind == "gguf":
        with GgufFile(source.path) as file:
            return _from_gguf(file)
    return _from_folder(source.path)


def _from_gguf(file: GgufFile) -> Vocabulary | None:
    tokens = file.strings(_TOKENS)
    kinds = file.numbers(_KINDS) if _KINDS in file.metadata else [1] * len(tokens)
    if len(kinds) != len(tokens):
        raise ModelError(file.path, f"{_KINDS}: {len(kinds)} entries for {len(tokens)} tokens")
    if file.text(_FAMILY, "") == "gpt2":
        decoder: Mapping[str, Any] = {"type": "ByteLevel"}
    else:
        strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]
        adds_space = bool(file.metadata.get(_ADDS_SPACE, True))
        decoder = {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                *(strip if adds_space else []),
            ],
        }
    by_kind = [
        (i, token, int(kind)) for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
    ]
    return _vocabulary(
        decoder,
        tokens,
        added=[token for _, token, kind in by_kind if kind in (_CONTROL, _USER_DEFINED) and token],
        special_ids=frozenset(i for i, token, kind in by_kind if kind == _CONTROL and token),
    )


def _from_folder(folder: Path) -> Vocabulary | None:
    path = folder / "tokenizer.json"
    if not path.exists():
        return None
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
        vocab, added = described["model"]["vocab"], described.get("added_tokens") or []
        # A dictionary by spelling, or in Unigram models a list of spellings with scores.
        ids = {piece: i for i, (piece, _) in enumerate(vocab)} if isinstance(vocab, list) else vocab
        ids = dict(ids) | {token["content"]: token["id"] for token in added}
        tokens: list[str | None] = [None] * (max(ids.values(), default=-1) + 1)
        for token, token_id in ids.items():
            tokens[token_id] = token
        return _vocabulary(
            described.get("decoder"),
            tokens,
            added=[token["content"] for token in added],
            special_ids=frozenset(token["id"] for token in added if token["special"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(path, f"not a tokenizer: {error}") from None


def _vocabulary(
    decoder: Mapping[str, Any] | None,
    tokens: Sequence[str | None],
    *,
    added: Sequence[str],
    special_ids: frozenset[int],
) -> Vocabulary | None:
    table = byte_table(decoder, tokens, added)
    return None if table is None else Vocabulary(entries=table.entries, special_ids=special_ids)
