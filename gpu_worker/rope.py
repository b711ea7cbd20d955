"""Tables of the rotary embedding.  Not here: applying them (see ops.rotate)."""

import math

import numpy as np

from gpu_worker.blocks import FloatArray
from gpu_worker.model_config import ModelConfig, RopeScaling


def rope_tables(
    config: ModelConfig, max_length: int, factors: FloatArray | None = None
) -> tuple[FloatArray, FloatArray]:
    """Cosines and sines [max_length, head_dim / 2] in fp32.

    `factors` [head_dim / 2] divide the frequencies; GGUF carries llama3 scaling that way.
    """
    # In fp32 throughout, as the models were trained: more exact angles would be other angles.
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
    frequencies = np.float32(1.0) / np.float32(config.rope_theta) ** exponents
    if factors is not None:
        frequencies = frequencies / factors
    if config.rope_scaling is not None:
        frequencies = _scaled(frequencies, config.rope_scaling)
    angles = np.arange(max_length, dtype=np.float32)[:, None] * frequencies.astype(np.float32)
    return np.cos(angles), np.sin(angles)


def _scaled(frequencies: FloatArray, scaling: RopeScaling) -> FloatArray:
    if scaling.kind == "linear":
        return frequencies / np.float32(scaling.factor)
    # llama3: long waves are slowed by the factor, short ones kept, the middle blended.
    turns = scaling.original_max_length * frequencies / np.float32(2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    blended: FloatArray = frequencies / scaling.factor * (1.0 - blend) + frequencies * blend
    return blended
