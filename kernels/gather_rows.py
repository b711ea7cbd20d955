"""Rows of a table by number: embeddings of tokens, and the hidden states whose logits are wanted.

The head of a model is its largest matrix; only rows that are sampled or scored go through it.
Moves 2 * size * bytes a row.
"""

import torch
import triton
import triton.language as tl

from kernels.compile_case import FUSED, SHORT_DTYPES, CompileCase, CompileCases

_BLOCK = 1024


def gather_rows(table: torch.Tensor, rows: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
    """table[rows] * factor, in table's type.

    table: [num_rows, size].  rows: int32 [n], each within the table.
    factor: Gemma multiplies embeddings by sqrt(size).

    Raises:
        ValueError: shapes or types do not go together.
    """
    _check(table, rows)
    size = table.shape[1]
    out = table.new_empty(len(rows), size)
    if len(rows):
        grid = (len(rows), triton.cdiv(size, _BLOCK))
        _gather[grid](table, rows, out, table.stride(0), size, factor, BLOCK=_BLOCK, **FUSED)
    return out


@triton.jit
def _gather(table, rows, out, table_stride, size, factor, BLOCK: tl.constexpr):
    """Grid (rows, blocks of size)."""
    index = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(rows + index).to(tl.int64)
    value = tl.load(table + row * table_stride + column, mask=column < size, other=0.0)
    value = (value.to(tl.float32) * factor).to(out.dtype.element_ty)
    tl.store(out + index * size + column, value, mask=column < size)


def gather_rows_reference(
    table: torch.Tensor, rows: torch.Tensor, factor: float = 1.0
) -> torch.Tensor:
    """The same in plain torch."""
    _check(table, rows)
    return (table[rows.long()].float() * factor).to(table.dtype)


def _check(table: torch.Tensor, rows: torch.Tensor) -> None:
    if table.ndim != 2 or table.stride(1) != 1:
        raise ValueError(f"table {tuple(table.shape)}: not [rows, size], rows contiguous")
    if rows.ndim != 1 or rows.dtype != torch.int32:
        raise ValueError(f"rows {tuple(rows.shape)} {rows.dtype}: not int32 [n]")


def compile_cases() -> CompileCases:
    """One for each type; the size is no constant."""
    for dtype in ("f32", "bf16"):
        yield CompileCase(
            name=f"gather_rows {dtype}",
            kernel=_gather,
            types={
                "table": SHORT_DTYPES[dtype], "rows": "*i32", "out": SHORT_DTYPES[dtype],
                "table_stride": "i32", "size": "i32", "factor": "fp32",
            },
            constants={"BLOCK": _BLOCK},
        )  # fmt: skip
