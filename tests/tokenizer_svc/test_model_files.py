"""Tokenizers from folders and from GGUF metadata: what is read, and what is said when it is bad."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from protos.errors import ModelError
from radixd.chassis.model_source import ModelSource
from tokenizer_svc.tokenizers.gguf_tokenizer import parts_from_gguf
from tokenizer_svc.tokenizers.library_tokenizer import LibraryTokenizer, TokenizerParts
from tokenizer_svc.tokenizers.load import load_tokenizer
from tokenizer_svc.tokenizers.tokenizer import ChatTurn, decode

TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}"


def write_folder(folder: Path, *, config: dict[str, Any]) -> ModelSource:
    backend = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate("abc")}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>"])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
    )
    backend.enable_truncation(2)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return ModelSource(model_id="m", path=folder, kind="huggingface")


# field case 76
@pytest.mark.parametrize(("adds_bos", "bos"), [({}, [3]), ({"add_bos_token": False}, [])])
def test_a_folder(tmp_path: Path, adds_bos: dict[str, bool], bos: list[int]):
    config = {"bos_token": {"content": "<s>"}, "chat_template": TEMPLATE, **adds_bos}
    tokenizer = load_tokenizer(write_folder(tmp_path, config=config))
    assert tokenizer.encode_text("abcab") == [*bos, 0, 1, 2, 0, 1]
    turns = [ChatTurn(role="user", content="ab")]
    assert tokenizer.encode_chat(turns, add_generation_prompt=True) == [3, 0, 1]
    assert tokenizer.num_ids == 4


@given(text=st.text(alphabet="abB <[sx]>|", max_size=20))
def test_plain_text_is_read_as_by_a_copy_of_the_whole_tokenizer(text: str):
    """Only control tokens lose their meaning; other added tokens keep theirs, flags and all."""
    backend = rich_backend()
    copy = tokenizers.Tokenizer.from_str(backend.to_str())
    copy.encode_special_tokens = True
    parts = TokenizerParts(backend=backend, bos_id=None, chat_template="{{ messages[0].content }}")
    tokenizer = LibraryTokenizer(parts)
    assert tokenizer.encode_text(text) == copy.encode(text, add_special_tokens=False).ids
    assert tokenizer.special_ids == {"<s>": 8, "[x]": 3}


def rich_backend() -> tokenizers.Tokenizer:
    """Added tokens inside and outside the vocabulary, with every flag, out of order."""
    vocab = ["a", "b", "ab", "[x]", "Ġ", "<", ">", "s"]
    backend = tokenizers.Tokenizer(
        models.BPE({t: i for i, t in enumerate(vocab)}, [("a", "b")], unk_token="a")
    )
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>"])
    backend.add_tokens([tokenizers.AddedToken("<b>", lstrip=True, normalized=False)])
    backend.add_special_tokens([tokenizers.AddedToken("[x]", rstrip=True)])
    backend.add_tokens([tokenizers.AddedToken("s|", single_word=True, normalized=True)])
    return backend


def test_a_template_in_a_file_of_its_own_wins(tmp_path: Path):
    source = write_folder(tmp_path, config={"bos_token": "<s>", "chat_template": "{{ 'c' }}"})
    (tmp_path / "chat_template.jinja").write_text("{{ 'b' }}")
    turns = [ChatTurn(role="user", content="a")]
    assert load_tokenizer(source).encode_chat(turns, add_generation_prompt=True) == [3, 1]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer_config.json", "{"),
        ("tokenizer_config.json", "[]"),
        ("tokenizer_config.json", '{"chat_template": "{% if %}"}'),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, name: str, text: str):
    source = write_folder(tmp_path, config={})
    (tmp_path / name).write_text(text)
    with pytest.raises(ModelError) as caught:
        load_tokenizer(source)
    assert str(tmp_path) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def sentencepiece_metadata() -> dict[str, Any]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["▁", "h", "i", "hi", "▁hi", "▁▁"]
    scores = [0.0] * len(tokens)
    for token, score in (("hi", -1.0), ("▁hi", -2.0), ("▁▁", -3.0)):
        scores[tokens.index(token)] = score
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * 6,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


# field cases 73, 76
def test_a_sentencepiece_gguf():
    metadata = sentencepiece_metadata()
    tokenizer = LibraryTokenizer(parts_from_gguf(metadata))
    ids = tokenizer.encode_text("hi hi  漢</s>")
    assert ids[0] == 1
    assert 2 not in ids
    tokens = [metadata["tokenizer.ggml.tokens"][i] for i in ids[1:4]]
    assert tokens == ["▁hi", "▁hi", "▁▁"]
    assert decode(tokenizer, ids, skip_special_tokens=True) == "hi hi  漢</s>"


def byte_level_metadata(**changes: Any) -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": ["<|end|>", "1", "2", "12", "a", "Ġ"],
        "tokenizer.ggml.merges": ["1 2"],
        "tokenizer.ggml.token_type": [3, 1, 1, 1, 1, 4],
        "tokenizer.ggml.bos_token_id": 0,
        **{f"tokenizer.ggml.{key}": value for key, value in changes.items()},
    }


@pytest.mark.parametrize(("cut", "ids"), [("smollm", [1, 2]), ("gpt-2", [3]), ("qwen2", [1, 2])])
def test_digits_are_cut_as_the_file_says(cut: str, ids: list[int]):
    tokenizer = LibraryTokenizer(parts_from_gguf(byte_level_metadata(pre=cut)))
    assert tokenizer.encode_text("12") == ids
    assert decode(tokenizer, tokenizer.encode_text("a12"), skip_special_tokens=True) == "a12"


def test_bos_follows_the_file():
    assert LibraryTokenizer(parts_from_gguf(byte_level_metadata(add_bos_token=True))).encode_text(
        "a"
    ) == [0, 4]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model": "bert"}, "'bert' is not a known kind"),
        ({"pre": "never-heard-of"}, "'never-heard-of' is not a known one"),
        ({"merges": ["x y"]}, "merges"),
        ({"token_type": [1]}, "token_type"),
    ],
)
def test_bad_metadata_is_named(changes: dict[str, Any], problem: str):
    with pytest.raises(ValueError, match=problem):
        parts_from_gguf(byte_level_metadata(**changes))


def test_missing_metadata_is_named():
    metadata = byte_level_metadata()
    del metadata["tokenizer.ggml.tokens"]
    with pytest.raises(ValueError, match=r"tokenizer\.ggml\.tokens is missing"):
        parts_from_gguf(metadata)
