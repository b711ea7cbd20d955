"""Where weights go on the CPU, and products by torch; see ops for what they promise of bits."""

from collections.abc import Sequence

import numpy as np
import torch

from gpu_worker import ops
from gpu_worker.blocks import FloatArray
from gpu_worker.weight_home import (
    GroupedProduct,
    MatrixSource,
    Product,
    Role,
    by_loop,
    joined_bias,
)


class TorchHome:
    """WeightHome in fp32, matrices packed."""

    def vector(self, values: FloatArray) -> torch.Tensor:
        """See WeightHome."""
        return torch.from_numpy(values)

    def table(self, rows: FloatArray) -> torch.Tensor:
        """See WeightHome."""
        return torch.from_numpy(rows)

    def matrix(self, role: Role, parts: Sequence[MatrixSource]) -> Product:
        """See WeightHome."""
        arrays = [part.read() for part in parts]
        matrix = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        return ops.Linear(matrix, joined_bias(parts))

    def experts(self, role: Role, experts: Sequence[Sequence[MatrixSource]]) -> GroupedProduct:
        """See WeightHome."""
        return by_loop([self.matrix(role, parts) for parts in experts])

    def mixture(self, mixed: torch.Tensor) -> torch.Tensor:
        """See WeightHome."""
        return mixed

    def tied_head(self, table: torch.Tensor) -> Product:
        """See WeightHome."""
        return ops.Linear(table.numpy())
