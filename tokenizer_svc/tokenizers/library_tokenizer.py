"""A Tokenizer on the `tokenizers` library, whatever file its parts were read from."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from types import MappingProxyType
from typing import Any

import tokenizers
from tokenizers import models

from protos.errors import InvalidRequest
from tokenizer_svc.tokenizers.byte_table import byte_table
from tokenizer_svc.tokenizers.chat_template import ChatTemplate, SpellingGuard, any_of
from tokenizer_svc.tokenizers.table_decoder import TableDecoder, starts_text
from tokenizer_svc.tokenizers.tokenizer import ChatTurn, Decoder
from tokenizer_svc.tokenizers.window_decoder import WindowDecoder


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerParts:
    """What a model's files say about its tokenizer."""

    backend: tokenizers.Tokenizer
    bos_id: int | None
    """The token every text begins with; None: the model wants none."""
    chat_template: str | None
    named_tokens: Mapping[str, str] = field(default_factory=dict)
    """Spellings by the names that templates use: bos_token, eos_token, ..."""


class LibraryTokenizer:
    """A Tokenizer (see tokenizer.py) over a `tokenizers.Tokenizer`.

    Two of the library's objects are kept on one model, as the switch between reading control
    tokens and reading only text is a state of the object, and several threads use it.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        """Takes `parts.backend` over, and builds the second object and the table for decoding.

        Raises:
            ValueError: the chat template is not one.
        """
        self._with_control = parts.backend
        self._with_control.no_truncation()
        self._with_control.no_padding()
        self._only_text = _twin(parts.backend)
        self._only_text.encode_special_tokens = True
        added = self._only_text.get_added_tokens_decoder()
        special = {token.content: i for i, token in added.items() if token.special}
        self._special_ids = MappingProxyType(special)
        self._skipped_ids = frozenset(special.values())
        self._special = re.compile(f"({any_of(special)})")
        tokens = _tokens_by_id(self._only_text)
        self._num_ids = len(tokens)
        self._table = byte_table(
            _description_of(self._only_text.decoder),
            tokens,
            {i: token.content for i, token in added.items()},
        )
        self._bos_id = parts.bos_id
        self._template = (
            None
            if parts.chat_template is None
            else ChatTemplate(parts.chat_template, parts.named_tokens)
        )

    @property
    def num_ids(self) -> int:
        """Ids are below this."""
        return self._num_ids

    @property
    def special_ids(self) -> Mapping[str, int]:
        """Control tokens by their spelling."""
        return self._special_ids

    def encode_text(self, text: str) -> list[int]:
        """The ids of plain text, after the BOS token where the model wants one."""
        ids = _encode(self._only_text, text)
        return ids if self._bos_id is None else [self._bos_id, *ids]

    def encode_chat(self, turns: Sequence[ChatTurn], *, add_generation_prompt: bool) -> list[int]:
        """The ids of a conversation, rendered by the model's chat template.

        Raises:
            InvalidRequest: there is no template, or it refuses these messages; names the field.
        """
        if self._template is None:
            raise InvalidRequest("chat", "this model has no chat template; send text or tokens")
        guard = SpellingGuard(self._special_ids)
        guarded = [ChatTurn(role=turn.role, content=guard.protect(turn.content)) for turn in turns]
        rendered = self._template.render(guarded, add_generation_prompt=add_generation_prompt)
        if guard.mark in rendered:
            ids = self._encode_guarded(rendered, guard)
        else:
            ids = _encode(self._with_control, rendered)
        if self._bos_id is not None and ids[:1] != [self._bos_id]:
            ids.insert(0, self._bos_id)
        return ids

    def decoder(self, *, skip_special_tokens: bool, context_ids: Sequence[int] = ()) -> Decoder:
        """A fresh decoder for text that continues `context_ids`."""
        skipped = self._skipped_ids if skip_special_tokens else frozenset()
        if self._table is None:
            return WindowDecoder(
                lambda ids: self._library_decode(ids, skipped), context_ids=context_ids
            )
        entries = self._table.entries
        drops = self._table.drops_leading_space and starts_text(entries, skipped, context_ids)
        return TableDecoder(entries, skipped_ids=skipped, drops_leading_space=drops)

    def _encode_guarded(self, rendered: str, guard: SpellingGuard) -> list[int]:
        # Control tokens that the template wrote are whole; those in messages carry the mark.
        ids: list[int] = []
        for part in self._special.split(rendered):
            if part in self._special_ids:
                ids.append(self._special_ids[part])
            elif part:
                ids.extend(_encode(self._only_text, guard.restore(part)))
        return ids

    def _library_decode(self, ids: list[int], skipped: frozenset[int]) -> str:
        known = [i for i in ids if i < self._num_ids and i not in skipped]
        text: str = self._only_text.decode(known, skip_special_tokens=False)
        return text


def _twin(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A second object that encodes and decodes alike on the same vocabulary and merges.

    A copy by way of the library's JSON takes a fifth of a second and the same memory again.
    """
    twin = tokenizers.Tokenizer(backend.model)
    twin.normalizer = backend.normalizer
    twin.pre_tokenizer = backend.pre_tokenizer
    twin.decoder = backend.decoder
    added = backend.get_added_tokens_decoder()
    # An id that the model does not fix is the next free one, so their order decides.
    twin.add_tokens([token for _, token in sorted(added.items(), key=itemgetter(0))])
    assert twin.get_added_tokens_decoder() == added
    return twin


def _tokens_by_id(backend: tokenizers.Tokenizer) -> list[str | None]:
    """[num_ids], the spelling of each id; None: unused."""
    ids = backend.get_vocab()
    tokens: list[str | None] = [None] * (max(ids.values(), default=-1) + 1)
    for token, token_id in ids.items():
        tokens[token_id] = token
    return tokens


def _description_of(decoder: Any) -> Mapping[str, Any] | None:
    """A decoder as tokenizer.json writes it."""
    bare = tokenizers.Tokenizer(models.BPE())
    bare.decoder = decoder
    description: Mapping[str, Any] | None = json.loads(bare.to_str())["decoder"]
    return description


def _encode(backend: tokenizers.Tokenizer, text: str) -> list[int]:
    # `encode` holds Python's lock to the end (seconds for megabytes); the batch form lets go of it.
    encoded = backend.encode_batch_fast([text], add_special_tokens=False)
    ids: list[int] = encoded[0].ids
    return ids
