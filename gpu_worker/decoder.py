"""A decoder-only transformer: weights in, logits out, on whatever arithmetic there is.

Not here: the pool's books, sampling, plans; how anything is computed (arithmetic, weight_home).
"""

from typing import Generic, Protocol, TypeVar

import torch

from gpu_worker.arithmetic import Arithmetic
from gpu_worker.decoder_weights import DecoderWeights, Experts, FeedForward, LayerWeights
from gpu_worker.experts import mix_experts

StepT = TypeVar("StepT")
ContraStepT = TypeVar("ContraStepT", contravariant=True)


class StepDecoder(Protocol[ContraStepT]):
    """A model on an arithmetic, in two parts, of which the first may be recorded."""

    def states(self, step: ContraStepT) -> torch.Tensor:
        """Writes the KV of the step's tokens; [num_logits, ...] of those whose logits are wanted,
        in plan order."""
        ...

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Float32 logits [n, vocab] of n states."""
        ...


class Decoder(Generic[StepT]):
    """StepDecoder of our families: computes a step's tokens, ragged and in one go."""

    def __init__(
        self, weights: DecoderWeights, arithmetic: Arithmetic[StepT], vocab_size: int
    ) -> None:
        self._weights = weights
        self._arithmetic = arithmetic
        self._vocab_size = vocab_size

    def states(self, step: StepT) -> torch.Tensor:
        """Writes the KV of the step's tokens; [num_logits, hidden] of those whose logits are
        wanted, in plan order.

        Asks nothing of the device but shapes: a step of the same shapes is the same work.
        """
        arithmetic, weights = self._arithmetic, self._weights
        hidden = arithmetic.embed(weights.embedding, step)
        if not len(hidden):  # a plan that only frees rows
            return hidden
        update: torch.Tensor | None = None
        for index, layer in enumerate(weights.layers):
            update = self._layer(index, layer, step, hidden, update)
        if update is not None:
            hidden += update
        # The head is the largest matrix: only what is sampled or scored goes through it.
        return arithmetic.wanted(hidden, step)

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Float32 logits [n, vocab] of states [n, hidden]."""
        if not len(states):
            return states.new_empty(0, self._vocab_size, dtype=torch.float32)
        arithmetic, weights = self._arithmetic, self._weights
        return arithmetic.logits(weights.head(arithmetic.norm(states, weights.final_norm)))

    def _layer(
        self,
        index: int,
        layer: LayerWeights,
        step: StepT,
        hidden: torch.Tensor,
        update: torch.Tensor | None,
    ) -> torch.Tensor:
        """What the layer adds to `hidden`, to which it adds what the one before left."""
        arithmetic = self._arithmetic
        if update is None:
            normed = arithmetic.norm(hidden, layer.attention_norm)
        else:
            normed = arithmetic.norm(update, layer.attention_norm, hidden)
        query = arithmetic.rotate_and_store(index, layer.qkv(normed), layer.head_norms, step)
        mixed = layer.attention_out(arithmetic.attend(index, query, step))
        if layer.attention_out_norm is not None:
            mixed = arithmetic.norm(mixed, layer.attention_out_norm)
        normed = arithmetic.norm(mixed, layer.mlp_norm, hidden)
        update = self._feed_forward(layer.mlp, normed)
        if layer.mlp_out_norm is not None:
            update = arithmetic.norm(update, layer.mlp_out_norm)
        return update

    def _feed_forward(self, mlp: FeedForward | Experts, x: torch.Tensor) -> torch.Tensor:
        if isinstance(mlp, Experts):
            return mix_experts(x, mlp, self._arithmetic.gated)
        return mlp.down(self._arithmetic.gated(mlp.gate_up(x)))
