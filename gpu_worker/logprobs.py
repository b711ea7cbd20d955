"""Log probabilities of one sampled token and of the likeliest others.

Of the raw distribution: log softmax of the model's logits, before penalties, temperature and cuts.
A function of one row's logits alone, so that company, chunks and cache change no bit of it.
"""

from array import array

import numpy as np

from gpu_worker.sampler import FloatArray, likeliest
from protos.plan import LogprobColumns


class LogprobRecorder:
    """Collects the columns of one step, row after row."""

    def __init__(self) -> None:
        self._chosen = array("f")
        self._top_ids = array("i")
        self._top_logprobs = array("f")

    def add(self, logits: FloatArray, token_id: int, num_top: int) -> None:
        """Adds the token that a row with these raw logits [vocab] took, and `num_top` others."""
        logprobs = log_softmax(logits)
        self._chosen.append(logprobs[token_id])
        if num_top:
            top = likeliest(logprobs, num_top)[:num_top]
            self._top_ids.extend(top.tolist())
            self._top_logprobs.extend(logprobs[top].tolist())

    def columns(self) -> LogprobColumns | None:
        """What was added; None when nothing was."""
        if not self._chosen:
            return None
        return LogprobColumns(
            chosen=self._chosen, top_ids=self._top_ids, top_logprobs=self._top_logprobs
        )


def log_softmax(logits: FloatArray) -> FloatArray:
    """[vocab] in fp64, none above 0.

    As in the sampler, NaN counts as -inf.  Where the largest logit is infinite, the tokens that
    have it share the probability; without any finite logit nothing has one.
    """
    scores = np.nan_to_num(logits.astype(np.float64), nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    top = scores.max()
    if top == -np.inf:
        return scores
    if top == np.inf:
        scores = np.where(scores == np.inf, 0.0, -np.inf)
    else:
        scores -= top
    scores -= np.log(np.exp(scores).sum())
    return scores
