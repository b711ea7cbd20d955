"""Attention of a ragged batch over the slot pool: the seam, and its form in plain torch.

Not here: projections, rotary embedding, writing the pool.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (its name everywhere)

from gpu_worker import ops
from gpu_worker.model_config import ModelConfig
from gpu_worker.step import Step, StepRow

_LENGTH_STEP = 64
"""Contexts are padded to a multiple of it, so that decode rows of like length share a call."""
_QUERY_STEP = 4
"""Query rows are padded to a multiple of it: for 1, 2 or 3 the matrix library takes other
routines, and the last bits would depend on the number of queries."""
_QUERY_BLOCK = 32
"""Query rows scored in one product.  With as many as there are keys, or more, the matrix library
turns the product around on some processors, and sums in another order."""
_SCORE_BLOCK = 32
"""Dimensions of a head summed in one product, the blocks being added in order: how longer sums are
split depends, with AVX-512, on the number of queries."""
_VALUE_BLOCK = 128
"""Keys summed in one product with the values.  Longer sums are split by the matrix library in ways
that depend on the length; these blocks are added in order instead."""
_TILE_TOKENS = 128
"""Prompt tokens of one row attended at once: bounds the scores held in memory."""
_GATHER_TOKENS = 8192
"""Context tokens gathered at once for a group of decode rows."""


class AttentionBackend(Protocol):
    """Causal attention of each token of a step over its row's slots."""

    def begin_step(self, step: Step) -> None:
        """Prepares what all layers of the step share."""
        ...

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int = 0
    ) -> torch.Tensor:
        """Attends [num_tokens, heads, head_dim] to one layer's pool; result of the same shape.

        keys, values: [slots, kv_heads, head_dim], with this step's tokens already written.
        window: positions a token sees, itself the last, one of the model's; 0: all.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """Rows of equal padded length whose keys and values are gathered together."""

    gather: torch.Tensor
    """[kv_heads * num_rows * padded_length] rows of the pool flattened to [slots * kv_heads, :]."""
    num_rows: int
    padded_length: int
    tiles: tuple["_Tile", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tile:
    """Queries computed in one go: the same number of tokens of every row of the context."""

    tokens: torch.Tensor
    """[num_rows * num_tokens] places among the tokens of the step, row after row."""
    num_tokens: int
    """Of each row."""
    padded_length: int
    """Context these queries can see, padded; at most that of the context."""
    masks: Mapping[int, torch.Tensor]
    """By window: 0 where visible, else -inf; [1, padded queries, padded_length] for a prompt,
    [kv_heads * num_rows, 1, padded_length] for decode rows."""


class TorchAttention:
    """Gather by index_select, then matrix products with the query group as rows.

    A token's result has the same bits whatever else is in the step and however its prompt was
    chunked: see the constants above, and the tests that hold it.
    """

    def __init__(self, config: ModelConfig) -> None:
        self._num_heads = config.num_heads
        self._num_kv_heads = config.num_kv_heads
        self._num_groups = config.num_groups
        self._head_dim = config.head_dim
        self._windows = config.distinct_windows
        self._scale = config.attention_scale
        self._soft_cap = config.attention_soft_cap
        self._contexts: list[_Context] = []

    def begin_step(self, step: Step) -> None:
        """See AttentionBackend."""
        self._contexts = [self._prompt(row) for row in step.rows if row.extend_len > 1]
        by_length: dict[int, list[StepRow]] = {}
        for row in step.rows:
            if row.extend_len == 1:
                by_length.setdefault(_padded(row.length, _LENGTH_STEP), []).append(row)
        for padded_length, rows in by_length.items():
            size = max(1, _GATHER_TOKENS // padded_length)
            for start in range(0, len(rows), size):
                self._contexts.append(self._decodes(rows[start : start + size], padded_length))

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int = 0
    ) -> torch.Tensor:
        """See AttentionBackend."""
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        flat_keys, flat_values = (pool.view(-1, self._head_dim) for pool in (keys, values))
        for context in self._contexts:
            shape = (self._num_kv_heads * context.num_rows, context.padded_length, self._head_dim)
            row_keys = flat_keys.index_select(0, context.gather).view(shape)
            row_values = flat_values.index_select(0, context.gather).view(shape)
            for tile in context.tiles:
                seen = slice(0, tile.padded_length)
                queries = self._grouped(query.index_select(0, tile.tokens), context.num_rows)
                weights = self._weights(queries, row_keys[:, seen], tile.masks[window])
                mixed = _mixed(weights, row_values[:, seen])
                out.index_copy_(0, tile.tokens, self._ungrouped(mixed, context.num_rows, tile))
        return out

    def _weights(
        self, queries: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """Attention weights [batch, queries, keys]."""
        if not self._soft_cap:
            return torch.softmax(_scores(queries, keys, mask, self._scale), dim=-1)
        unmasked = mask.new_zeros(()).expand(mask.shape)
        scores = ops.soft_cap(_scores(queries, keys, unmasked, self._scale), self._soft_cap)
        return torch.softmax(scores.add_(mask), dim=-1)

    def _grouped(self, query: torch.Tensor, num_rows: int) -> torch.Tensor:
        """[rows * n, heads, D] to [kv_heads * rows, padded n * groups, D]."""
        num_tokens = query.shape[0] // num_rows
        shape = (num_rows, num_tokens, self._num_kv_heads, self._num_groups, self._head_dim)
        num_queries = num_tokens * self._num_groups
        grouped = query.view(shape).permute(2, 0, 1, 3, 4)
        grouped = grouped.reshape(self._num_kv_heads * num_rows, num_queries, self._head_dim)
        return F.pad(grouped, (0, 0, 0, _padded(num_queries, _QUERY_STEP) - num_queries))

    def _ungrouped(self, mixed: torch.Tensor, num_rows: int, tile: _Tile) -> torch.Tensor:
        """The inverse of `_grouped`."""
        mixed = mixed[:, : tile.num_tokens * self._num_groups]
        shape = (self._num_kv_heads, num_rows, tile.num_tokens, self._num_groups, self._head_dim)
        back = mixed.reshape(shape).permute(1, 2, 0, 3, 4)
        return back.reshape(num_rows * tile.num_tokens, self._num_heads, self._head_dim)

    def _prompt(self, row: StepRow) -> _Context:
        """A row that extends by several tokens, alone."""
        tiles = []
        for start in range(0, row.extend_len, _TILE_TOKENS):
            end = min(start + _TILE_TOKENS, row.extend_len)
            padded_length = _padded(row.prefix_len + end, _LENGTH_STEP)
            positions = torch.arange(row.prefix_len + start, row.prefix_len + end)
            of_queries = positions.repeat_interleave(self._num_groups)
            spare = _padded(len(of_queries), _QUERY_STEP) - len(of_queries)
            of_queries = torch.cat([of_queries, of_queries[-1:].expand(spare)])
            tiles.append(
                _Tile(
                    tokens=torch.arange(row.first_token + start, row.first_token + end),
                    num_tokens=end - start,
                    padded_length=padded_length,
                    masks={
                        window: _mask(of_queries, padded_length, window)[None]
                        for window in self._windows
                    },
                )
            )
        padded_length = _padded(row.length, _LENGTH_STEP)
        return _Context(
            gather=self._gather([row], padded_length),
            num_rows=1,
            padded_length=padded_length,
            tiles=tuple(tiles),
        )

    def _decodes(self, rows: list[StepRow], padded_length: int) -> _Context:
        """Rows that extend by one token and have the same padded length."""
        positions = torch.tensor([row.prefix_len for row in rows])
        masks = {
            window: _mask(positions, padded_length, window)[:, None].repeat(
                self._num_kv_heads, 1, 1
            )
            for window in self._windows
        }
        tile = _Tile(
            tokens=torch.tensor([row.first_token for row in rows]),
            num_tokens=1,
            padded_length=padded_length,
            masks=masks,
        )
        return _Context(
            gather=self._gather(rows, padded_length),
            num_rows=len(rows),
            padded_length=padded_length,
            tiles=(tile,),
        )

    def _gather(self, rows: list[StepRow], padded_length: int) -> torch.Tensor:
        # Padding repeats the row's first slot: it is masked, but must hold finite numbers, which no
        # other slot is sure to do.
        slots = np.empty((len(rows), padded_length), np.int64)
        for index, row in enumerate(rows):
            slots[index, : row.length] = row.slots
            slots[index, row.length :] = row.slots[0]
        heads = torch.arange(self._num_kv_heads)[:, None]
        return (torch.from_numpy(slots).view(1, -1) * self._num_kv_heads + heads).view(-1)


def _mixed(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """weights @ values, batched over the first dimension."""
    mixed = torch.bmm(weights[:, :, :_VALUE_BLOCK], values[:, :_VALUE_BLOCK])
    for start in range(_VALUE_BLOCK, values.shape[1], _VALUE_BLOCK):
        block = slice(start, start + _VALUE_BLOCK)
        mixed.baddbmm_(weights[:, :, block], values[:, block])
    return mixed


def _scores(
    queries: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """queries @ keys.T * scale + mask, in products so small that a row's bits depend on the row
    alone."""
    head_dim = queries.shape[-1]
    parts = []
    for first in range(0, queries.shape[1], _QUERY_BLOCK):
        rows = slice(first, first + _QUERY_BLOCK)
        scores = mask[:, rows]
        for start in range(0, head_dim, _SCORE_BLOCK):
            block = slice(start, start + _SCORE_BLOCK)
            of_block = keys[:, :, block].transpose(1, 2)
            scores = torch.baddbmm(scores, queries[:, rows, block], of_block, alpha=scale)
        parts.append(scores)
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _mask(positions: torch.Tensor, padded_length: int, window: int) -> torch.Tensor:
    """[len(positions), padded_length]: 0 up to each position and within its window, else -inf."""
    keys = torch.arange(padded_length)
    hidden = keys > positions[:, None]
    if window:
        hidden |= keys <= positions[:, None] - window
    return torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)


def _padded(size: int, step: int) -> int:
    return -(-size // step) * step
