"""Where weights of 8 or 4 bits go on a device; products by the kernel, or widened for many tokens.

The table of embeddings, norms, experts and a head that is the table keep the type of activations.
Not here: which blocks a matrix gets.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (its name everywhere)

from gpu_worker.block_reading import read_stacked_blocks
from gpu_worker.blocks import BlockKind, Blocks, FloatArray
from gpu_worker.weight_home import (
    GroupedProduct,
    MatrixSource,
    Product,
    Role,
    WeightHome,
    joined_bias,
)
from kernels.quantised_linear import MOST_TOKENS, quantised_linear
from kernels.quantised_weight import QuantisedWeight
from kernels.widen_weight import widen_weight


class QuantisedHome:
    """WeightHome whose matrices are blocks; what cannot be quantised goes to another home."""

    def __init__(
        self,
        home: WeightHome,
        device: torch.device,
        kind: BlockKind,
        *,
        keep_int8: bool,
        deterministic: bool = False,
    ) -> None:
        """keep_int8: matrices that are not of 4 bits in the file get 8 where `kind` is int4, see
        read_stacked_blocks; the head always does.  deterministic: one kernel and one tile for any
        number of tokens."""
        self._home = home
        self._device = device
        self._kind: BlockKind = kind
        self._keep_int8 = keep_int8
        self._deterministic = deterministic

    def vector(self, values: FloatArray) -> torch.Tensor:
        """See WeightHome."""
        return self._home.vector(values)

    def table(self, rows: FloatArray) -> torch.Tensor:
        """See WeightHome."""
        return self._home.table(rows)

    def matrix(self, role: Role, parts: Sequence[MatrixSource]) -> Product:
        """See WeightHome."""
        if role == "router":  # small, and what it chooses changes all that follows
            return self._home.matrix(role, parts)
        blocks = read_stacked_blocks(
            parts[0].reader,
            [(f"{part.name}.weight", part.shape) for part in parts],
            self._kind,
            keep_int8=self._keep_int8 or role == "head",
        )
        if blocks is None:
            return self._home.matrix(role, parts)
        weight = quantised_weight(blocks, self._device)
        product = _any_count(weight) if self._deterministic else _by_count(weight)
        bias = joined_bias(parts)
        if bias is None:
            return product
        added = self._home.vector(bias)
        return lambda x: product(x) + added

    def experts(self, role: Role, experts: Sequence[Sequence[MatrixSource]]) -> GroupedProduct:
        """See WeightHome: as the other home has them, as no kernel takes blocks of several."""
        return self._home.experts(role, experts)

    def mixture(self, mixed: torch.Tensor) -> torch.Tensor:
        """See WeightHome."""
        return self._home.mixture(mixed)

    def tied_head(self, table: torch.Tensor) -> Product:
        """See WeightHome."""
        return self._home.tied_head(table)


def quantised_weight(blocks: Blocks, device: torch.device) -> QuantisedWeight:
    """Blocks as the kernel takes them."""
    num_outputs = blocks.shape[0]
    bits: Literal[4, 8] = 4 if blocks.kind == "int4" else 8

    def moved(array: np.ndarray[Any, Any]) -> torch.Tensor:
        # A copy, as what lies in a mapped file cannot be written, which torch warns of.
        return torch.from_numpy(np.array(array).reshape(num_outputs, -1)).to(device)

    return QuantisedWeight(
        bits=bits,
        values=moved(blocks.values),
        scale=moved(blocks.scale),
        minimum=moved(blocks.minimum),
    )


def _any_count(weight: QuantisedWeight) -> Product:
    return lambda x: quantised_linear(x, weight, one_tile=True)


def _by_count(weight: QuantisedWeight) -> Product:
    """The kernel for few tokens; for many the library's product of the widened matrix."""

    def product(x: torch.Tensor) -> torch.Tensor:
        if len(x) <= MOST_TOKENS:
            return quantised_linear(x, weight)
        return F.linear(x, widen_weight(weight, x.dtype))

    return product
