"""Philox4x32-10 against the answers its authors publish, and the seed contract frozen."""

import numpy as np
import pytest

from gpu_worker.philox import philox4x32, token_words, vocabulary_words

KNOWN_ANSWERS = [
    ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF,) * 4,
        0xFFFFFFFF_FFFFFFFF,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        0x299F31D0_A4093822,
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_known_answers(counter: tuple[int, ...], key: int, answer: tuple[int, ...]) -> None:
    c0, c1, c2, c3 = (np.array([word], np.uint64) for word in counter)
    words = philox4x32((c0, c1, c2, c3), key)
    assert tuple(int(word[0]) for word in words) == answer


def test_token_words_follow_the_contract() -> None:
    ids = np.array([0, 1, 2, 3, 5, 4001], np.uint64)
    words = token_words(1234567890123456789, 77, ids)
    for token_id, word in zip(ids, words, strict=True):
        counter = [np.array([value], np.uint64) for value in (int(token_id) // 4, 77, 0, 0)]
        four = philox4x32((counter[0], counter[1], counter[2], counter[3]), 1234567890123456789)
        assert word == four[int(token_id) % 4][0]


def test_words_of_a_token_do_not_depend_on_the_others() -> None:
    everything = vocabulary_words(9, 5, 1001)
    assert len(everything) == 1001
    some = np.array([1000, 3, 4, 500, 999], np.uint64)
    assert (token_words(9, 5, some) == everything[some.astype(int)]).all()
