"""A matrix in 4 or 8 bits, groups of 32 inputs sharing a scale and a minimum.

A weight is scale * q + minimum.  Not here: arithmetic on it.
"""

from dataclasses import dataclass
from typing import Literal

import torch

GROUP = 32
"""Inputs that share a scale and a minimum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedWeight:
    """A matrix [num_outputs, num_inputs] in groups of 32 inputs."""

    bits: Literal[4, 8]
    values: torch.Tensor
    """8 bits: int8 [num_outputs, num_inputs].  4 bits: uint8 [num_outputs, num_inputs / 2]; byte j
    of a group's 16 holds q of input j in the low nibble and of input 16 + j in the high one."""
    scale: torch.Tensor
    """float16 [num_outputs, num_inputs / 32]"""
    minimum: torch.Tensor
    """float16 [num_outputs, num_inputs / 32]"""

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return self.scale.shape[0], self.scale.shape[1] * GROUP


def check_weight(weight: QuantisedWeight) -> None:
    """Refuses a weight that a kernel would read wrongly.

    Raises:
        ValueError: shapes, types or strides do not go together; names which.
    """
    num_outputs, num_inputs = weight.shape
    held = num_inputs * weight.bits // 8
    dtype = torch.int8 if weight.bits == 8 else torch.uint8
    if weight.values.shape != (num_outputs, held) or weight.values.dtype != dtype:
        raise ValueError(f"values {tuple(weight.values.shape)} {weight.values.dtype}")
    for name in ("values", "scale", "minimum"):
        if not getattr(weight, name).is_contiguous():
            raise ValueError(f"{name} is not contiguous")
    if weight.minimum.shape != weight.scale.shape:
        raise ValueError(
            f"scale {tuple(weight.scale.shape)}, minimum {tuple(weight.minimum.shape)}"
        )


def widened(weight: QuantisedWeight) -> torch.Tensor:
    """Reference: the matrix in float32."""
    num_outputs, num_inputs = weight.shape
    groups = weight.values.view(num_outputs, num_inputs // GROUP, -1)
    if weight.bits == 4:
        groups = torch.cat([groups & 15, groups >> 4], dim=-1)
    scale, minimum = weight.scale.float()[..., None], weight.minimum.float()[..., None]
    return (groups.float() * scale + minimum).view(num_outputs, num_inputs)
