"""Reads the tokenizer of a Hugging Face folder.

tokenizer.json is read directly.  Only a folder without one needs transformers, which converts
the older formats; it is imported there and nowhere else.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from protos.errors import ModelError, first_line
from tokenizer_svc.tokenizers.library_tokenizer import TokenizerParts

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


def parts_from_folder(folder: Path) -> TokenizerParts:
    """The tokenizer in this folder.

    Raises:
        ModelError: a file is missing or not what it should be; names it.
    """
    config = _read_json(folder / "tokenizer_config.json")
    backend = _backend(folder)
    named = dict(_named_tokens(folder, config))
    bos_id = backend.token_to_id(named["bos_token"]) if "bos_token" in named else None
    adds_bos = config.get("add_bos_token")
    if adds_bos is None:
        # What the file itself puts in front of a text.
        adds_bos = bos_id is not None and backend.encode("a").ids[:1] == [bos_id]
    templates = _chat_templates(folder, config)
    return TokenizerParts(
        backend=backend,
        bos_id=bos_id if adds_bos else None,
        chat_template=templates.get("default"),
        tool_template=templates.get("tool_use"),
        named_tokens=named,
    )


def _backend(folder: Path) -> tokenizers.Tokenizer:
    path = folder / "tokenizer.json"
    if not path.exists():
        return _converted_backend(folder)
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ModelError(path, f"not a tokenizer: {error}") from None


def _converted_backend(folder: Path) -> tokenizers.Tokenizer:
    from transformers import AutoTokenizer  # slow to import, and seldom needed

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # whatever the conversion raises, the folder is the cause
        problem = f"no tokenizer in this folder: {first_line(error)}"
        raise ModelError(folder, problem) from None
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise ModelError(folder, "its tokenizer has no form that this server can run")
    return backend


def _named_tokens(folder: Path, config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    named = _read_json(folder / "special_tokens_map.json") | dict(config)
    for name in _NAMED_TOKENS:
        value = named.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            yield name, value


def _chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """By name: `default`, and perhaps `tool_use`; files win over the configuration."""
    found = dict(_named_templates(config.get("chat_template")))
    paths = {"default": folder / "chat_template.jinja"}
    paths |= {path.stem: path for path in (folder / "additional_chat_templates").glob("*.jinja")}
    for name, path in paths.items():
        if path.exists():
            found[name] = read_template(path)
    return found


def read_template(path: Path) -> str:
    """The text of a template's file.

    Raises:
        ModelError: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(path, f"not readable as a chat template: {error}") from None


def _named_templates(written: Any) -> Iterator[tuple[str, str]]:
    entries = written if isinstance(written, list) else [{"name": "default", "template": written}]
    for entry in entries:
        if isinstance(entry, dict) and isinstance(entry.get("template"), str):
            yield str(entry.get("name")), entry["template"]


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(path, f"not readable as JSON: {error}") from None
    if not isinstance(loaded, dict):
        raise ModelError(path, "an object was expected")
    return loaded
