"""A model whose next token is known in closed form, as weights of a Llama and as a rule of ten
lines, so that engines with and without a neural network can be held against each other.

The token t that follows is the one with the largest sum, over heads h and the tokens x of the
context, of  w_h(distance to x) * liking_h(t, x).  The weights w_h are a softmax of SHARPNESS times
the sum over f of cos((distance - PEAKS[h]) * theta_f): what rotary attention with constant queries
and keys comes to.  So the token depends on each token of the context and on its place, and a slot
that holds another one, or one from another place, shows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gpu_worker.blocks import FloatArray
from gpu_worker.fake_model import Constraints
from gpu_worker.model_config import ModelConfig
from protos.plan import SamplingParams
from tests.gpu_worker.random_models import RandomWeights, shape

VOCAB = 16
HEAD_DIM = 16
PEAKS = (1, 4)
"""Distances that the heads look at most."""
SHARPNESS = 0.25
CONFIG: ModelConfig = shape(
    vocab_size=VOCAB,
    hidden_size=48,
    intermediate_size=32,
    num_layers=1,
    num_heads=len(PEAKS),
    num_kv_heads=1,
    head_dim=HEAD_DIM,
    tied_embeddings=False,
)
LIKING = np.random.default_rng(11).normal(size=(len(PEAKS), VOCAB, VOCAB))
"""[heads, next token, token of the context]"""
LIKING[0] -= 3 * np.eye(VOCAB)  # no token follows itself for long

_THETA = CONFIG.rope_theta ** (-2.0 * np.arange(HEAD_DIM // 2) / HEAD_DIM)
_CONSTANT, _TOKEN, _OUTPUT = 0, 1, 1 + VOCAB
"""Where in the hidden state: a constant, the token as a unit vector, what attention adds."""


@dataclass(kw_only=True)
class RecallingModel:
    """The rule, where FakeEngine takes a FakeModel; greedy only."""

    vocab_size: int = VOCAB
    eos_token_ids: tuple[int, ...] = ()
    eos_every: int = 0
    margins: list[float] = field(default_factory=list)
    """By how much each token was ahead of the next best."""

    def next_token(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sampling: SamplingParams,
        constraints: Constraints,
    ) -> int:
        if not all(0 <= token < VOCAB for token in tokens):
            return 0  # of a slot that nobody wrote
        distance = len(tokens) - 1 - np.array(positions)
        scores = np.zeros(VOCAB)
        for peak, liking in zip(PEAKS, LIKING, strict=True):
            weight = np.exp(SHARPNESS * np.cos((distance[:, None] - peak) * _THETA).sum(-1))
            scores += liking[:, list(tokens)] @ (weight / weight.sum())
        second, first = np.sort(scores)[-2:]
        self.margins.append(float(first - second))
        return int(scores.argmax())


class RecallingWeights(RandomWeights):
    """WeightReader of the same; the feed-forward part adds nothing."""

    def read(self, name: str, shape: tuple[int, ...]) -> FloatArray:
        if len(shape) == 1:
            return np.ones(shape, np.float32)
        matrix = np.zeros(shape, np.float32)
        part = name.removeprefix("model.layers.0.").removesuffix(".weight")
        _FILLS.get(part, lambda _: None)(matrix)
        return matrix


def _embedding(matrix: FloatArray) -> None:
    matrix[:, _CONSTANT] = 1
    matrix[:, _TOKEN : _TOKEN + VOCAB] = np.eye(VOCAB)


_RMS = math.sqrt(2 / CONFIG.hidden_size + CONFIG.norm_eps)
"""Of every row of the embedding; weights that read a normed state undo it."""
_LENGTH = math.sqrt(SHARPNESS * math.sqrt(HEAD_DIM)) * _RMS
"""Of each pair of a query and of a key, so that their product over sqrt(HEAD_DIM) is SHARPNESS."""


def _queries(matrix: FloatArray) -> None:
    for head, peak in enumerate(PEAKS):
        pairs = matrix[head * HEAD_DIM : (head + 1) * HEAD_DIM, _CONSTANT].reshape(2, -1)
        pairs[:] = _LENGTH * np.stack([np.cos(peak * _THETA), -np.sin(peak * _THETA)])


def _keys(matrix: FloatArray) -> None:
    matrix[: HEAD_DIM // 2, _CONSTANT] = _LENGTH


def _values(matrix: FloatArray) -> None:
    matrix[:, _TOKEN : _TOKEN + VOCAB] = _RMS * np.eye(VOCAB)


def _attention_out(matrix: FloatArray) -> None:
    matrix[_OUTPUT : _OUTPUT + VOCAB] = np.concatenate(LIKING, axis=1)


def _head(matrix: FloatArray) -> None:
    matrix[:, _OUTPUT : _OUTPUT + VOCAB] = np.eye(VOCAB)


_FILLS = {
    "model.embed_tokens": _embedding,
    "self_attn.q_proj": _queries,
    "self_attn.k_proj": _keys,
    "self_attn.v_proj": _values,
    "self_attn.o_proj": _attention_out,
    "lm_head": _head,
}
