"""What keeps spelled control tokens from becoming control tokens: what it finds, what it costs."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tokenizer_svc.real_tokenizers import real_tokenizer
from tokenizer_svc.tokenizers.spelling_guard import SpellingGuard, any_of

ALPHABET = "<|>a"
SPELLINGS = st.lists(st.text(ALPHABET, min_size=1, max_size=6), max_size=8)


@given(texts=SPELLINGS, searched=st.text(ALPHABET, max_size=40))
def test_a_pattern_finds_what_a_plain_choice_of_the_longest_finds(texts: list[str], searched: str):
    longest_first = sorted(texts, key=len, reverse=True)
    plain = "|".join(map(re.escape, longest_first)) or "(?!)"
    assert re.findall(any_of(texts), searched) == re.findall(plain, searched)


@given(spellings=SPELLINGS, text=st.text(ALPHABET, max_size=30), after=st.sampled_from(["", "|>"]))
def test_no_spelling_is_left_and_the_text_comes_back(spellings: list[str], text: str, after: str):
    guard = SpellingGuard(spellings)
    guarded = guard.protect(text)
    assert guard.restore(guarded) == text
    for spelling in spellings:
        if len(spelling) > 1:
            assert spelling not in guarded
            # Nor one that what the template writes behind the message would complete.
            assert (guarded + after).count(spelling) == after.count(spelling)


@pytest.mark.parametrize("name", ["deepseek_v3", "llama3_1"])
# field case 78
def test_a_megabyte_of_beginnings_costs_as_little_as_one_of_prose(name: str):
    """A plain choice took seven seconds, with every other stream standing still."""
    guard = SpellingGuard(real_tokenizer(name).tokenizer.special_ids)
    for beginning in ("<", "<|", "<｜", "<|reserved_special_token_"):
        text = beginning * ((1 << 20) // len(beginning))
        started_s = time.process_time()
        assert guard.restore(guard.protect(text)) == text
        assert time.process_time() - started_s < 2


def test_no_mark_spells_a_control_token():
    """Broken again and again, such a text would grow for ever."""
    guard = SpellingGuard([f"{number:02d}" for number in range(100)])
    protected = guard.protect("call 12345 or 90")
    assert not any(f"{number:02d}" in protected for number in range(100))
    assert guard.restore(protected) == "call 12345 or 90"
