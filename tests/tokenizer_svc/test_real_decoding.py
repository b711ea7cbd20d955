"""Real vocabularies: cut anywhere, an output streams to the text of one decode, the library's.

The rules for what is no text (tokenizer_svc/DESIGN.md): a character that the ids leave unfinished
is one U+FFFD at the end; bytes that are no UTF-8 become one U+FFFD for each maximal broken part.
"""

import re
from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizer_svc.real_tokenizers import NAMES, RealTokenizer, normal_form, real_tokenizer
from tokenizer_svc.tokenizers.tokenizer import decode

REPLACEMENT = "\ufffd"
SCRIPTS = "čaj 漢字 🙂👍🏾 e\u0301 שלום مرحبا ไทย 한국어 नमस्ते 👨‍👩‍👧‍👦 🇩🇪"
CLEANED_UP_BY_SOME = "Hello , world . He did n't , I 'm sure ; she 's  ?  !"
BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


def text_from_bytes(real: RealTokenizer, ids: Sequence[int], *, skip: bool) -> str:
    """What sentencepiece's tokens stand for, put together by hand."""
    special = set(real.tokenizer.special_ids.values()) if skip else set()
    data = b""
    for i in ids:
        token = real.library.id_to_token(i)
        if token is None or i in special:
            continue
        byte = BYTE_TOKEN.fullmatch(token)
        data += bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()
    text = data.decode("utf-8", "replace")
    return text.removeprefix(" ") if real.name == "llama2" else text


def whole_text(real: RealTokenizer, ids: Sequence[int], *, skip: bool) -> str:
    """The library's text; by hand where it would spoil a whole row of bytes for one wrong one."""
    known = [i for i in ids if i < real.tokenizer.num_ids]
    text = str(real.library.decode(known, skip_special_tokens=skip))
    if real.has_byte_tokens and REPLACEMENT in text:
        return text_from_bytes(real, known, skip=skip)
    return text


def continuation(whole: str, before: str) -> str:
    """decode(prompt + output) minus decode(prompt)."""
    if not whole.startswith(before):
        # The output completed the character that the prompt had begun.
        before = before.removesuffix(REPLACEMENT)
    assert whole.startswith(before)
    return whole[len(before) :]


@cache
def ids_of(name: str) -> st.SearchStrategy[list[int]]:
    """Any ids, and more of those that are hard: single bytes, control tokens, pieces of text."""
    real = real_tokenizer(name)
    texts = [SCRIPTS, CLEANED_UP_BY_SOME, "  two  spaces \n\n\t\tand tabs ", "\ufffd\ufffd \ufffd"]
    encoded = [real.library.encode(text, add_special_tokens=False).ids for text in texts]
    one = st.one_of(
        st.integers(0, real.tokenizer.num_ids + 3),
        st.sampled_from(sorted(real.byte_ids.values())),
        st.sampled_from(sorted(real.tokenizer.special_ids.values())),
    )
    slices = st.tuples(st.sampled_from(encoded), st.integers(0, 60), st.integers(1, 12))
    few = st.one_of(
        st.lists(one, max_size=6), slices.map(lambda cut: cut[0][cut[1] : cut[1] + cut[2]])
    )
    return st.lists(few, max_size=5).map(lambda parts: [i for part in parts for i in part])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", NAMES)
# field cases 63, 64, 65, 73
def test_any_ids_cut_anywhere_stream_to_the_text_of_one_decode(name: str):
    real = real_tokenizer(name)

    @settings(max_examples=400)
    @given(
        context=ids_of(name),
        output=ids_of(name),
        sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6),
        skip=st.booleans(),
    )
    def streams(context: list[int], output: list[int], sizes: list[int], skip: bool) -> None:
        wanted = continuation(
            whole_text(real, context + output, skip=skip), whole_text(real, context, skip=skip)
        )
        decoder = real.tokenizer.decoder(skip_special_tokens=skip, context_ids=context)
        assert decoder.feed(output) + decoder.finish() == wanted
        decoder = real.tokenizer.decoder(skip_special_tokens=skip, context_ids=context)
        text, at, turn = "", 0, 0
        while at < len(output):
            size = sizes[turn % len(sizes)]
            text += decoder.feed(output[at : at + size])
            at, turn = at + size, turn + 1
            # Nothing is taken back: no U+FFFD stands for a character that comes later.
            assert wanted.startswith(text)
            so_far = continuation(
                whole_text(real, context + output[:at], skip=skip),
                whole_text(real, context, skip=skip),
            )
            # And nothing is held back but the bytes of one unfinished character.
            assert so_far in (text, text + REPLACEMENT)
        assert text + decoder.finish() == wanted

    streams()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", NAMES)
# field case 63
def test_texts_come_back_character_by_character(name: str):
    real = real_tokenizer(name)
    for text in (SCRIPTS, CLEANED_UP_BY_SOME, "漢 a", " leading", "x" * 50):
        ids = real.tokenizer.encode_text(text)[len(real.bos_ids) :]
        decoder = real.tokenizer.decoder(skip_special_tokens=True, context_ids=real.bos_ids)
        pieces = [decoder.feed([i]) for i in ids]
        assert "".join(pieces) == normal_form(real, text)
        assert decoder.finish() == ""
        assert not any(REPLACEMENT in piece for piece in pieces)


@pytest.mark.parametrize("name", NAMES)
# field case 73
def test_spaces_of_a_continued_text_are_its_own(name: str):
    real = real_tokenizer(name)
    prompt = real.tokenizer.encode_text("one")
    for spelled in (" two y", "  two", "\n two", "、 two"):
        ids = real.tokenizer.encode_text("one" + spelled)
        assert ids[: len(prompt)] == prompt
        decoder = real.tokenizer.decoder(skip_special_tokens=True, context_ids=prompt)
        assert decoder.feed(ids[len(prompt) :]) + decoder.finish() == spelled


def test_runs_of_spaces_that_are_tokens_of_their_own():
    gemma = real_tokenizer("gemma3")
    run = gemma.library.token_to_id("▁▁▁▁")
    assert decode(gemma.tokenizer, [run], skip_special_tokens=True) == "    "


@pytest.mark.parametrize("name", NAMES)
# field case 64
def test_a_character_that_the_prompt_begins_is_completed_by_the_output(name: str):
    real = real_tokenizer(name)
    first, second, third = (real.byte_ids[byte] for byte in "漢".encode())
    for context, output, text in (
        ([first, second], [third], "漢"),
        ([first], [second, third], "漢"),
        ([first], [second], ""),
        ([first, second], [first, second], REPLACEMENT),
        ([first, second], [], ""),
    ):
        decoder = real.tokenizer.decoder(skip_special_tokens=True, context_ids=context)
        pieces = [decoder.feed([i]) for i in output]
        assert "".join(pieces) + decoder.finish() == text
