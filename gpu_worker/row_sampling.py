"""How one row samples: its parameters, and what they need to know of the row's tokens.

All of it is a function of the tokens: a row that comes back with more context, after whatever
happened to it, has the state it would have had.  Penalties are the textbook ones: the logit of a
token that occurred in prompt or output is divided by `repetition_penalty` where positive and
multiplied where not (Keskar et al., CTRL, 2019); `frequency_penalty` times its count in the output
and `presence_penalty`, if it occurred there at all, are subtracted.  In fp32, in this order, on raw
logits.  Not here: drawing, log probabilities, slots.
"""

import math
from typing import Any

import numpy as np

from gpu_worker.engine import PlanError
from protos.plan import NewRow

LogitArray = np.ndarray[Any, np.dtype[np.float32]]
IntArray = np.ndarray[Any, np.dtype[np.int32]]


class RowSampling:
    """Parameters and history of one live row."""

    __slots__ = ("_num_prompt", "_output_counts", "_seen", "_suppressed", "num_known", "params")

    def __init__(self, new: NewRow, vocab_size: int) -> None:
        self.params = new.sampling
        self._num_prompt = new.num_prompt
        self._suppressed = np.array(new.suppressed_ids, np.intp)
        self.num_known: int | None = None
        """Tokens of the row that are counted; None where no penalty needs them."""
        if self.params.needs_context:
            context_ids = np.asarray(new.context_ids, np.int32)
            self.num_known = len(context_ids)
            self._seen = np.zeros(vocab_size, np.bool_)  # in prompt or output
            self._seen[context_ids] = True
            outputs = context_ids[new.num_prompt :]
            self._output_counts = np.bincount(outputs, minlength=vocab_size).astype(np.int32)

    def record(self, token_id: int) -> None:
        """Counts a token that the row just sampled."""
        if self.num_known is not None:
            self.num_known += 1
            self._seen[token_id] = True
            self._output_counts[token_id] += 1

    def adjusted(self, logits: LogitArray, length: int) -> LogitArray:
        """Logits [vocab] of the row's next token after penalties and suppression; its first
        `length` tokens are computed.  The given array stays as it is."""
        if self.num_known is not None:
            logits = self._penalized(logits)
        if len(self._suppressed) and length - self._num_prompt < self.params.min_tokens:
            logits = logits.copy()
            logits[self._suppressed] = -np.inf
        return logits

    def _penalized(self, logits: LogitArray) -> LogitArray:
        params, counts = self.params, self._output_counts
        repetition = np.float32(params.repetition_penalty)
        with np.errstate(over="ignore", invalid="ignore"):  # the sampler bears inf and NaN
            repeated = np.where(logits > 0, logits / repetition, logits * repetition)
        penalized: LogitArray = np.where(self._seen, repeated, logits)
        penalized -= np.float32(params.frequency_penalty) * counts.astype(np.float32)
        penalized -= np.float32(params.presence_penalty) * (counts > 0)
        return penalized


def check_sampling(new: NewRow, vocab_size: int) -> None:
    """Refuses parameters and context that a row cannot sample with.

    Raises:
        PlanError: names the row and what is wrong with it.
    """
    params = new.sampling
    fields = (params.temperature, params.top_p, params.min_p, params.repetition_penalty)
    signed = (params.presence_penalty, params.frequency_penalty)
    if not all(map(math.isfinite, (*fields, *signed))) or min(fields) < 0 or params.top_k < 0:
        raise PlanError(f"row {new.row}: sampling parameters out of range: {params}")
    if params.repetition_penalty == 0 or params.min_tokens < 0:
        raise PlanError(f"row {new.row}: sampling parameters out of range: {params}")
    if not -1 <= params.logprobs <= vocab_size:
        raise PlanError(f"row {new.row}: {params.logprobs} alternatives of {vocab_size} tokens")
    if not 0 <= params.seed < 1 << 63:
        raise PlanError(f"row {new.row}: seed {params.seed} is not in 0..2**63-1")
    if params.needs_context and not 1 <= new.num_prompt <= len(new.context_ids):
        raise PlanError(
            f"row {new.row}: a prompt of {new.num_prompt} in a context of {len(new.context_ids)}"
        )
    for ids in (new.context_ids, new.suppressed_ids):
        if len(ids) and not 0 <= min(ids) <= max(ids) < vocab_size:
            raise PlanError(f"row {new.row}: a context or suppressed id is outside the vocabulary")
