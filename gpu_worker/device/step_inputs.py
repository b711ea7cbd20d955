"""A step's columns as the kernels take them: tensors on the device, attention cut into items."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gpu_worker.device.attention_plan import Cuts, Rows, plan_attention
from gpu_worker.row_table import Step, StepRow
from kernels.attention_inputs import WorkItems

IntArray = np.ndarray[Any, np.dtype[np.signedinteger[Any]]]

_DECODE_BLOCK = 16
_PROMPT_BLOCK = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """All on the device; integers are int32."""

    token_ids: torch.Tensor
    """[num_tokens]"""
    positions: torch.Tensor
    """[num_tokens]"""
    out_slots: torch.Tensor
    """[num_tokens]"""
    page_table: torch.Tensor
    """Slots of all rows, row after row."""
    work: tuple[WorkItems, ...]
    """Items of decodes, and of prompts, whose tiles are larger; those that there are."""
    logit_tokens: torch.Tensor
    """[num_logits] places of the tokens whose logits are wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutSizes:
    """Fixed for a model."""

    groups: int
    """Query heads of a KV head."""
    split: int = 512
    """Positions of an item at most.  Part of the bits: a token's cuts are multiples of it."""


def step_inputs(step: Step, sizes: CutSizes, device: torch.device) -> StepInputs:
    """Copies a step to the device."""

    def copied(column: IntArray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(column, np.int32)).to(device)

    lengths = [row.length for row in step.rows]
    offsets = np.cumsum([0, *lengths], dtype=np.int64)[:-1]
    wanted = [
        np.arange(end - row.num_logits, end)
        for row in step.rows
        for end in (row.first_token + row.extend_len,)
    ]
    return StepInputs(
        token_ids=copied(step.token_ids),
        positions=copied(step.positions),
        out_slots=copied(step.out_slots),
        page_table=copied(_joined([row.slots for row in step.rows])),
        work=tuple(
            _work(rows, block, len(step.token_ids), sizes, device)
            for block, rows in _classes(step, offsets, sizes.groups)
        ),
        logit_tokens=copied(_joined(wanted)),
    )


def _classes(
    step: Step, offsets: IntArray, groups: int
) -> list[tuple[int, list[tuple[StepRow, int]]]]:
    """Rows that decode and rows of prompts, with the offsets of their slots; by size of block."""
    placed = list(zip(step.rows, offsets.tolist(), strict=True))
    decode_block = max(_DECODE_BLOCK, 1 << (groups - 1).bit_length())
    few = decode_block // groups
    decodes = [pair for pair in placed if pair[0].extend_len <= few]
    prompts = [pair for pair in placed if pair[0].extend_len > few]
    found = ((decode_block, decodes), (max(_PROMPT_BLOCK, decode_block), prompts))
    return [(block, rows) for block, rows in found if rows]


def _work(
    rows: list[tuple[StepRow, int]],
    block: int,
    num_tokens: int,
    sizes: CutSizes,
    device: torch.device,
) -> WorkItems:
    columns = Rows(
        first_query=np.array([row.first_token for row, _ in rows], np.int32),
        num_queries=np.array([row.extend_len for row, _ in rows], np.int32),
        length=np.array([row.length for row, _ in rows], np.int32),
        table_offset=np.array([offset for _, offset in rows], np.int32),
    )
    cuts = Cuts(groups=sizes.groups, block_queries=block, split=sizes.split)
    plan = plan_attention(columns, cuts, num_tokens=num_tokens)
    return WorkItems(
        items=torch.from_numpy(plan.items).to(device),
        num_items=torch.tensor([len(plan.items)], dtype=torch.int32, device=device),
        merge_start=torch.from_numpy(plan.merge_start).to(device),
        merge_rows=torch.from_numpy(plan.merge_rows).to(device),
        num_partials=plan.num_partials,
        block_queries=block,
    )


def _joined(columns: list[Any]) -> IntArray:
    return np.concatenate(columns) if columns else np.empty(0, np.int32)
