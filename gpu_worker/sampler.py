"""Draws one token from one row of logits.

The seed contract: temperature, then top-k, top-p and min-p choose candidates, then the token with
the largest logit / temperature + Gumbel noise wins, where the noise of a token is a function of
(seed, position, token id) alone; see `philox.token_words`.  So a draw depends on no other row, no
other step and no generator state, and a row that resumes draws what it would have drawn.

Not here: penalties (`row_sampling`), log probabilities (`logprobs`).
"""

import math
from typing import Any

import numpy as np

from gpu_worker.philox import Words, token_words, vocabulary_words
from protos.plan import SamplingParams

FloatArray = np.ndarray[Any, np.dtype[np.floating[Any]]]
IdArray = np.ndarray[Any, np.dtype[np.intp]]

GREEDY_BELOW = 1e-5
"""Temperatures below it are greedy: at it, a token whose logit is 0.001 below the largest would win
one draw in 10**43."""
_FIRST_LOOK = 256
"""Tokens looked at first for top-p; nearly always enough, and far cheaper than a full sort."""


def sample_token(logits: FloatArray, params: SamplingParams, position: int) -> int:
    """The token that a row with these logits [vocab] takes at an absolute position.

    Ties go to the lowest id.  NaN counts as -inf, so that a broken row still gives a token.
    """
    likeliest_id = int(logits.argmax())  # the first NaN, where there is one
    top = float(logits[likeliest_id])
    if not math.isfinite(top):
        return int(np.nan_to_num(logits, nan=-np.inf, posinf=np.inf, neginf=-np.inf).argmax())
    if params.temperature < GREEDY_BELOW:
        return likeliest_id
    scores = (logits.astype(np.float64) - top) / params.temperature
    candidates = _candidates(scores, params)
    if candidates is None:
        words = vocabulary_words(params.seed, position, len(scores))
        return int((scores + _gumbel(words)).argmax())
    words = token_words(params.seed, position, candidates.astype(np.uint64))
    return int(candidates[(scores[candidates] + _gumbel(words)).argmax()])


def _gumbel(words: Words) -> FloatArray:
    noise: FloatArray = -np.log(-np.log((words + 0.5) / 2.0**32))
    return noise


def _candidates(scores: FloatArray, params: SamplingParams) -> IdArray | None:
    """Ids that survive top-k, top-p and min-p, ascending; None: all do.

    scores: [vocab] logits over temperature, the largest 0.
    """
    limits_k = 0 < params.top_k < len(scores)
    if not limits_k and params.top_p >= 1.0 and params.min_p <= 0.0:
        return None
    kept = np.arange(len(scores))
    if limits_k:
        kept = likeliest(scores, params.top_k)[: params.top_k]
    if params.top_p < 1.0:
        kept = _nucleus(scores, kept, params.top_p)
    if params.min_p > 0.0:
        kept = kept[scores[kept] >= min(np.log(params.min_p), 0.0)]
    return np.sort(kept)


def likeliest(scores: FloatArray, count: int) -> IdArray:
    """At least `count` ids, likeliest first, lower ids first among equals."""
    if count >= len(scores):
        ids = np.arange(len(scores))
    else:
        threshold = np.partition(scores, len(scores) - count)[len(scores) - count]
        ids = np.flatnonzero(scores >= threshold)
    ordered: IdArray = ids[np.argsort(-scores[ids], kind="stable")]
    return ordered


def _nucleus(scores: FloatArray, kept: IdArray, top_p: float) -> IdArray:
    """The fewest likeliest of the kept ids whose share of probability reaches top_p."""
    kept_scores = scores[kept]
    wanted = top_p * np.exp(kept_scores).sum()
    look = _FIRST_LOOK
    while True:
        order = likeliest(kept_scores, look)
        reached = np.cumsum(np.exp(kept_scores[order]))
        if reached[-1] >= wanted or len(order) == len(kept):
            break
        look *= 8
    count = int(np.searchsorted(reached, wanted)) + 1
    return kept[order[:count]]
