"""The seam between a model's files and whoever multiplies: where weights go as they are read.

A home gets each matrix as the parts that the files have, unread, and gives a product.  What else
may live in one, without a word in the decoder:

    quantised products   take `MatrixSource.read_blocks` instead of `read`, where there are blocks
    tensor parallelism   of qkv and gate_up keep this rank's rows of every part, so that its heads
                         and its part of the feed-forward are local (`KvPool` and the arithmetic
                         then get a configuration with the local heads); of attention_out and down
                         keep its columns and sum the results over all ranks, bias once; of head
                         keep its rows and join the results; replicate vectors, table and router
    determinism          give products whose order of sums does not depend on the number of rows

Not here: which matrices a model has (decoder_weights), the products (ops, device.device_home).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from gpu_worker.blocks import Blocks, FloatArray
from gpu_worker.weights import WeightReader

Product = Callable[[torch.Tensor], torch.Tensor]
"""[num_tokens, num_inputs] to [num_tokens, num_outputs] by a matrix, with its bias."""

Role = Literal["qkv", "attention_out", "gate_up", "down", "head"]
"""What a matrix is for.  Parts of qkv: queries, keys, values; of gate_up: gate, up; else one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixSource:
    """A matrix in the files, not read yet."""

    reader: WeightReader
    name: str
    """Without `.weight`."""
    shape: tuple[int, int]
    """[num_outputs, num_inputs]"""

    def read(self) -> FloatArray:
        """The matrix in fp32.

        Raises:
            ModelError: see WeightReader.
        """
        return self.reader.read(f"{self.name}.weight", self.shape)

    def read_blocks(self) -> Blocks | None:
        """Its blocks, where the files have such.

        Raises:
            ModelError: see WeightReader.
        """
        return self.reader.read_blocks(f"{self.name}.weight", self.shape)


class WeightHome(Protocol):
    """Where weights go, and who multiplies by them."""

    def vector(self, values: FloatArray) -> torch.Tensor:
        """Weights of a norm."""
        ...

    def table(self, rows: FloatArray) -> torch.Tensor:
        """Embeddings [vocab, hidden], whole."""
        ...

    def matrix(self, role: Role, parts: Sequence[MatrixSource]) -> Product:
        """Outputs of all parts, side by side.

        Raises:
            ModelError: a part cannot be read.
        """
        ...

    def tied_head(self, table: torch.Tensor) -> Product:
        """The head of a model whose head is its table."""
        ...
