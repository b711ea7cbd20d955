"""Where weights go on a device: its memory, in one type; products by torch, or by a kernel that
gives a row the same bits in any company."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (its name everywhere)

from gpu_worker.blocks import FloatArray
from gpu_worker.weight_home import (
    GroupedProduct,
    MatrixSource,
    Product,
    Role,
    by_loop,
    joined_bias,
)
from kernels.linear import linear
from protos.errors import ModelError

_GROUPED_MAJORS = (9, 10)
"""Of the compute capabilities that torch has a grouped product for; elsewhere it goes from run to
run, whose ends it asks the device for."""
_WHOLE_ROWS = 64
"""A head has a multiple of so many outputs: rows of logits that do not begin at multiples of 16
bytes keep libraries from their fast products, and vocabularies are often odd."""
_ALIGNMENT = 16
"""Bytes that rows of a grouped product must be whole multiples of."""


def runs_stay_there(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the library multiplies runs of rows without asking on the host where they end."""
    if device.type == "cpu":
        return True
    is_nvidia = torch.version.hip is None
    return is_nvidia and dtype == torch.bfloat16 and _major(device) in _GROUPED_MAJORS


def _major(device: torch.device) -> int:
    return int(torch.cuda.get_device_capability(device)[0])


class DeviceHome:
    """WeightHome on a device."""

    def __init__(
        self, device: torch.device, dtype: torch.dtype, *, deterministic: bool = False
    ) -> None:
        """deterministic: a row's bits do not depend on the rows beside it.  Experts are then
        multiplied one after the other, which waits for the device."""
        self._device = device
        self._dtype = dtype
        self._deterministic = deterministic

    def vector(self, values: FloatArray) -> torch.Tensor:
        """See WeightHome."""
        return torch.from_numpy(values).to(self._device, self._dtype)

    def table(self, rows: FloatArray) -> torch.Tensor:
        """See WeightHome; it may be a head as well."""
        return self._whole_rows(self.vector(rows))

    def matrix(self, role: Role, parts: Sequence[MatrixSource]) -> Product:
        """See WeightHome."""
        weight, bias = self._joined(parts), joined_bias(parts)
        if role == "head" and bias is None:
            return self.tied_head(self._whole_rows(weight))
        return self._product(weight, None if bias is None else self.vector(bias))

    def experts(self, role: Role, experts: Sequence[Sequence[MatrixSource]]) -> GroupedProduct:
        """See WeightHome."""
        if self._deterministic:
            return by_loop([self.matrix(role, parts) for parts in experts])
        shape = (sum(part.shape[0] for part in experts[0]), experts[0][0].shape[1])
        odd = [size for size in shape if size * self._dtype.itemsize % _ALIGNMENT]
        if odd:
            problem = f"experts of {odd[0]} inputs or outputs are not whole 16 bytes"
            raise ModelError(experts[0][0].name, problem)
        weights = torch.empty(len(experts), *shape, dtype=self._dtype, device=self._device)
        for weight, parts in zip(weights, experts, strict=True):
            weight.copy_(self._joined(parts))  # one after the other: they fill most of the memory
        turned = weights.transpose(1, 2)
        return lambda x, ends: F.grouped_mm(x, turned, offs=ends)

    def mixture(self, mixed: torch.Tensor) -> torch.Tensor:
        """See WeightHome."""
        return mixed

    def tied_head(self, table: torch.Tensor) -> Product:
        """See WeightHome: the same memory, with the rows behind it that make its number whole."""
        num_rows, size = table.shape
        more = -num_rows % _WHOLE_ROWS
        there = table.untyped_storage().nbytes() // table.element_size()
        if self._deterministic or table.storage_offset() + (num_rows + more) * size > there:
            return self._product(table, None)
        product = self._product(table.as_strided((num_rows + more, size), (size, 1)), None)
        return lambda x: product(x)[:, :num_rows]

    def _whole_rows(self, table: torch.Tensor) -> torch.Tensor:
        """The same with memory behind it for rows of zeros."""
        num_rows, size = table.shape
        if self._deterministic or num_rows % _WHOLE_ROWS == 0:
            return table
        room = table.new_zeros(num_rows + -num_rows % _WHOLE_ROWS, size)
        room[:num_rows] = table
        return room[:num_rows]

    def _product(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
        multiply = linear if self._deterministic else F.linear
        return lambda x: multiply(x, weight, bias)

    def _joined(self, parts: Sequence[MatrixSource]) -> torch.Tensor:
        return self.vector(np.concatenate([part.read() for part in parts]))
