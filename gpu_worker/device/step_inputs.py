"""A step's columns as the kernels take them, attention cut into items.

Built in numpy, as one dictionary that travels in one copy; read back as tensors on the device.  A
step in which every row has one token can be filled up to a number of rows and items, so that steps
of many sizes have one shape: rows that nobody asked for read and write the dump slot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from gpu_worker.device.attention_plan import (
    AttentionPlan,
    Cuts,
    IntArray,
    Rows,
    Stem,
    plan_attention,
)
from gpu_worker.device.stem_cost import StemCost, paying
from gpu_worker.step import Step
from kernels.attention_inputs import ITEM_FIELDS, StemItems, WorkItems
from protos.plan import DUMP_SLOT

_DECODE_BLOCK = 16
_PROMPT_BLOCK = 64
SPLIT = 512
"""Positions of an item at most.  Part of the bits: a token's cuts are multiples of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """All on the device; integers are int32."""

    token_ids: torch.Tensor
    """[num_tokens]"""
    token_rows: torch.Tensor
    """[num_tokens] row of each in the table of slots."""
    positions: torch.Tensor
    """[num_tokens]"""
    out_slots: torch.Tensor
    """[num_tokens]"""
    page_table: torch.Tensor
    """Slots of all rows, row after row."""
    work: Mapping[int, tuple[WorkItems, ...]]
    """For each window of the model: items of decodes, and of prompts, whose tiles are larger; those
    that there are."""
    logit_tokens: torch.Tensor
    """[num_logits] places of the tokens whose logits are wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutSizes:
    """Fixed for a model."""

    groups: int
    """Query heads of a KV head."""
    split: int = SPLIT
    windows: tuple[int, ...] = (0,)
    """Those that layers have, each once; 0: a layer without."""
    stems: StemCost | None = None
    """Which stems are read once for all their rows; None: none."""
    enough_items: int = 0
    """Items of a step's prompts that fill the device: contexts are cut into no more parts than that
    takes, as the partial results of thousands of tokens would be gigabytes to write and to read.
    0: they are cut like those of decodes, so that a token's bits do not depend on its company."""
    one_block: bool = False
    """Decodes have the block of prompts, too: products in another one may add up otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Attention of some rows within a window."""

    window: int
    cuts: Cuts
    plan: AttentionPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class StepColumns:
    """A step on the host."""

    tokens: Mapping[str, IntArray]
    """The columns of StepInputs by their names."""
    work: tuple[Work, ...]

    @property
    def num_items(self) -> int:
        """Of the attention that has most."""
        return max((len(work.plan.items) for work in self.work), default=0)

    @property
    def num_stem_items(self) -> int:
        """Of the attention that has most."""
        return max((len(work.plan.stem_items) for work in self.work), default=0)

    @property
    def num_partials(self) -> int:
        """Of the attention that has most."""
        return max((work.plan.num_partials for work in self.work), default=0)

    def columns(self) -> dict[str, IntArray]:
        """What `step_inputs` needs to find on the device."""
        columns = dict(self.tokens)
        for index, work in enumerate(self.work):
            columns[f"items {index}"] = work.plan.items
            columns[f"num_items {index}"] = np.array([work.plan.num_items], np.int32)
            if len(work.plan.stem_items):
                columns[f"stem_items {index}"] = work.plan.stem_items
                columns[f"num_stem_items {index}"] = np.array([work.plan.num_stem_items], np.int32)
            columns[f"merge_start {index}"] = work.plan.merge_start
            columns[f"merge_rows {index}"] = work.plan.merge_rows
        return columns

    def filled(self, num_items: int, num_stem_items: int, num_partials: int) -> StepColumns:
        """The same with room for so many items and partial rows in each attention, and for items
        of stems where there may be any."""

        def larger(work: Work) -> Work:
            plan = work.plan
            filled = replace(
                plan,
                items=_filled(plan.items, num_items),
                stem_items=_filled(plan.stem_items, 0 if work.window else num_stem_items),
                merge_rows=_filled(plan.merge_rows, num_partials),
                num_partials=num_partials,
            )
            return replace(work, plan=filled)

        return replace(self, work=tuple(map(larger, self.work)))


def step_columns(
    step: Step, sizes: CutSizes, table_width: int, *, fill_to: int = 0, dump_row: int = 0
) -> StepColumns:
    """A step in numpy.

    table_width: slots of a row in the table of slots.
    fill_to: rows that a step of single tokens and single logits is filled up to, by rows of one
    token in the dump slot, which is the whole context of `dump_row`.
    """
    num_more = max(0, fill_to - len(step.rows))
    rows = Rows(
        first_query=_column([row.first_token for row in step.rows], num_more, 0),
        num_queries=_column([row.extend_len for row in step.rows], num_more, 1),
        length=_column([row.length for row in step.rows], num_more, 1),
        table_offset=_column([row.row * table_width for row in step.rows], num_more, 0),
    )
    if num_more:
        rows.first_query[-num_more:] = np.arange(len(step.rows), fill_to)
        rows.table_offset[-num_more:] = dump_row * table_width
    places = np.arange(len(step.token_ids))
    wanted = [places[row.logit_tokens] for row in step.rows]
    wanted.append(np.arange(len(step.rows), len(step.rows) + num_more))
    row_of = np.repeat([row.row for row in step.rows], rows.num_queries[: len(step.rows)])
    tokens = {
        "token_ids": _column(step.token_ids, num_more, 0),
        "token_rows": _column(row_of, num_more, dump_row),
        "positions": _column(step.positions, num_more, 0),
        "out_slots": _column(step.out_slots, num_more, DUMP_SLOT),
        "logit_tokens": np.concatenate(wanted).astype(np.int32),
    }
    num_tokens = len(tokens["token_ids"])
    return StepColumns(tokens=tokens, work=tuple(_all_work(rows, step.stems, sizes, num_tokens)))


def step_inputs(
    columns: StepColumns, there: Mapping[str, torch.Tensor], page_table: torch.Tensor
) -> StepInputs:
    """The tensors of a step whose columns lie on the device."""
    work: dict[int, list[WorkItems]] = {each.window: [] for each in columns.work}
    for index, each in enumerate(columns.work):
        work[each.window].append(
            WorkItems(
                items=there[f"items {index}"].view(-1, ITEM_FIELDS),
                num_items=there[f"num_items {index}"],
                merge_start=there[f"merge_start {index}"],
                merge_rows=there[f"merge_rows {index}"],
                num_partials=each.plan.num_partials,
                block_queries=each.cuts.block_queries,
                stems=_stem_items(index, each, there),
            )
        )
    return StepInputs(
        **{name: there[name] for name in columns.tokens},
        page_table=page_table,
        work={window: tuple(items) for window, items in work.items()},
    )


def _stem_items(index: int, work: Work, there: Mapping[str, torch.Tensor]) -> StemItems | None:
    if not len(work.plan.stem_items):
        return None
    return StemItems(
        items=there[f"stem_items {index}"].view(-1, ITEM_FIELDS),
        num_items=there[f"num_stem_items {index}"],
        block_queries=work.cuts.stem_block_queries,
    )


def blocks(groups: int) -> tuple[int, int]:
    """Rows of the score matrix of an item of a decode, and of one of a prompt or a stem.

    groups: query heads of a KV head.
    """
    decode = max(_DECODE_BLOCK, 1 << (groups - 1).bit_length())
    return decode, max(_PROMPT_BLOCK, decode)


def _all_work(rows: Rows, stems: IntArray, sizes: CutSizes, num_tokens: int) -> list[Work]:
    """Rows that decode and rows of prompts apart, for each window."""
    decode_block, prompt_block = blocks(sizes.groups)
    if sizes.one_block:
        decode_block = prompt_block
    is_decode = rows.num_queries <= decode_block // sizes.groups
    found = []
    for block, chosen in ((decode_block, is_decode), (prompt_block, ~is_decode)):
        if not chosen.any():
            continue
        some = Rows(
            first_query=rows.first_query[chosen],
            num_queries=rows.num_queries[chosen],
            length=rows.length[chosen],
            table_offset=rows.table_offset[chosen],
        )
        for window in sizes.windows:
            cuts = Cuts(
                groups=sizes.groups,
                block_queries=block,
                stem_block_queries=prompt_block,
                split=sizes.split if chosen is is_decode else _prompt_split(some, block, sizes),
                window=window,
            )
            shared: Sequence[Stem] = ()
            if sizes.stems is not None and not window and chosen is is_decode:
                shared = paying(_among(stems, is_decode), sizes.stems)
            plan = plan_attention(some, cuts, shared, num_tokens)
            found.append(Work(window=window, cuts=cuts, plan=plan))
    return found


def _prompt_split(rows: Rows, block: int, sizes: CutSizes) -> int:
    """Positions of an item of these prompts at most, a multiple of those of a decode."""
    if not sizes.enough_items:
        return sizes.split
    tile = block // sizes.groups
    num_tiles = int((-(-rows.num_queries // tile)).sum())
    num_parts = -(-sizes.enough_items // num_tiles)
    part = -(-int(rows.length.max()) // num_parts)
    return -(-part // sizes.split) * sizes.split


def _among(stems: IntArray, is_decode: Any) -> list[Stem]:
    """A step's stems in places among the rows that decode, which all of their rows do."""
    place = np.cumsum(is_decode) - 1
    return [
        Stem(first, num_rows, begin, end)
        for first, (_, num_rows, begin, end) in zip(
            place[stems[:, 0]].tolist(), stems.tolist(), strict=True
        )
    ]


def _filled(column: IntArray, size: int) -> IntArray:
    filled = np.zeros((size, *column.shape[1:]), np.int32)
    filled[: len(column)] = column
    return filled


def _column(values: Sequence[int] | IntArray, num_more: int, value: int) -> IntArray:
    column = np.full(len(values) + num_more, value, np.int32)
    column[: len(values)] = values
    return column
