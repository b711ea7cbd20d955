"""Log probabilities of one chosen token a row, and of the n likeliest, without a softmax in memory.

log softmax of the raw logits in float32.  The likeliest come largest first, lower ids first among
equals; NaN counts as -inf.  Where the largest logit is infinite, the tokens that have it share the
probability; without any finite logit nothing has one.

Moves vocab * 4 bytes a row and pass: 2 passes, and one more for each of the n, which the
second-level cache serves.
"""

import torch
import triton
import triton.language as tl

from kernels.compile_case import FUSED, CompileCase, CompileCases
from kernels.logit_row import load_logits, winner

_BLOCK = 2048
_NUM_WARPS = 8


def logprobs(
    logits: torch.Tensor, chosen: torch.Tensor, num_top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of float32 [rows, vocab]: logprob of `chosen` [rows], ids and logprobs [rows, num_top].

    chosen: int32 [rows], each within the vocabulary.  num_top: 0..vocab.

    Raises:
        ValueError: shapes or types do not go together, or num_top is more than the vocabulary.
    """
    _check(logits, chosen, num_top)
    num_rows, vocab_size = logits.shape
    of_chosen = logits.new_empty(num_rows)
    top_ids = chosen.new_empty(num_rows, num_top)
    top = logits.new_empty(num_rows, num_top)
    if num_rows:
        _logprobs[(num_rows,)](
            logits, chosen, of_chosen, top_ids, top, logits.stride(0), vocab_size, num_top,
            BLOCK=_BLOCK, num_warps=_NUM_WARPS,
            **FUSED,
        )  # fmt: skip
    return of_chosen, top_ids, top


# Not specialised: what requests ask for must not be compiled anew while they wait.
@triton.jit(do_not_specialize=["num_top"], do_not_specialize_on_alignment=["chosen"])
def _logprobs(
    logits, chosen, of_chosen, top_ids, top, row_stride, vocab_size, num_top, BLOCK: tl.constexpr
):
    """Grid (rows)."""
    row = tl.program_id(0).to(tl.int64)
    x = logits + row * row_stride
    lane = tl.arange(0, BLOCK)
    largest = tl.full((BLOCK,), -float("inf"), tl.float32)
    for start in range(0, vocab_size, BLOCK):
        largest = tl.maximum(largest, load_logits(x, start + lane, vocab_size))
    highest = tl.max(largest, 0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, vocab_size, BLOCK):
        value = load_logits(x, start + lane, vocab_size)
        total += tl.where(start + lane < vocab_size, tl.exp(_below(value, highest)), 0.0)
    # At least 1 where anything is finite, so that no logprob is above 0.
    norm = tl.log(tl.maximum(tl.sum(total, 0), 1.0))
    own = load_logits(x, tl.load(chosen + row) + tl.zeros((1,), tl.int32), vocab_size)
    tl.store(of_chosen + row + tl.zeros((1,), tl.int32), _below(own, highest) - norm)
    last, last_token = float("inf"), -1
    for rank in range(num_top):
        best = tl.full((BLOCK,), -float("inf"), tl.float32)
        token = tl.full((BLOCK,), 2147483647, tl.int32)
        for start in range(0, vocab_size, BLOCK):
            value = load_logits(x, start + lane, vocab_size)
            at = start + lane
            left = (value < last) | ((value == last) & (at > last_token))
            better = left & (at < vocab_size) & ((value > best) | (token == 2147483647))
            best = tl.where(better, value, best)
            token = tl.where(better, at, token)
        last, last_token = winner(best, token)
        tl.store(top_ids + row * num_top + rank, last_token)
        tl.store(top + row * num_top + rank, _below(last, highest) - norm)


@triton.jit
def _below(value, highest):
    """value - highest, 0 where both are infinity."""
    less = tl.where(value == highest, 0.0, value - highest)
    return tl.where(highest == -float("inf"), -float("inf"), less)


def logprobs_reference(
    logits: torch.Tensor, chosen: torch.Tensor, num_top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same in plain torch and float64."""
    _check(logits, chosen, num_top)
    x = logits.double().nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    highest = x.max(-1, keepdim=True).values
    below = torch.where(x == highest, 0.0, x - highest)
    below = torch.where(highest == -torch.inf, -torch.inf, below)
    norm = torch.log(torch.exp(below).sum(-1, keepdim=True).clamp_min(1.0))
    result = (below - norm).float()
    order = torch.sort(x, dim=-1, descending=True, stable=True).indices[:, :num_top]
    of_chosen = result.gather(1, chosen.long()[:, None])[:, 0]
    return of_chosen, order.to(torch.int32), result.gather(1, order)


def _check(logits: torch.Tensor, chosen: torch.Tensor, num_top: int) -> None:
    if logits.ndim != 2 or logits.dtype != torch.float32 or logits.stride(1) != 1:
        raise ValueError(f"logits {tuple(logits.shape)} {logits.dtype}: not float32 [rows, vocab]")
    if chosen.shape != (len(logits),) or chosen.dtype != torch.int32:
        raise ValueError(f"chosen {tuple(chosen.shape)} {chosen.dtype}: not int32 [rows]")
    if not 0 <= num_top <= logits.shape[1]:
        raise ValueError(f"num_top {num_top} of a vocabulary of {logits.shape[1]}")


def compile_cases() -> CompileCases:
    """Neither vocabulary nor num_top is a constant."""
    yield CompileCase(
        name="logprobs",
        kernel=_logprobs,
        types={
            "logits": "*fp32", "chosen": "*i32", "of_chosen": "*fp32", "top_ids": "*i32",
            "top": "*fp32", "row_stride": "i32", "vocab_size": "i32", "num_top": "i32",
        },
        constants={"BLOCK": _BLOCK},
        num_warps=_NUM_WARPS,
        any_size=frozenset({"num_top"}),
    )  # fmt: skip
