"""How one row samples: its parameters, and what they need to know of the row's tokens.

All of it is a function of the tokens: a row that comes back with more context, after whatever
happened to it, has the state it would have had.  First each `logit_bias` is added to the raw logit
of its token, then come penalties, then suppression.  Penalties are the textbook ones: the logit of
a token that occurred in prompt or output is divided by `repetition_penalty` where positive and
multiplied where not (Keskar et al., CTRL, 2019); `frequency_penalty` times its count in the output
and `presence_penalty`, if it occurred there at all, are subtracted.  In fp32 and in this order.
Last a grammar leaves the tokens that may follow.  It is above `min_tokens`: where only an end, or a
token that is suppressed, can follow, that follows.
Not here: drawing, log probabilities, slots.
"""

import math
from typing import Any

import numpy as np

from gpu_worker.engine import PlanError
from gpu_worker.row_grammar import RowGrammar
from gpu_worker.step import IntArray
from protos.plan import NewRow

LogitArray = np.ndarray[Any, np.dtype[np.float32]]
IdArray = np.ndarray[Any, np.dtype[np.intp]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]

_LEAST_LOGIT = np.float32(-3e38)
"""Of a token that may follow, even where the model says NaN or -inf."""


class RowSampling:
    """Parameters and history of one live row."""

    __slots__ = (
        "_context_ids",
        "_num_prompt",
        "_output_counts",
        "_seen",
        "_suppressed",
        "_vocab_size",
        "biased",
        "biases",
        "grammar",
        "num_known",
        "params",
    )

    def __init__(self, new: NewRow, vocab_size: int, grammar: RowGrammar | None = None) -> None:
        self.params = new.sampling
        self.grammar = grammar
        self._num_prompt = new.num_prompt
        self._suppressed = np.array(new.suppressed_ids, np.intp)
        self.biased: IdArray = np.array([i for i, _ in self.params.logit_bias], np.intp)
        """Token ids, and what is added to the logit of each."""
        self.biases = np.array([bias for _, bias in self.params.logit_bias], np.float32)
        self.num_known: int | None = None
        """Tokens of the row that are counted; None where neither penalty nor grammar needs them."""
        if self.params.needs_context:
            self.num_known = len(new.context_ids)
        # Counted when the host's sampler first asks for it, which a device's never does.
        self._context_ids = np.asarray(new.context_ids, np.int32)
        self._vocab_size = vocab_size
        self._seen: BoolArray = np.empty(0, np.bool_)  # [vocab] in prompt or output
        self._output_counts: IntArray = np.empty(0, np.int32)

    def record(self, token_id: int) -> None:
        """Counts a token that the row just sampled."""
        if self.num_known is not None:
            self.num_known += 1
        if self.grammar is not None:
            self.grammar.record(token_id)
        if self.params.has_penalties:
            self._count_context()
            self._seen[token_id] = True
            self._output_counts[token_id] += 1

    def record_unseen(self, num_tokens: int) -> None:
        """Counts tokens that the row just sampled and whoever draws keeps a history of.  Its
        grammar is to be told what they are."""
        if self.num_known is not None:
            self.num_known += num_tokens

    @property
    def problem(self) -> str:
        """Why the row cannot go on; empty: it can."""
        return "" if self.grammar is None else self.grammar.problem

    def suppressed(self, length: int) -> IdArray:
        """Ids that may not be sampled where the row's first `length` tokens are computed."""
        is_early = length - self._num_prompt < self.params.min_tokens
        return self._suppressed if is_early else self._suppressed[:0]

    def allowed(self, mask: bytes, length: int) -> BoolArray:
        """[vocab] the tokens in a grammar's mask that are not suppressed; all in it if all
        are."""
        bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
        bits = bits[: self._vocab_size]
        allowed = bits.view(np.bool_)
        kept = allowed.copy()
        kept[self.suppressed(length)] = False
        return kept if kept.any() else allowed

    def adjusted(self, logits: LogitArray, length: int) -> LogitArray:
        """Logits [vocab] of the row's next token after biases, penalties, suppression and grammar;
        its first `length` tokens are computed.  The given array stays as it is."""
        if len(self.biased):
            logits = logits.copy()
            logits[self.biased] += self.biases
        if self.params.has_penalties:
            logits = self._penalized(logits)
        mask = None if self.grammar is None else self.grammar.mask()
        if mask is not None:
            allowed = self.allowed(mask, length)
            least = np.fmax(logits, _LEAST_LOGIT)
            constrained: LogitArray = np.where(allowed, least, np.float32(-np.inf))
            return constrained
        suppressed = self.suppressed(length)
        if len(suppressed):
            logits = logits.copy()
            logits[suppressed] = -np.inf
        return logits

    def _count_context(self) -> None:
        """Counts the tokens that the row came with, once."""
        if len(self._seen):
            return
        self._seen = np.zeros(self._vocab_size, np.bool_)
        self._seen[self._context_ids] = True
        outputs = self._context_ids[self._num_prompt :]
        self._output_counts = np.bincount(outputs, minlength=self._vocab_size).astype(np.int32)

    def _penalized(self, logits: LogitArray) -> LogitArray:
        self._count_context()
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
    if not -1 <= params.prompt_logprobs <= vocab_size:
        raise PlanError(
            f"row {new.row}: {params.prompt_logprobs} alternatives of {vocab_size} tokens"
        )
    biased = [token_id for token_id, _ in params.logit_bias]
    if len(set(biased)) < len(biased) or not all(math.isfinite(b) for _, b in params.logit_bias):
        raise PlanError(f"row {new.row}: an id is biased twice, or a bias is no finite number")
    if not 0 <= params.seed < 1 << 63:
        raise PlanError(f"row {new.row}: seed {params.seed} is not in 0..2**63-1")
    if params.needs_context and not 1 <= new.num_prompt <= len(new.context_ids):
        raise PlanError(
            f"row {new.row}: a prompt of {new.num_prompt} in a context of {len(new.context_ids)}"
        )
    for ids in (new.context_ids, new.suppressed_ids, biased):
        if len(ids) and not 0 <= min(ids) <= max(ids) < vocab_size:
            raise PlanError(
                f"row {new.row}: a context, suppressed or biased id is outside the vocabulary"
            )
