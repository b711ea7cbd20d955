"""Decoders: the same text however ids are cut, exactly the text of all ids at once."""

from itertools import pairwise

import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from tokenizer_svc.tokenizers.byte_tokenizer import ByteTokenizer
from tokenizer_svc.tokenizers.library_tokenizer import LibraryTokenizer, TokenizerParts
from tokenizer_svc.tokenizers.table_decoder import TableDecoder
from tokenizer_svc.tokenizers.tokenizer import Tokenizer, decode
from tokenizer_svc.tokenizers.window_decoder import WindowDecoder


def library(
    vocab: list[str], decoder: object, *, special: tuple[str, ...] = ()
) -> LibraryTokenizer:
    backend = tokenizers.Tokenizer(models.WordLevel({t: i for i, t in enumerate(vocab)}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoder
    backend.add_special_tokens(list(special))
    return LibraryTokenizer(TokenizerParts(backend=backend, bos_id=None, chat_template=None))


def sentencepiece_decoder() -> object:
    return decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )


@given(data=st.binary(max_size=60), cuts=st.lists(st.integers(0, 60), max_size=8))
def test_any_bytes_cut_anywhere_decode_as_at_once(data: bytes, cuts: list[int]):
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    table = [data[a:b] for a, b in pairwise(bounds)]
    decoder = TableDecoder(table, skipped_ids=frozenset())
    pieces = [decoder.feed([i]) for i in range(len(table))]
    tail = decoder.finish()
    assert "".join(pieces) + tail == data.decode("utf-8", "replace")
    assert tail in ("", "\ufffd")


@given(text=st.text(max_size=30))
def test_valid_text_never_shows_a_replacement_before_its_time(text: str):
    decoder = ByteTokenizer().decoder(skip_special_tokens=True)
    pieces = [decoder.feed([byte]) for byte in text.encode()]
    assert "".join(pieces) == text
    assert decoder.finish() == ""
    assert sum(piece.count("\ufffd") for piece in pieces) == text.count("\ufffd")


def test_ids_that_no_table_knows_stand_for_nothing():
    assert decode(ByteTokenizer(), [97, 262, 263, 999, 98], skip_special_tokens=False) == "ab"


# field case 73
def test_leading_spaces_are_those_of_the_whole_text():
    vocab = ["<unk>", "▁", "▁two", "▁y", "y", "▁a", "▁b", "x"]
    tokenizer = library(vocab, sentencepiece_decoder(), special=("<s>",))
    prompt = [vocab.index("x")]
    special = tokenizer.special_ids["<s>"]
    for output, text in (
        (["▁", "▁two", "▁y"], "  two y"),
        (["y"], "y"),
        (["▁a", "<s>", "▁b"], " a b"),
    ):
        ids = [special if token == "<s>" else vocab.index(token) for token in output]
        assert streamed(tokenizer, ids, prompt) == text
        whole = decode(tokenizer, prompt + ids, skip_special_tokens=True)
        assert whole == decode(tokenizer, prompt, skip_special_tokens=True) + text


def test_a_text_of_its_own_loses_its_word_mark():
    vocab = ["<unk>", "▁a", "▁b"]
    tokenizer = library(vocab, sentencepiece_decoder(), special=("<s>",))
    special = tokenizer.special_ids["<s>"]
    assert decode(tokenizer, [special, 1, 2], skip_special_tokens=True) == "a b"
    assert streamed(tokenizer, [1, 2], [special]) == "a b"
    never = library(vocab, decoders.Metaspace(prepend_scheme="never"))
    assert decode(never, [1, 2], skip_special_tokens=True) == " a b"
    always = library(vocab, decoders.Metaspace())
    assert decode(always, [1, 2], skip_special_tokens=True) == "a b"


def test_single_bytes_of_sentencepiece_join_to_characters():
    vocab = ["<unk>", *(f"<0x{byte:02X}>" for byte in "漢".encode()), "▁x"]
    tokenizer = library(vocab, sentencepiece_decoder())
    assert streamed(tokenizer, [1, 2, 3, 4], [4]) == "漢 x"


def test_word_pieces_are_spaced_as_in_one_decode():
    vocab = ["<unk>", "play", "##ing", "field", "##s", "漢"]
    tokenizer = library(vocab, decoders.WordPiece(cleanup=False), special=("[SEP]",))
    ids = [1, 2, 3, 4, tokenizer.special_ids["[SEP]"], 5]
    assert streamed(tokenizer, ids, []) == "playing fields 漢"
    assert decode(tokenizer, ids, skip_special_tokens=False) == "playing fields [SEP] 漢"


def test_a_row_of_skipped_tokens_does_not_join_two_words():
    vocab = ["<unk>", "play", "field"]
    tokenizer = library(vocab, decoders.WordPiece(cleanup=False), special=("[SEP]",))
    separators = [tokenizer.special_ids["[SEP]"]] * 20
    assert streamed(tokenizer, [1, *separators, 2], []) == "play field"
    assert streamed(tokenizer, [2], [1, *separators]) == " field"


@given(output=st.lists(st.integers(0, 5), max_size=20))
def test_a_window_gives_the_whole_text_and_stays_small(output: list[int]):
    letters = ["a", "b", "", "\ufffd", "c", "d"]
    longest = 0

    def plain(ids: list[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return "".join(letters[i] for i in ids)

    decoder = WindowDecoder(plain)
    text = "".join([decoder.feed([i]) for i in output]) + decoder.finish()
    assert text == "".join(letters[i] for i in output)
    assert longest <= 16


def streamed(tokenizer: Tokenizer, ids: list[int], context: list[int]) -> str:
    decoder = tokenizer.decoder(skip_special_tokens=True, context_ids=context)
    return "".join([decoder.feed([i]) for i in ids]) + decoder.finish()
