"""The shipped text cut into tokens: every family of vocabulary spells it out whole."""

from pathlib import Path

import gguf
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from gpu_worker.accuracy_text import TEXT
from gpu_worker.accuracy_tokens import folder_token_ids, gguf_token_ids
from gpu_worker.weight_choice import NUM_TOKENS
from radixd.chassis.gguf_file import GgufFile
from radixd.chassis.model_source import resolve_model


def write(path: Path, family: str, pieces: list[str], **bos: int | bool) -> GgufFile:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(family)
    writer.add_token_list(pieces)
    if "id" in bos:
        writer.add_bos_token_id(bos["id"])
    if "add" in bos:
        writer.add_add_bos_token(bool(bos["add"]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return GgufFile(path)


def byte_tokenizer(vocab_size: int) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return tokenizer


def test_text_is_long_enough_and_plain() -> None:
    assert TEXT.isascii()
    assert 3000 < len(TEXT) < 5000


def test_built_in_vocabulary_cuts_the_text_into_words() -> None:
    source = resolve_model("smollm2")
    with GgufFile(source.path) as file:
        cut = gguf_token_ids(file)
        pieces = file.strings("tokenizer.ggml.tokens")
    spelled = "".join(pieces[token] for token in cut).replace("Ġ", " ").replace("Ċ", "\n")
    assert spelled == TEXT
    assert NUM_TOKENS < len(cut) < len(TEXT) / 3


def test_byte_level_pieces(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(400)
    pieces = [tokenizer.id_to_token(at) for at in range(tokenizer.get_vocab_size())]
    with write(tmp_path / "a.gguf", "gpt2", pieces, id=5) as file:
        cut = gguf_token_ids(file)
    assert tokenizer.decode(cut) == TEXT
    with write(tmp_path / "b.gguf", "gpt2", pieces, id=5, add=True) as file:
        assert gguf_token_ids(file) == [5, *cut]


def test_sentencepiece_pieces(tmp_path: Path) -> None:
    letters = sorted(set(TEXT) - {" ", "\n", "#"})
    words = sorted({"▁" + word for word in TEXT.split() if word != "#"})
    pieces = ["<unk>", "<s>", "<0x0A>", "<0x23>", "▁", *letters, *words]
    with write(tmp_path / "a.gguf", "llama", pieces, id=1) as file:
        cut = gguf_token_ids(file)
    assert cut[0] == 1
    spelled = "".join(pieces[token] for token in cut[1:])
    assert spelled.replace("<0x0A>", "\n").replace("<0x23>", "#").replace("▁", " ") == " " + TEXT
    assert len(cut) < len(TEXT) / 2
    with write(tmp_path / "b.gguf", "llama", pieces[:2], id=1, add=False) as file:
        assert gguf_token_ids(file) == []


def test_folder_uses_its_tokenizer(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(300)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    cut = folder_token_ids(tmp_path)
    assert cut == tokenizer.encode(TEXT).ids
    assert tokenizer.decode(cut) == TEXT


def test_folder_without_a_tokenizer_gives_no_tokens(tmp_path: Path) -> None:
    assert folder_token_ids(tmp_path) == []
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    assert folder_token_ids(tmp_path) == []
