"""How a batch is cut into the work items of the paged attention kernel.  Numpy, no tensors.

Every context is cut at multiples of one fixed `split`, so that a token's cuts, and with them its
bits, do not depend on its company; a shared stem adds cuts where it begins and ends.  A step of 256
rows and 32 000 positions each takes about a millisecond to plan, while the step before computes.
Not here: what the items are for (kernels/paged_attention.py), which rows share a stem.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kernels.attention_inputs import ITEM_FIELDS, NO_PARTIAL, NOT_CAUSAL

IntArray = np.ndarray[Any, np.dtype[np.signedinteger[Any]]]

_WINDOW_STEP = 64
"""A row is read from a multiple of these positions on, wherever its window begins.  As many as the
kernel takes at once at most: else a token's sums would begin where its chunk does."""


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


class Stem(NamedTuple):
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
    stem_block_queries: int = 0
    """The same of items over stems; 0: as of the others."""
    window: int = 0
    """Positions that a query sees; 0: all.  Rows with a window share no stems."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPlan:
    """Arrays as the kernel takes them; see WorkItems in kernels/attention_inputs.py."""

    items: IntArray
    """[items, ITEM_FIELDS] of rows."""
    stem_items: IntArray
    """[items, ITEM_FIELDS] of stems."""
    merge_start: IntArray
    merge_rows: IntArray
    num_partials: int
    num_items: int
    """Of `items`, those that are meant."""
    num_stem_items: int
    """Of `stem_items`, those that are meant."""


def plan_attention(
    rows: Rows, cuts: Cuts, stems: Sequence[Stem] = (), num_tokens: int | None = None
) -> AttentionPlan:
    """The items of rows and of stems, which come from the root on.

    num_tokens: of the whole step, where these are not all its rows; the others are not merged.
    """
    ends = [0] * len(rows)  # of what stems cover of each
    for first, num_rows, begin, end in stems:
        members = slice(first, first + num_rows)
        assert ends[members] == [begin] * num_rows, "stems from the root on, end to begin"
        ends[members] = [end] * num_rows
    covered = np.array(ends, np.int64)
    of_stems = _stem_items(rows, cuts, stems)
    items = np.concatenate([of_stems, _row_items(rows, cuts, covered)]).astype(np.int32)
    if num_tokens is None:
        num_tokens = int((rows.first_query + rows.num_queries).max(initial=0))
    return _numbered(items, len(of_stems), num_tokens)


def _stem_items(rows: Rows, cuts: Cuts, stems: Sequence[Stem]) -> IntArray:
    """All queries of each stem's rows against it: nothing of it is hidden from them.

    Items of the same positions lie side by side, so that those who read them do so together.
    """
    tile = (cuts.stem_block_queries or cuts.block_queries) // cuts.groups
    columns = np.array(stems, np.int64).reshape(-1, 4)
    first_row, num_rows, first_position, end_position = columns.T
    last_row = first_row + num_rows - 1
    first_query = rows.first_query[first_row].astype(np.int64)
    end_query = rows.first_query[last_row].astype(np.int64) + rows.num_queries[last_row]
    of_stem, nth = _tiles(end_query - first_query, tile)
    start = first_query[of_stem] + nth * tile
    begin, end, tiles = _ranges(first_position[of_stem], end_position[of_stem], cuts.split)
    order = np.lexsort((begin, of_stem[tiles]))
    begin, end, tiles = begin[order], end[order], tiles[order]
    return _stacked(
        start[tiles],
        np.minimum(tile, end_query[of_stem] - start)[tiles],
        rows.table_offset[first_row][of_stem][tiles],
        begin,
        end,
        np.full(len(tiles), NOT_CAUSAL),
        np.ones(len(tiles), bool),
    )


def _row_items(rows: Rows, cuts: Cuts, covered: IntArray) -> IntArray:
    """Each row's queries against what no stem covers of its context.

    Of prompts the last queries come first: they read most, and a program that begins last should
    not be the one that takes longest.
    """
    tile = cuts.block_queries // cuts.groups
    of_row, nth = _tiles(rows.num_queries, tile)
    position = rows.length[of_row] - rows.num_queries[of_row] + nth * tile
    if len(of_row) > len(rows):
        order = np.argsort(-position, kind="stable")
        of_row, nth, position = of_row[order], nth[order], position[order]
    queries = np.minimum(tile, rows.num_queries[of_row] - nth * tile)
    low = covered[of_row].astype(np.int64)
    if cuts.window:
        first_seen = position - cuts.window + 1
        low = np.maximum(low, first_seen - first_seen % _WINDOW_STEP)
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


def _tiles(num_queries: IntArray, tile: int) -> tuple[IntArray, IntArray]:
    """Queries of each row in tiles: of which row each tile is, and the how manieth of it."""
    num_tiles = -(-num_queries // tile)
    of_row = np.repeat(np.arange(len(num_tiles)), num_tiles)
    return of_row, np.arange(len(of_row)) - np.repeat(np.cumsum(num_tiles) - num_tiles, num_tiles)


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


def _numbered(items: IntArray, num_stem_items: int, num_tokens: int) -> AttentionPlan:
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
    items = items.reshape(-1, ITEM_FIELDS)
    return AttentionPlan(
        items=items[num_stem_items:],
        stem_items=items[:num_stem_items],
        merge_start=merge_start,
        merge_rows=row[order].astype(np.int32),
        num_partials=num_partials,
        num_items=len(items) - num_stem_items,
        num_stem_items=num_stem_items,
    )
