"""Inputs of a step made ready where they lie: tokens that only the device knows, and new slots.

A step may be queued before the one before it has sampled; its tokens "from the step before" are
then read here, from what each row sampled last.  The slots of its tokens join the rows' own.
Moves some 20 bytes a token: a launch, no more.
"""

import torch
import triton
import triton.language as tl

from kernels.compile_case import CompileCase, CompileCases

_BLOCK = 256


def take_inputs(
    token_ids: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    last_tokens: torch.Tensor,
    slot_table: torch.Tensor,
) -> None:
    """Replaces each token id below 0 by its row's last token; writes slots to the rows' places.

    token_ids, rows, positions, slots: int32 [tokens]; no two tokens have the same row and position
    unless they have the same slot, too.
    last_tokens: int32 [rows].  slot_table: int32 [rows, length].

    Raises:
        ValueError: shapes or types do not go together; names which.
    """
    _check(token_ids, rows, positions, slots, last_tokens, slot_table)
    num_tokens = len(token_ids)
    if num_tokens:
        _take[(triton.cdiv(num_tokens, _BLOCK),)](
            token_ids, rows, positions, slots, last_tokens, slot_table, num_tokens,
            slot_table.stride(0), BLOCK=_BLOCK,
        )  # fmt: skip


# Not specialised: a step's number of tokens must not be compiled anew while they wait.
@triton.jit(do_not_specialize=["num_tokens"])
def _take(
    token_ids, rows, positions, slots, last_tokens, slot_table, num_tokens, row_stride,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of tokens)."""
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = token < num_tokens
    row = tl.load(rows + token, mask=live, other=0)
    token_id = tl.load(token_ids + token, mask=live, other=0)
    last = tl.load(last_tokens + row, mask=live, other=0)
    tl.store(token_ids + token, tl.where(token_id < 0, last, token_id), mask=live)
    place = row.to(tl.int64) * row_stride + tl.load(positions + token, mask=live, other=0)
    tl.store(slot_table + place, tl.load(slots + token, mask=live, other=0), mask=live)


def take_inputs_reference(
    token_ids: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    last_tokens: torch.Tensor,
    slot_table: torch.Tensor,
) -> None:
    """The same in plain torch."""
    _check(token_ids, rows, positions, slots, last_tokens, slot_table)
    token_ids.copy_(torch.where(token_ids < 0, last_tokens[rows.long()], token_ids))
    slot_table[rows.long(), positions.long()] = slots


def _check(
    token_ids: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    last_tokens: torch.Tensor,
    slot_table: torch.Tensor,
) -> None:
    columns = {
        "token_ids": token_ids,
        "rows": rows,
        "positions": positions,
        "slots": slots,
    }
    for name, column in columns.items():
        if column.shape != (len(token_ids),) or column.dtype != torch.int32:
            raise ValueError(f"{name} {tuple(column.shape)} {column.dtype}: not int32 [tokens]")
    if slot_table.ndim != 2 or slot_table.stride(1) != 1 or slot_table.dtype != torch.int32:
        raise ValueError(f"slot_table {tuple(slot_table.shape)}: not int32 [rows, length]")
    if last_tokens.shape != (len(slot_table),) or last_tokens.dtype != torch.int32:
        raise ValueError(f"last_tokens {tuple(last_tokens.shape)}: not int32 [{len(slot_table)}]")


def compile_cases() -> CompileCases:
    """No size is a constant."""
    yield CompileCase(
        name="take_inputs",
        kernel=_take,
        types={
            "token_ids": "*i32", "rows": "*i32", "positions": "*i32", "slots": "*i32",
            "last_tokens": "*i32", "slot_table": "*i32", "num_tokens": "i32", "row_stride": "i32",
        },
        constants={"BLOCK": _BLOCK},
        any_size=frozenset({"num_tokens"}),
    )  # fmt: skip
