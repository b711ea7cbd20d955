"""Where weights go on a device: its memory, in one type; products by torch."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (its name everywhere)

from gpu_worker.blocks import FloatArray
from gpu_worker.weight_home import MatrixSource, Product, Role


class DeviceHome:
    """WeightHome on a device."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype

    def vector(self, values: FloatArray) -> torch.Tensor:
        """See WeightHome."""
        return torch.from_numpy(values).to(self._device, self._dtype)

    def table(self, rows: FloatArray) -> torch.Tensor:
        """See WeightHome."""
        return self.vector(rows)

    def matrix(self, role: Role, parts: Sequence[MatrixSource]) -> Product:
        """See WeightHome."""
        arrays = [part.read() for part in parts]
        return self.tied_head(self.vector(np.concatenate(arrays)))

    def tied_head(self, table: torch.Tensor) -> Product:
        """See WeightHome: the same memory."""
        return lambda x: F.linear(x, table)
