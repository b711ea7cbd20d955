"""What rows ask of a draw, [rows] each, and the temperature below which there is none.

Not here: drawing (`sample`); penalties and masks (`adjust_logits`).
"""

from dataclasses import dataclass

import torch

GREEDY_BELOW = 1e-5
"""Temperatures below it are greedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Parameters of rows, [rows] each."""

    temperature: torch.Tensor
    """float32"""
    top_k: torch.Tensor
    """int32; 0, or the vocabulary and more: no limit."""
    top_p: torch.Tensor
    """float32; from 1 on: no limit."""
    min_p: torch.Tensor
    """float32; 0: no limit."""
    seed: torch.Tensor
    """int64"""
    position: torch.Tensor
    """int32, absolute, of the token that is drawn."""


def check_draw_inputs(logits: torch.Tensor, sampling: Sampling) -> None:
    """Refuses logits other than float32 [rows, vocab], and parameters that are not one a row.

    Raises:
        ValueError: shapes, types or strides do not go together; names which.
    """
    if logits.ndim != 2 or logits.dtype != torch.float32 or logits.stride(1) != 1:
        raise ValueError(f"logits {tuple(logits.shape)} {logits.dtype}: not float32 [rows, vocab]")
    wanted = {"top_k": torch.int32, "seed": torch.int64, "position": torch.int32}
    for name in ("temperature", "top_k", "top_p", "min_p", "seed", "position"):
        column, dtype = getattr(sampling, name), wanted.get(name, torch.float32)
        if column.shape != (len(logits),) or column.dtype != dtype:
            raise ValueError(f"{name} {tuple(column.shape)} {column.dtype}: not {dtype} [rows]")
