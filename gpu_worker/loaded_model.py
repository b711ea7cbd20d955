"""A model's weights where they are computed with, whoever wrote its code.

Not here: reading them (decoder_weights, foreign), computing with them (decoder).
"""

from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch

from gpu_worker.arithmetic import Arithmetic
from gpu_worker.blocks import FloatArray
from gpu_worker.decoder import Decoder, StepDecoder
from gpu_worker.decoder_weights import DecoderWeights, load_weights
from gpu_worker.model_config import ModelConfig
from gpu_worker.weight_home import WeightHome
from gpu_worker.weights import WeightReader

StepT = TypeVar("StepT")


class LoadedModel(Protocol):
    """Weights, and the decoder that they make on an arithmetic."""

    @property
    def config(self) -> ModelConfig:
        """What it is like; more is known of a foreign model now than its files said."""
        ...

    @property
    def rope_factors(self) -> FloatArray | None:
        """See rope.rope_tables."""
        ...

    def on(self, arithmetic: Arithmetic[StepT]) -> StepDecoder[StepT]:
        """The model on this arithmetic; only the latest of a foreign model's is good."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _OwnModel:
    """Of one of our families."""

    config: ModelConfig
    weights: DecoderWeights

    @property
    def rope_factors(self) -> FloatArray | None:
        return self.weights.rope_factors

    def on(self, arithmetic: Arithmetic[StepT]) -> StepDecoder[StepT]:
        return Decoder(self.weights, arithmetic, self.config.vocab_size)


def load_model(
    config: ModelConfig,
    reader: WeightReader,
    home: WeightHome,
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> LoadedModel:
    """Reads all weights: into their home, or a foreign model onto a device in one type.

    Raises:
        ModelError: a weight cannot be read, or the model cannot be computed.
    """
    if config.foreign_folder is None:
        return _OwnModel(config=config, weights=load_weights(config, reader, home))
    from gpu_worker.foreign.foreign_decoder import ForeignModel  # late: transformers takes seconds

    return ForeignModel(config, device, dtype)
