"""Where a rank's weights go: wherever the backend puts them, with what ranks do together behind.

Not here: which part of a matrix a rank holds (sharded_weights), products.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from gpu_worker.blocks import FloatArray
from gpu_worker.parallel.collectives import Collectives
from gpu_worker.parallel.shard import Shard
from gpu_worker.weight_home import GroupedProduct, MatrixSource, Product, Role, WeightHome


class ShardedHome:
    """WeightHome on a reader of ShardedWeights.

    Products of roles attention_out, down and head are whole on every rank, and have the same bits
    there; those of the others are the rank's own part.
    """

    def __init__(self, home: WeightHome, shard: Shard, collectives: Collectives) -> None:
        """`home`: the backend's own."""
        self._home = home
        self._shard = shard
        self._collectives = collectives

    def vector(self, values: FloatArray) -> torch.Tensor:
        """See WeightHome."""
        return self._home.vector(values)

    def table(self, rows: FloatArray) -> torch.Tensor:
        """See WeightHome: whole on every rank, so that embedding a token is no meeting."""
        return self._home.table(rows)

    def matrix(self, role: Role, parts: Sequence[MatrixSource]) -> Product:
        """See WeightHome."""
        if role == "head":
            (whole,) = parts
            num_tokens, hidden_size = whole.shape
            own = replace(whole, shape=(len(self._shard.stretch(num_tokens)), hidden_size))
            return self._joined(self._home.matrix(role, [own]), num_tokens)
        product = self._home.matrix(role, parts)
        if role in ("attention_out", "down"):
            return lambda x: self._collectives.sum(product(x))
        return product

    def experts(self, role: Role, experts: Sequence[Sequence[MatrixSource]]) -> GroupedProduct:
        """See WeightHome: this rank's part of every expert, of down as well."""
        return self._home.experts(role, experts)

    def mixture(self, mixed: torch.Tensor) -> torch.Tensor:
        """See WeightHome.  Summed here and not expert by expert, as a token has several."""
        return self._collectives.sum(self._home.mixture(mixed))

    def tied_head(self, table: torch.Tensor) -> Product:
        """See WeightHome: of this rank's tokens, a view of the table."""
        own = self._shard.stretch(len(table))
        return self._joined(self._home.tied_head(table[own.start : own.stop]), len(table))

    def _joined(self, product: Product, num_tokens: int) -> Product:
        return lambda x: self._collectives.join_columns(product(x), num_tokens)
