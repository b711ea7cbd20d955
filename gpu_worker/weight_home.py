"""The seam between a model's files and whoever multiplies: where weights go as they are read.

A home gets each matrix as the parts that the files have, unread, and gives a product.  What
lives in one, without a word in the decoder:

    quantised products   `MatrixSource.read_blocks` instead of `read`, where there are blocks
                         (device.quantised_home)
    tensor parallelism   a rank's rows of qkv, gate_up and head, its columns of attention_out and
                         down, from a reader that gives no more; results are summed, or joined for
                         the head; vectors, table and router are whole (parallel.sharded_home).  The
                         pool and the arithmetic then get a configuration with the rank's heads
    determinism          products whose order of sums does not depend on the number of rows
                         (torch_home, device.device_home)

Not here: which matrices a model has (decoder_weights), the products (the homes).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch

from gpu_worker.blocks import Blocks, FloatArray
from gpu_worker.weights import WeightReader

Product = Callable[[torch.Tensor], torch.Tensor]
"""[num_tokens, num_inputs] to [num_tokens, num_outputs] by a matrix, with its bias."""

GroupedProduct = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""[num_rows, num_inputs] to [num_rows, num_outputs] by a matrix for each run of rows; the second
argument, int32 [num_matrices], says where runs end."""

Role = Literal["qkv", "attention_out", "router", "gate_up", "down", "head"]
"""What a matrix is for.  Parts of qkv: queries, keys, values; of gate_up: gate, up; else one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixSource:
    """A matrix in the files, not read yet."""

    reader: WeightReader
    name: str
    """Without `.weight`."""
    shape: tuple[int, int]
    """[num_outputs, num_inputs]"""
    has_bias: bool = False

    def read(self) -> FloatArray:
        """The matrix in fp32.

        Raises:
            ModelError: see WeightReader.
        """
        return self.reader.read(f"{self.name}.weight", self.shape)

    def read_bias(self) -> FloatArray | None:
        """[num_outputs] what is added to its outputs, where it has such.

        Raises:
            ModelError: see WeightReader.
        """
        return self.reader.read(f"{self.name}.bias", self.shape[:1]) if self.has_bias else None

    def read_blocks(self) -> Blocks | None:
        """Its blocks, where the files have such.

        Raises:
            ModelError: see WeightReader.
        """
        return self.reader.read_blocks(f"{self.name}.weight", self.shape)


def joined_bias(parts: Sequence[MatrixSource]) -> FloatArray | None:
    """Biases of all parts, one behind the other, if they have any.

    Raises:
        ModelError: one is missing.
    """
    biases = [bias for part in parts if (bias := part.read_bias()) is not None]
    return np.concatenate(biases) if biases else None


def by_loop(products: Sequence[Product]) -> GroupedProduct:
    """One product after the other, of those that have rows.  Waits for a device."""

    def multiply(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        begins = [0, *ends.tolist()]
        runs = zip(products, begins, begins[1:], strict=False)
        return torch.cat([by(x[begin:end]) for by, begin, end in runs if end > begin])

    return multiply


class WeightHome(Protocol):
    """Where weights go, and who multiplies by them."""

    def vector(self, values: FloatArray) -> torch.Tensor:
        """Weights of a norm."""
        ...

    def table(self, rows: FloatArray) -> torch.Tensor:
        """Embeddings [vocab, hidden], whole."""
        ...

    def matrix(self, role: Role, parts: Sequence[MatrixSource]) -> Product:
        """Outputs of all parts, side by side, with their biases; parts have them all, or none.

        Raises:
            ModelError: a part cannot be read.
        """
        ...

    def experts(self, role: Role, experts: Sequence[Sequence[MatrixSource]]) -> GroupedProduct:
        """A matrix for each expert, see `matrix`; no biases.

        Raises:
            ModelError: a part cannot be read.
        """
        ...

    def mixture(self, mixed: torch.Tensor) -> torch.Tensor:
        """[num_tokens, hidden] of experts' outputs, mixed, made whole: they are, unless experts
        have a part of their inputs each."""
        ...

    def tied_head(self, table: torch.Tensor) -> Product:
        """The head of a model whose head is its table."""
        ...
