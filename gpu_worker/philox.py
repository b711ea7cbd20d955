"""Philox4x32-10, the counter-based random generator: the words behind every sampled token.

A pure function of key and counter, so that a row's draw depends on nothing else in the batch and
can be repeated anywhere.  Verified against the published known answers.
"""

from typing import Any

import numpy as np

Words = np.ndarray[Any, np.dtype[np.uint64]]
"""32-bit words, held in 64 bits so that products do not wrap."""

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_MASK = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_NUM_ROUNDS = 10


def philox4x32(
    counter: tuple[Words, Words, Words, Words], key: int
) -> tuple[Words, Words, Words, Words]:
    """Four random words for each counter.

    counter: four arrays of one shape (or broadcastable), low word first.
    key: 64 bits, low word first.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(_NUM_ROUNDS):
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c2 = (second >> _SHIFT) ^ c1 ^ np.uint64(k0), (first >> _SHIFT) ^ c3 ^ np.uint64(k1)
        c1, c3 = second & _MASK, first & _MASK
        k0, k1 = (k0 + _KEY_STEPS[0]) & 0xFFFFFFFF, (k1 + _KEY_STEPS[1]) & 0xFFFFFFFF
    return c0, c1, c2, c3


def token_words(seed: int, position: int, token_ids: Words) -> Words:
    """The random word of each token id [n] at a position: the seed contract, never to change.

    key = seed; counter = (token_id // 4, position, 0, 0); word token_id % 4 of the four.
    """
    words = _group_words(seed, position, token_ids >> np.uint64(2))
    picked: Words = words[np.arange(len(token_ids)), (token_ids & np.uint64(3)).astype(np.intp)]
    return picked


def vocabulary_words(seed: int, position: int, vocab_size: int) -> Words:
    """The same words for all ids below vocab_size, with one call of the generator for four."""
    groups = np.arange(-(-vocab_size // 4), dtype=np.uint64)
    return _group_words(seed, position, groups).ravel()[:vocab_size]


def _group_words(seed: int, position: int, groups: Words) -> Words:
    """[n, 4] words of groups [n] of four tokens."""
    zero = np.zeros(1, np.uint64)
    words = philox4x32((groups, zero + np.uint64(position), zero, zero), seed)
    return np.stack(np.broadcast_arrays(*words), axis=1)
