"""Builds a tokenizer from the metadata of a GGUF file.

Two families: "gpt2" (byte-level BPE, with one of the known ways to cut text into words) and
"llama" (sentencepiece BPE, whose merges follow from the scores).  Reads no file itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from tokenizer_svc.tokenizers.library_tokenizer import TokenizerParts

_PREFIX = "tokenizer.ggml."
_TEMPLATE = "tokenizer.chat_template"
_CONTROL, _USER_DEFINED = 3, 4
"""Of tokenizer.ggml.token_type: tokens no text spells, and tokens every text may spell."""

_WORDS_BY_MERGED_DIGITS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CUTS_BY_NAME: Mapping[str, tuple[str, str | None]] = {
    # name: (kind, pattern)
    "smollm": ("digits", None),
    "starcoder": ("digits", None),
    "refact": ("digits", None),
    "codeshell": ("digits", None),
    "command-r": ("digits", None),
    "gpt-2": ("words", None),
    "default": ("words", None),
    "olmo": ("words", None),
    "llama-bpe": ("pattern", _WORDS_BY_MERGED_DIGITS % "{1,3}"),
    "llama3": ("pattern", _WORDS_BY_MERGED_DIGITS % "{1,3}"),
    "qwen2": ("pattern", _WORDS_BY_MERGED_DIGITS % ""),
}
_ADDS_BOS_BY_DEFAULT = frozenset({"llama-bpe", "llama3"})


def parts_from_gguf(metadata: Mapping[str, Any]) -> TokenizerParts:
    """The tokenizer that the keys tokenizer.* describe.

    Raises:
        ValueError: a key is missing, or names a kind that is not known; says which.
    """
    tokens = [str(token) for token in _required(metadata, "tokens")]
    kinds = [int(kind) for kind in metadata.get(f"{_PREFIX}token_type", [])] or [1] * len(tokens)
    _check_length("token_type", kinds, tokens)
    family = str(_required(metadata, "model"))
    if family == "gpt2":
        backend, adds_bos = _byte_level(metadata, tokens)
    elif family == "llama":
        backend, adds_bos = _sentencepiece(metadata, tokens), True
    else:
        raise ValueError(f"{_PREFIX}model: {family!r} is not a known kind (gpt2, llama)")
    _add_special(backend, tokens, kinds)
    bos_id = metadata.get(f"{_PREFIX}bos_token_id")
    adds_bos = bool(metadata.get(f"{_PREFIX}add_bos_token", adds_bos)) and bos_id is not None
    template = metadata.get(_TEMPLATE)
    tool_template = metadata.get(f"{_TEMPLATE}.tool_use")
    return TokenizerParts(
        backend=backend,
        bos_id=int(bos_id) if adds_bos and bos_id is not None else None,
        chat_template=None if template is None else str(template),
        tool_template=None if tool_template is None else str(tool_template),
        named_tokens=dict(_named_tokens(metadata, tokens)),
    )


def _required(metadata: Mapping[str, Any], key: str) -> Any:
    try:
        return metadata[_PREFIX + key]
    except KeyError:
        raise ValueError(f"{_PREFIX}{key} is missing") from None


def _check_length(key: str, column: Sequence[float], tokens: Sequence[str]) -> None:
    if len(column) != len(tokens):
        raise ValueError(f"{_PREFIX}{key}: {len(column)} entries for {len(tokens)} tokens")


def _byte_level(
    metadata: Mapping[str, Any], tokens: Sequence[str]
) -> tuple[tokenizers.Tokenizer, bool]:
    cut_name = str(metadata.get(f"{_PREFIX}pre", "default"))
    if cut_name not in _CUTS_BY_NAME:
        known = ", ".join(sorted(_CUTS_BY_NAME))
        raise ValueError(f"{_PREFIX}pre: {cut_name!r} is not a known one ({known})")
    kind, pattern = _CUTS_BY_NAME[cut_name]
    merges = [_pair(str(merge)) for merge in _required(metadata, "merges")]
    whole_words = cut_name in _ADDS_BOS_BY_DEFAULT
    backend = _bpe(tokens, merges, ignore_merges=whole_words)
    cut: list[Any] = []
    if kind == "digits":
        cut.append(pre_tokenizers.Digits(individual_digits=True))
    if pattern is not None:
        cut.append(pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated"))
    cut.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None))
    backend.pre_tokenizer = pre_tokenizers.Sequence(cut)
    backend.decoder = decoders.ByteLevel()
    if cut_name == "qwen2":
        backend.normalizer = normalizers.NFC()
    return backend, cut_name in _ADDS_BOS_BY_DEFAULT


def _sentencepiece(metadata: Mapping[str, Any], tokens: Sequence[str]) -> tokenizers.Tokenizer:
    scores = [float(score) for score in _required(metadata, "scores")]
    _check_length("scores", scores, tokens)
    unknown_id = int(metadata.get(f"{_PREFIX}unknown_token_id", 0))
    if not 0 <= unknown_id < len(tokens):
        raise ValueError(f"{_PREFIX}unknown_token_id: {unknown_id} is no token")
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=list(_merges_from_scores(tokens, scores)),
            unk_token=tokens[unknown_id],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    adds_space = bool(metadata.get(f"{_PREFIX}add_space_prefix", True))
    prepend = [normalizers.Prepend("▁")] if adds_space else []
    backend.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if adds_space else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend


def _bpe(
    tokens: Sequence[str], merges: Sequence[tuple[str, str]], *, ignore_merges: bool
) -> tokenizers.Tokenizer:
    vocab = {token: i for i, token in enumerate(tokens)}
    try:
        return tokenizers.Tokenizer(
            models.BPE(vocab=vocab, merges=list(merges), ignore_merges=ignore_merges)
        )
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"{_PREFIX}merges: {error}") from None


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _merges_from_scores(
    tokens: Sequence[str], scores: Sequence[float]
) -> Iterator[tuple[str, str]]:
    """Pairs in the order in which sentencepiece would join them: the best scored result first."""
    rank = {token: i for i, token in enumerate(tokens)}
    pairs = [
        (-scores[i], rank[token[:cut]], rank[token[cut:]], token[:cut], token[cut:])
        for i, token in enumerate(tokens)
        for cut in range(1, len(token))
        if token[:cut] in rank and token[cut:] in rank
    ]
    for _, _, _, left, right in sorted(pairs):
        yield left, right


def _add_special(
    backend: tokenizers.Tokenizer, tokens: Sequence[str], kinds: Sequence[int]
) -> None:
    def added(kind: int, *, special: bool) -> list[tokenizers.AddedToken]:
        return [
            tokenizers.AddedToken(token, special=special, normalized=False)
            for token, of_kind in zip(tokens, kinds, strict=True)
            if of_kind == kind and token
        ]

    backend.add_special_tokens(added(_CONTROL, special=True))
    backend.add_tokens(added(_USER_DEFINED, special=False))


def _named_tokens(metadata: Mapping[str, Any], tokens: Sequence[str]) -> Iterator[tuple[str, str]]:
    for key, name in (("bos", "bos"), ("eos", "eos"), ("unknown", "unk"), ("padding", "pad")):
        token_id = metadata.get(f"{_PREFIX}{key}_token_id")
        if token_id is not None and 0 <= int(token_id) < len(tokens):
            yield f"{name}_token", tokens[int(token_id)]
