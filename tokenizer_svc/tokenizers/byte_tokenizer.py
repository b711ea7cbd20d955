"""Bytes as tokens, for the fake worker: the whole system without a model and its libraries.

Ids 0 to 255 are bytes.  256 to 261 are control tokens, which no text can spell; 262 and 263 are
never used and stand for nothing, like the padding rows of a real vocabulary.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from protos.errors import InvalidRequest
from tokenizer_svc.chat.call_formats import HERMES
from tokenizer_svc.chat.chat_format import THOUGHTS, ChatFormat
from tokenizer_svc.tokenizers.conversation import tool_values
from tokenizer_svc.tokenizers.default_tools import instructions, spelled_out, with_instructions
from tokenizer_svc.tokenizers.spelling_guard import SpellingGuard
from tokenizer_svc.tokenizers.table_decoder import TableDecoder, unfinished_end
from tokenizer_svc.tokenizers.tokenizer import ChatTurn, Decoder, FunctionTool

NUM_IDS = 264
BOS, EOS, SCRIPT, GO, IM_START, IM_END = range(256, 262)

_SPECIAL_IDS = MappingProxyType(
    {
        "<|bos|>": BOS,
        "<|eos|>": EOS,
        "<|script|>": SCRIPT,
        "<|go|>": GO,
        "<|im_start|>": IM_START,
        "<|im_end|>": IM_END,
    }
)
_TABLE = [
    *(bytes([value]) for value in range(256)),
    *(spelling.encode() for spelling in _SPECIAL_IDS),
    *(b"" for _ in range(NUM_IDS - 256 - len(_SPECIAL_IDS))),
]
_ALL_SPECIAL = frozenset(_SPECIAL_IDS.values())
_THINK = THOUGHTS[0]
_NO_GUARD = SpellingGuard(())
"""Bytes of a text are never control tokens."""


class ByteTokenizer:
    """A Tokenizer (see tokenizer.py) of UTF-8 bytes.  It never adds a BOS token."""

    @property
    def num_ids(self) -> int:
        """264."""
        return NUM_IDS

    @property
    def special_ids(self) -> Mapping[str, int]:
        """Control tokens by their spelling."""
        return _SPECIAL_IDS

    def added_id(self, spelling: str) -> int | None:
        """That of a control token: there are no others beside bytes."""
        return _SPECIAL_IDS.get(spelling)

    def encode_text(self, text: str) -> list[int]:
        """The bytes of the text."""
        return list(text.encode())

    @property
    def chat_format(self) -> ChatFormat:
        """Thoughts and calls as most models mark them."""
        return ChatFormat(calls=HERMES, thoughts=_THINK)

    def encode_chat(
        self,
        turns: Sequence[ChatTurn],
        *,
        add_generation_prompt: bool,
        tools: Sequence[FunctionTool] = (),
        continue_final_message: bool = False,
        template_arguments: str = "",
    ) -> list[int]:
        """<|im_start|>role, newline, content, <|im_end|>, newline; then an open assistant turn.

        Tools are described as for any template that knows none.
        """
        for name in json.loads(template_arguments or "{}"):
            raise InvalidRequest(
                "chat.template_arguments", f"there is no chat template with a variable {name!r}"
            )
        told = spelled_out(turns, HERMES, _NO_GUARD)
        if tools:
            text = instructions(tool_values(tools, _NO_GUARD))
            told = with_instructions(told, text, has_system=True)
        ids: list[int] = []
        for turn in told:
            ids.append(IM_START)
            thought = f"{_THINK.opening}{turn.reasoning}{_THINK.closing}" if turn.reasoning else ""
            ids.extend(f"{turn.role}\n{thought}{turn.content}".encode())
            ids.append(IM_END)
            ids.extend(b"\n")
        if continue_final_message:
            return ids[:-2]
        if add_generation_prompt:
            ids.append(IM_START)
            ids.extend(b"assistant\n")
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """The byte itself, or the spelling of a control token."""
        return _TABLE[token_id] if token_id < NUM_IDS else b""

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
            skipped = _ALL_SPECIAL.difference(_SPECIAL_IDS.get(each, -1) for each in shown_tokens)
        return TableDecoder(
            _TABLE, skipped_ids=skipped, begun=unfinished_end(_TABLE, skipped, context_ids)
        )
