"""Tables of the rotary embedding.  Not here: applying them (see ops.rotate)."""

import math

import numpy as np

from gpu_worker.blocks import FloatArray
from gpu_worker.model_config import Rope, RopeScaling


def rope_tables(
    rope: Rope, head_dim: int, max_length: int, factors: FloatArray | None = None
) -> tuple[FloatArray, FloatArray]:
    """Cosines and sines [max_length, head_dim / 2] in fp32.

    `factors` [head_dim / 2] divide the frequencies; GGUF carries llama3 scaling that way.
    """
    # In fp32 throughout, as the models were trained: more exact angles would be other angles.
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    frequencies = np.zeros_like(exponents)
    if rope.theta:
        frequencies = np.float32(1.0) / np.float32(rope.theta) ** exponents
    if factors is not None:
        frequencies = frequencies / factors
    size = np.float32(1.0)
    if rope.scaling is not None:
        frequencies = _scaled(frequencies, rope.theta, rope.scaling)
        size = np.float32(rope.scaling.attention_factor)
    angles = np.arange(max_length, dtype=np.float32)[:, None] * frequencies.astype(np.float32)
    return np.cos(angles) * size, np.sin(angles) * size


def _scaled(frequencies: FloatArray, theta: float, scaling: RopeScaling) -> FloatArray:
    if scaling.kind == "linear":
        return frequencies / np.float32(scaling.factor)
    if scaling.kind == "yarn":
        return _yarn(frequencies, theta, scaling)
    # llama3: long waves are slowed by the factor, short ones kept, the middle blended.
    turns = scaling.original_max_length * frequencies / np.float32(2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    blended: FloatArray = frequencies / scaling.factor * (1.0 - blend) + frequencies * blend
    return blended


def _yarn(frequencies: FloatArray, theta: float, scaling: RopeScaling) -> FloatArray:
    """Frequencies that turn often enough in the original length are kept, those that hardly turn
    are slowed by the factor, with a ramp over the dimensions between (Peng et al., 2023)."""
    head_dim = 2 * len(frequencies)

    def dimension(turns: float) -> float:
        waves = scaling.original_max_length / (turns * 2 * math.pi)
        return head_dim * math.log(waves) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low or 0.001
    ramp = (np.arange(len(frequencies), dtype=np.float32) - np.float32(low)) / np.float32(width)
    slowed = np.clip(ramp, 0.0, 1.0)
    blended: FloatArray = frequencies / np.float32(scaling.factor) * slowed
    blended = blended + frequencies * (1.0 - slowed)
    return blended
