"""Partial attention results of a token merged by their log-sum-exps.

A partial row is softmax over a part of a token's context, with the base-2 log of the sum it was
divided by; the whole is their mean weighted by 2 ** lse.  Parts without any visible position have
lse -inf and weight 0.  A token's parts are read in the order given, so its bits depend on nothing
else.  Source: FlashInfer (Ye et al., 2025), the merge of attention states.

Moves num_heads * (head_dim + 1) * 4 bytes a partial row, and head_dim * heads * bytes a token out.
"""

from itertools import pairwise

import torch
import triton
import triton.language as tl

from kernels.compile_case import FUSED, SHORT_DTYPES, CompileCase, CompileCases

_LN_2 = tl.constexpr(0.6931471805599453)


def merge_partials(
    partial_out: torch.Tensor,
    partial_lse: torch.Tensor,
    merge_start: torch.Tensor,
    merge_rows: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None = None,
) -> None:
    """Writes each token that has partial rows; leaves the others as they are.

    partial_out: float32 [partials, heads, head_dim].
    partial_lse: float32 [partials, heads], base 2.
    merge_start, merge_rows: int32, see WorkItems in paged_attention.
    out: [tokens, heads, head_dim]; lse: float32 [tokens, heads], natural log, where wanted.

    Raises:
        ValueError: shapes do not go together.
    """
    _check(partial_out, partial_lse, merge_start, out)
    num_heads, head_dim = out.shape[1:]
    grid = (len(merge_start) - 1, triton.cdiv(num_heads, _block_heads(head_dim)))
    _merge[grid](
        partial_out, partial_lse, merge_start, merge_rows, out,
        partial_lse if lse is None else lse, out.stride(0),
        **_constants(num_heads, head_dim, lse is not None),
        **FUSED,
    )  # fmt: skip


def _constants(num_heads: int, head_dim: int, wants_lse: bool) -> dict[str, object]:
    return {
        "NUM_HEADS": num_heads,
        "HEAD_DIM": head_dim,
        "BLOCK_H": _block_heads(head_dim),
        "BLOCK_D": triton.next_power_of_2(head_dim),
        "WANTS_LSE": wants_lse,
    }


def _block_heads(head_dim: int) -> int:
    """Heads of a program; with more, accumulators spill."""
    return 8 if head_dim <= 128 else 4


@triton.jit
def _merge(
    partial_out, partial_lse, merge_start, merge_rows, out, lse, out_stride,
    NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
    WANTS_LSE: tl.constexpr,
):  # fmt: skip
    """Grid (tokens, blocks of heads)."""
    token = tl.program_id(0)
    begin, end = tl.load(merge_start + token), tl.load(merge_start + token + 1)
    if end <= begin:
        return
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    dim = tl.arange(0, BLOCK_D)
    live = (head < NUM_HEADS)[:, None] & (dim < HEAD_DIM)[None, :]
    largest = tl.full((BLOCK_H,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_H,), tl.float32)
    mixed = tl.zeros((BLOCK_H, BLOCK_D), tl.float32)
    for index in range(begin, end):
        at = tl.load(merge_rows + index).to(tl.int64) * NUM_HEADS + head
        part_lse = tl.load(partial_lse + at, mask=head < NUM_HEADS, other=-float("inf"))
        part = tl.load(partial_out + at[:, None] * HEAD_DIM + dim[None, :], mask=live, other=0.0)
        new_largest = tl.maximum(largest, part_lse)
        finite = tl.where(new_largest == -float("inf"), 0.0, new_largest)
        faded, weight = tl.exp2(largest - finite), tl.exp2(part_lse - finite)
        mixed = mixed * faded[:, None] + weight[:, None] * part
        total = total * faded + weight
        largest = new_largest
    mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]
    place = token.to(tl.int64) * out_stride + head[:, None] * HEAD_DIM + dim[None, :]
    tl.store(out + place, mixed.to(out.dtype.element_ty), mask=live)
    if WANTS_LSE:
        row_lse = tl.where(total > 0, largest + tl.log2(tl.maximum(total, 1e-38)), -float("inf"))
        at = token.to(tl.int64) * NUM_HEADS + head
        tl.store(lse + at, row_lse * _LN_2, mask=head < NUM_HEADS)


def merge_partials_reference(
    partial_out: torch.Tensor,
    partial_lse: torch.Tensor,
    merge_start: torch.Tensor,
    merge_rows: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None = None,
) -> None:
    """The same in plain torch, in the precision of the partial rows."""
    _check(partial_out, partial_lse, merge_start, out)
    bounds = merge_start.tolist()
    for token, (begin, end) in enumerate(pairwise(bounds)):
        if end <= begin:
            continue
        rows = merge_rows[begin:end].long()
        natural = partial_lse[rows] * _LN_2.value
        total = torch.logsumexp(natural, dim=0)
        weights = torch.exp(natural - total.nan_to_num(neginf=0.0))
        out[token] = (weights[..., None] * partial_out[rows]).sum(0).to(out.dtype)
        if lse is not None:
            lse[token] = total.float()


def _check(
    partial_out: torch.Tensor,
    partial_lse: torch.Tensor,
    merge_start: torch.Tensor,
    out: torch.Tensor,
) -> None:
    if partial_out.shape[1:] != out.shape[1:] or partial_lse.shape != partial_out.shape[:2]:
        raise ValueError(
            f"partial rows {tuple(partial_out.shape)}, {tuple(partial_lse.shape)}"
            f" for results {tuple(out.shape)}"
        )
    if len(merge_start) != len(out) + 1:
        raise ValueError(f"merge_start has {len(merge_start)} entries for {len(out)} tokens")


def compile_cases() -> CompileCases:
    """The shapes of paged_attention."""
    shapes = (
        (9, 64, "f32", True),
        (32, 128, "bf16", False),
        (32, 128, "bf16", True),
        (16, 256, "bf16", True),
    )
    for num_heads, head_dim, dtype, wants_lse in shapes:
        yield CompileCase(
                name=f"merge_partials {dtype} H{num_heads} D{head_dim}{' lse' * wants_lse}",
                kernel=_merge,
                types={
                    "partial_out": "*fp32", "partial_lse": "*fp32", "merge_start": "*i32",
                    "merge_rows": "*i32", "out": SHORT_DTYPES[dtype], "lse": "*fp32",
                    "out_stride": "i32",
                },
                constants=_constants(num_heads, head_dim, wants_lse),
            )  # fmt: skip
