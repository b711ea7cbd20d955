"""Tables of the rotary embedding.  Not here: applying them (see ops.rotate)."""

import math

import torch

from gpu_worker.model_config import ModelConfig, RopeScaling


def rope_tables(
    config: ModelConfig, max_length: int, factors: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [max_length, head_dim / 2] in fp32.

    `factors` [head_dim / 2] divide the frequencies; GGUF carries llama3 scaling that way.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    if factors is not None:
        frequencies = frequencies / factors
    if config.rope_scaling is not None:
        frequencies = _scaled(frequencies, config.rope_scaling)
    angles = torch.arange(max_length, dtype=torch.float32)[:, None] * frequencies
    return angles.cos(), angles.sin()


def _scaled(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    # llama3: long waves are slowed by the factor, short ones kept, the middle blended.
    turns = scaling.original_max_length * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    blend = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies / scaling.factor * (1.0 - blend) + frequencies * blend
