"""Loads the tokenizer of a model, whatever its files are."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from protos.errors import ModelError
from radixd.chassis.gguf_file import GgufFile
from radixd.chassis.model_source import ModelSource
from tokenizer_svc.tokenizers.folder_tokenizer import parts_from_folder, read_template
from tokenizer_svc.tokenizers.gguf_tokenizer import parts_from_gguf
from tokenizer_svc.tokenizers.library_tokenizer import LibraryTokenizer
from tokenizer_svc.tokenizers.template_sandbox import CompiledTemplate
from tokenizer_svc.tokenizers.tokenizer import Tokenizer

_STRING_ARRAYS = ("tokenizer.ggml.tokens", "tokenizer.ggml.merges")
_NUMBER_ARRAYS = ("tokenizer.ggml.scores", "tokenizer.ggml.token_type")


def load_tokenizer(source: ModelSource, *, chat_template: Path | None = None) -> Tokenizer:
    """The tokenizer of this model, with the template of this file instead of its own.

    Raises:
        ModelError: names the file and what is wrong with it.
    """
    try:
        parts = (
            parts_from_gguf(_tokenizer_metadata(source))
            if source.kind == "gguf"
            else parts_from_folder(source.path)
        )
        if chat_template is not None:
            parts = replace(parts, chat_template=_checked(chat_template), tool_template=None)
        return LibraryTokenizer(parts)
    except ValueError as error:
        raise ModelError(source.path, str(error)) from None


def _checked(path: Path) -> str:
    """The text of a template's file, which is to blame if it is none."""
    text = read_template(path)
    try:
        CompiledTemplate(text)
    except ValueError as error:
        raise ModelError(path, str(error)) from None
    return text


def _tokenizer_metadata(source: ModelSource) -> dict[str, Any]:
    with GgufFile(source.path) as file:
        metadata: dict[str, Any] = {
            key: value for key, value in file.metadata.items() if key.startswith("tokenizer.")
        }
        for key in _STRING_ARRAYS:
            if key in metadata:
                metadata[key] = file.strings(key)
        for key in _NUMBER_ARRAYS:
            if key in metadata:
                metadata[key] = file.numbers(key)
    return metadata
