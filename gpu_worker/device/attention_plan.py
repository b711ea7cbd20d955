"""How a batch is cut into the work items of the paged attention kernel.  Numpy, no tensors.

Every context is cut at multiples of one fixed `split`, so that a token's cuts, and with them its
bits, do not depend on its company; a shared stem adds cuts where it begins and ends.  A step of 256
rows and 32 000 positions each takes about a millisecond to plan, while the step before computes.
Not here: what the items are for (kernels/paged_attention.py), which rows share a stem.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels.attention_inputs import ITEM_FIELDS, NO_PARTIAL, NOT_CAUSAL

IntArray = np.ndarray[Any, np.dtype[np.signedinteger[Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Sequences of a step, [rows] each, in the order of their query tokens."""

    first_query: IntArray
    """Place of its first query token among all of the step."""
    num_queries: IntArray
    length: IntArray
    """Its context with the query tokens, which are the last of it."""
    table_offset: IntArray
    """Where its pages begin in the page table."""

    def __len__(self) -> int:
        return len(self.length)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stem:
    """Positions whose slots neighbouring rows share, and that lie before all their queries."""

    first_row: int
    num_rows: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """Sizes that decide where items end."""

    groups: int
    """Query heads of a KV head."""
    block_queries: int
    """Rows of the score matrix of an item; query tokens of an item times groups at most."""
    split: int
    """In positions."""
    window: int = 0
    """Positions that a query sees; 0: all.  Rows with a window share no stems."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPlan:
    """Arrays as the kernel takes them; see WorkItems in kernels/attention_inputs.py."""

    items: IntArray
    merge_start: IntArray
    merge_rows: IntArray
    num_partials: int
    num_items: int
    """Of `items`, those that are meant."""


def plan_attention(
    rows: Rows, cuts: Cuts, stems: Sequence[Stem] = (), num_tokens: int | None = None
) -> AttentionPlan:
    """The items of rows; those of stems first, stems from the root on.

    num_tokens: of the whole step, where these are not all its rows; the others are not merged.
    """
    covered = np.zeros(len(rows), np.int64)
    parts = []
    for stem in stems:
        members = slice(stem.first_row, stem.first_row + stem.num_rows)
        assert (covered[members] == stem.begin).all(), "stems from the root on, end to begin"
        covered[members] = stem.end
        parts.append(_stem_items(rows, cuts, stem))
    parts.append(_row_items(rows, cuts, covered))
    items = np.concatenate(parts).astype(np.int32)
    if num_tokens is None:
        num_tokens = int((rows.first_query + rows.num_queries).max(initial=0))
    return _numbered(items, num_tokens)


def _stem_items(rows: Rows, cuts: Cuts, stem: Stem) -> IntArray:
    """All queries of a stem's rows against it: nothing of it is hidden from them."""
    last = stem.first_row + stem.num_rows - 1
    first_query = int(rows.first_query[stem.first_row])
    end_query = int(rows.first_query[last] + rows.num_queries[last])
    tile = cuts.block_queries // cuts.groups
    starts = np.arange(first_query, end_query, tile)
    begin, end, tiles = _ranges(
        np.full(len(starts), stem.begin), np.full(len(starts), stem.end), cuts.split
    )
    start = starts[tiles]
    offset = np.full(len(tiles), rows.table_offset[stem.first_row])
    queries = np.minimum(tile, end_query - start)
    position = np.full(len(tiles), NOT_CAUSAL)
    return _stacked(start, queries, offset, begin, end, position, np.ones(len(tiles), bool))


def _row_items(rows: Rows, cuts: Cuts, covered: IntArray) -> IntArray:
    """Each row's queries against what no stem covers of its context."""
    tile = cuts.block_queries // cuts.groups
    num_tiles = -(-rows.num_queries // tile)
    of_row = np.repeat(np.arange(len(rows)), num_tiles)
    nth = np.arange(len(of_row)) - np.repeat(np.cumsum(num_tiles) - num_tiles, num_tiles)
    queries = np.minimum(tile, rows.num_queries[of_row] - nth * tile)
    position = rows.length[of_row] - rows.num_queries[of_row] + nth * tile
    low = covered[of_row].astype(np.int64)
    if cuts.window:
        low = np.maximum(low, position - cuts.window + 1)
    begin, end, tiles = _ranges(low, position + queries, cuts.split)
    is_whole = np.bincount(tiles, minlength=len(of_row)) == 1
    is_part = ~(is_whole & (covered[of_row] == 0))
    return _stacked(
        (rows.first_query[of_row] + nth * tile)[tiles],
        queries[tiles],
        rows.table_offset[of_row][tiles],
        begin,
        end,
        position[tiles],
        is_part[tiles],
    )


def _ranges(low: IntArray, high: IntArray, split: int) -> tuple[IntArray, IntArray, IntArray]:
    """low..high - 1 of each tile cut at multiples of split; begins, ends, and whose they are."""
    first = low // split
    counts = -(-high // split) - first
    tiles = np.repeat(np.arange(len(low)), counts)
    nth = np.arange(len(tiles)) - np.repeat(np.cumsum(counts) - counts, counts)
    begin = np.maximum((first[tiles] + nth) * split, low[tiles])
    end = np.minimum((first[tiles] + nth + 1) * split, high[tiles])
    return begin, end, tiles


def _stacked(
    first_query: IntArray,
    num_queries: IntArray,
    offset: IntArray,
    begin: IntArray,
    end: IntArray,
    position: IntArray,
    is_part: Any,
) -> IntArray:
    """Items whose partial row is yet to be numbered: 0 where they have one."""
    partial = np.where(is_part, 0, NO_PARTIAL)
    unused = np.zeros(len(begin), np.int64)
    return np.stack(
        [first_query, num_queries, offset, begin, end, position, partial, unused], axis=1
    )


def _numbered(items: IntArray, num_tokens: int) -> AttentionPlan:
    """Gives partial items their rows, and each token the list of its own."""
    is_part = items[:, 6] != NO_PARTIAL
    queries = items[is_part, 1].astype(np.int64)
    first_rows = np.cumsum(queries) - queries
    items[is_part, 6] = first_rows
    num_partials = int(queries.sum())
    row = np.arange(num_partials)
    token = np.repeat(items[is_part, 0] - first_rows, queries) + row
    order = np.argsort(token, kind="stable")  # a token's parts stay in the order of the items
    merge_start = np.zeros(num_tokens + 1, np.int32)
    np.cumsum(np.bincount(token, minlength=num_tokens), out=merge_start[1:])
    return AttentionPlan(
        items=items.reshape(-1, ITEM_FIELDS),
        merge_start=merge_start,
        merge_rows=row[order].astype(np.int32),
        num_partials=num_partials,
        num_items=len(items),
    )
