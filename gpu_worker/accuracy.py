"""How far one arithmetic of a model is from another: perplexity, agreement, divergence.

Functions of logits and tokens alone.  Not here: which texts, which arithmetics, what is made of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpu_worker.blocks import FloatArray

GATE = 0.01
"""By how much of itself the perplexity may rise for a faster arithmetic to be taken."""
_CHUNK = 32
"""Positions worked on at a time: a vocabulary is long, and nothing is kept of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Of an arithmetic, beside a reference, over the tokens of a text."""

    perplexity: float
    """exp of the mean of -log p(next token); infinite where a logit is not a number."""
    agreement: float
    """Share of positions whose likeliest token is that of the reference."""
    divergence: float
    """Mean over the positions of the Kullback-Leibler divergence from the reference, in nats."""

    def within_gate(self, reference: "Accuracy") -> bool:
        """Whether its perplexity is at most a hundredth above that of the reference."""
        # An arithmetic that yields no number is out even where the reference yields none either.
        return bool(
            np.isfinite(self.perplexity) and self.perplexity <= (1.0 + GATE) * reference.perplexity
        )


def compare(reference: FloatArray, logits: FloatArray, token_ids: Sequence[int]) -> Accuracy:
    """Accuracy of `logits` beside those of a reference, both [num_tokens, vocab].

    Row t holds what is said after token t; the last row predicts no token of the text.
    """
    assert reference.shape == logits.shape, (reference.shape, logits.shape)
    assert len(logits) == len(token_ids) > 1, (len(logits), len(token_ids))
    next_ids = np.asarray(token_ids[1:], np.intp)
    surprise, divergence, num_equal = 0.0, 0.0, 0
    for start in range(0, len(logits), _CHUNK):
        wanted, found = (_log_softmax(each[start : start + _CHUNK]) for each in (reference, logits))
        told = next_ids[start : start + _CHUNK]
        surprise -= float(found[np.arange(len(told)), told].sum(dtype=np.float64))
        num_equal += int((wanted.argmax(axis=-1) == found.argmax(axis=-1)).sum())
        divergence += float((np.exp(wanted) * (wanted - found)).sum(dtype=np.float64))
    with np.errstate(over="ignore"):
        perplexity = float(np.exp(np.float64(surprise) / len(next_ids)))
    return Accuracy(
        perplexity=np.inf if np.isnan(perplexity) else perplexity,
        agreement=num_equal / len(logits),
        divergence=divergence / len(logits),
    )


def _log_softmax(logits: FloatArray) -> FloatArray:
    """[positions, vocab] in fp32: what is asked for is a hundredth."""
    scores: FloatArray = logits - logits.max(axis=-1, keepdims=True)
    scores -= np.log(np.exp(scores).sum(axis=-1, keepdims=True))
    return scores
