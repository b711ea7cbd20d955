"""A Tokenizer on the `tokenizers` library, whatever file its parts were read from."""

import json
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from types import MappingProxyType
from typing import Any

import tokenizers
from tokenizers import models

from protos.errors import InvalidRequest
from radixd.chassis.byte_table import byte_table
from tokenizer_svc.chat.chat_format import NO_FORMAT, ChatFormat
from tokenizer_svc.tokenizers.chat_template import ChatTemplate
from tokenizer_svc.tokenizers.conversation import Conversation
from tokenizer_svc.tokenizers.spelling_guard import SpellingGuard, any_of
from tokenizer_svc.tokenizers.table_decoder import TableDecoder, starts_text, unfinished_end
from tokenizer_svc.tokenizers.tokenizer import ChatTurn, Decoder, FunctionTool
from tokenizer_svc.tokenizers.window_decoder import WindowDecoder

_BARRED = re.compile(r"<[|｜].+[|｜]>", re.DOTALL)
"""How control tokens are spelled, and hardly anything else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerParts:
    """What a model's files say about its tokenizer."""

    backend: tokenizers.Tokenizer
    bos_id: int | None
    """The token every text begins with; None: the model wants none."""
    chat_template: str | None
    tool_template: str | None = None
    """The chat template where there are tools; None: the same."""
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
        added = parts.backend.get_added_tokens_decoder()
        self._control_ids = _control_ids(added, parts)
        self._only_text = _twin(parts.backend, self._control_ids)
        self._only_text.encode_special_tokens = True
        self._added_ids = {token.content: i for i, token in added.items()}
        special = {token.content: i for i, token in added.items() if token.special}
        self._special_ids = MappingProxyType(special)
        self._skipped_ids = frozenset(special.values())
        self._control = re.compile(f"({any_of(self._control_ids)})")
        tokens = _tokens_by_id(self._only_text)
        self._num_ids = len(tokens)
        self._table = byte_table(
            _description_of(self._only_text.decoder),
            tokens,
            [token.content for token in added.values()],
        )
        self._bos_id = parts.bos_id
        self._template, self._tool_template = _templates(parts)

    @property
    def num_ids(self) -> int:
        """Ids are below this."""
        return self._num_ids

    @property
    def special_ids(self) -> Mapping[str, int]:
        """Control tokens by their spelling."""
        return self._special_ids

    def added_id(self, spelling: str) -> int | None:
        """The token of its own that this is, control token or not; None: it is made of others."""
        return self._added_ids.get(spelling)

    def encode_text(self, text: str) -> list[int]:
        """The ids of plain text, after the BOS token where the model wants one."""
        ids = _encode(self._only_text, text)
        return ids if self._bos_id is None else [self._bos_id, *ids]

    @property
    def chat_format(self) -> ChatFormat:
        """How the model marks its thoughts and its calls of tools."""
        return NO_FORMAT if self._tool_template is None else self._tool_template.format

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

        Raises:
            InvalidRequest: there is no template, or it refuses these messages; names the field.
        """
        template = self._tool_template if tools else self._template
        if template is None:
            raise InvalidRequest("chat", "this model has no chat template; send text or tokens")
        conversation = Conversation(
            turns=turns,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_arguments=json.loads(template_arguments or "{}"),
        )
        guard = SpellingGuard(self._control_ids)
        rendered = template.render(conversation, guard)
        if guard.mark in rendered:
            ids = self._encode_guarded(rendered, guard)
        else:
            ids = _encode(self._with_control, rendered)
        if self._bos_id is not None and ids[:1] != [self._bos_id]:
            ids.insert(0, self._bos_id)
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to a text that has begun; perhaps a part of a character."""
        if self._table is None:
            # After itself, so that it does not begin the text.
            decoder = self.decoder(skip_special_tokens=False, context_ids=[token_id])
            return (decoder.feed([token_id]) + decoder.finish()).encode()
        entries = self._table.entries
        return entries[token_id] if token_id < len(entries) else b""

    def decoder(
        self,
        *,
        skip_special_tokens: bool,
        context_ids: Sequence[int] = (),
        shown_tokens: Iterable[str] = (),
    ) -> Decoder:
        """A fresh decoder for text that continues `context_ids`."""
        skipped: frozenset[int] = frozenset()
        if skip_special_tokens:
            shown = (self._special_ids.get(token, -1) for token in shown_tokens)
            skipped = self._skipped_ids.difference(shown)
        if self._table is None:
            return WindowDecoder(
                lambda ids: self._only_text.decode(ids, skip_special_tokens=False),
                visible=lambda i: i < self._num_ids and i not in skipped,
                context_ids=context_ids,
            )
        entries = self._table.entries
        drops = self._table.drops_leading_space and starts_text(entries, skipped, context_ids)
        return TableDecoder(
            entries,
            skipped_ids=skipped,
            drops_leading_space=drops,
            begun=unfinished_end(entries, skipped, context_ids),
        )

    def _encode_guarded(self, rendered: str, guard: SpellingGuard) -> list[int]:
        # Control tokens that the template wrote are whole; those in messages carry the mark.
        ids: list[int] = []
        for part in self._control.split(rendered):
            if part in self._control_ids:
                ids.append(self._control_ids[part])
            elif part:
                ids.extend(_encode(self._only_text, guard.restore(part)))
        return ids


def _templates(parts: TokenizerParts) -> tuple[ChatTemplate | None, ChatTemplate | None]:
    """The template without tools, and the one with tools."""
    if parts.chat_template is None:
        return None, None
    plain = ChatTemplate(parts.chat_template, parts.named_tokens)
    if parts.tool_template is None:
        return plain, plain
    return plain, ChatTemplate(parts.tool_template, parts.named_tokens)


def _control_ids(
    added: Mapping[int, tokenizers.AddedToken], parts: TokenizerParts
) -> Mapping[str, int]:
    """The tokens that no text may spell, by their spelling.

    Those that the file calls special, and those with which the chat template opens turns though
    the file does not call them so (a few models): whoever spells one would forge a turn.
    """
    written = f"{parts.chat_template}{parts.tool_template}"
    return {
        token.content: token_id
        for token_id, token in added.items()
        if token.special or (_BARRED.fullmatch(token.content) and token.content in written)
    }


def _twin(backend: tokenizers.Tokenizer, control: Container[str]) -> tokenizers.Tokenizer:
    """A second object on the same vocabulary and merges, to which all of `control` is special.

    A copy by way of the library's JSON takes a fifth of a second and the same memory again.
    """
    twin = tokenizers.Tokenizer(backend.model)
    twin.normalizer = backend.normalizer
    twin.pre_tokenizer = backend.pre_tokenizer
    twin.decoder = backend.decoder
    added = backend.get_added_tokens_decoder()
    # An id that the model does not fix is the next free one, so their order decides.
    tokens = [token for _, token in sorted(added.items(), key=itemgetter(0))]
    for token in tokens:
        token.special = token.content in control
    twin.add_tokens(tokens)
    spellings = {token_id: token.content for token_id, token in added.items()}
    assert {i: t.content for i, t in twin.get_added_tokens_decoder().items()} == spellings
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
