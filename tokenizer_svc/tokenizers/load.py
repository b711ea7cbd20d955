"""Loads the tokenizer of a model, whatever its files are."""

from typing import Any

from protos.errors import ModelError
from radixd.chassis.gguf_file import GgufFile
from radixd.chassis.model_source import ModelSource
from tokenizer_svc.tokenizers.folder_tokenizer import parts_from_folder
from tokenizer_svc.tokenizers.gguf_tokenizer import parts_from_gguf
from tokenizer_svc.tokenizers.library_tokenizer import LibraryTokenizer
from tokenizer_svc.tokenizers.tokenizer import Tokenizer

_STRING_ARRAYS = ("tokenizer.ggml.tokens", "tokenizer.ggml.merges")
_NUMBER_ARRAYS = ("tokenizer.ggml.scores", "tokenizer.ggml.token_type")


def load_tokenizer(source: ModelSource) -> Tokenizer:
    """The tokenizer of this model.

    Raises:
        ModelError: names the file and what is wrong with it.
    """
    try:
        if source.kind == "gguf":
            return LibraryTokenizer(parts_from_gguf(_tokenizer_metadata(source)))
        return LibraryTokenizer(parts_from_folder(source.path))
    except ValueError as error:
        raise ModelError(source.path, str(error)) from None


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
