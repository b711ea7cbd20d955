"""Bytes as tokens, for the fake worker: the whole system without a model and its libraries.

Ids 0 to 255 are bytes.  256 to 261 are control tokens, which no text can spell; 262 and 263 are
never used and stand for nothing, like the padding rows of a real vocabulary.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from tokenizer_svc.tokenizers.table_decoder import TableDecoder
from tokenizer_svc.tokenizers.tokenizer import ChatTurn, Decoder

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

    def encode_text(self, text: str) -> list[int]:
        """The bytes of the text."""
        return list(text.encode())

    def encode_chat(self, turns: Sequence[ChatTurn], *, add_generation_prompt: bool) -> list[int]:
        """<|im_start|>role, newline, content, <|im_end|>, newline; then an open assistant turn."""
        ids: list[int] = []
        for turn in turns:
            ids.append(IM_START)
            ids.extend(f"{turn.role}\n{turn.content}".encode())
            ids.append(IM_END)
            ids.extend(b"\n")
        if add_generation_prompt:
            ids.append(IM_START)
            ids.extend(b"assistant\n")
        return ids

    def decoder(self, *, skip_special_tokens: bool, context_ids: Sequence[int] = ()) -> Decoder:
        """A fresh decoder; what came before makes no difference to bytes."""
        skipped = _ALL_SPECIAL if skip_special_tokens else frozenset()
        return TableDecoder(_TABLE, skipped_ids=skipped)
