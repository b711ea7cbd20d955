"""What a request asks of its logits before one is drawn: biases, penalties, suppression, grammar.

In this order, in float32, for a token id of a row:

    biases       logit += bias
    repetition   if it occurred in prompt or output: logit / penalty where positive, else * penalty
                 (Keskar et al., CTRL, 2019)
    frequency    logit -= penalty * times it occurred in the output
    presence     logit -= penalty if it occurred there at all
    suppression  -inf
    grammar      -inf where its bit is 0, else at least LEAST_ALLOWED (a NaN too)

Rows do not see each other.  Moves 2 * vocab * 4 bytes a row, and as much of the history and an
eighth of the mask where there are such.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.compile_case import FUSED, CompileCase, CompileCases

LEAST_ALLOWED = -3e38
"""Of a token that a grammar allows, even where the model says NaN or -inf."""

_LEAST_ALLOWED = tl.constexpr(LEAST_ALLOWED)
_BLOCK = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class IdList:
    """Token ids of rows, those of one row different from each other."""

    start: torch.Tensor
    """int32 [rows + 1]: a row's ids are ids[start[row]:start[row + 1]]."""
    ids: torch.Tensor
    """int32 [n]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjustments:
    """What the rows of a step ask for."""

    history: torch.Tensor
    """int32 [known, vocab]: 2 * times in the output + (1 if in the prompt)."""
    history_row: torch.Tensor
    """int32 [rows] which row of `history` is a row's; below 0: it has no penalties."""
    repetition: torch.Tensor
    """float32 [rows], above 0; 1: none."""
    frequency: torch.Tensor
    presence: torch.Tensor
    masks: torch.Tensor
    """int32 [grammars, ceil(vocab / 32)], the bit of the lowest id the lowest."""
    mask_row: torch.Tensor
    """int32 [rows] which row of `masks` is a row's; below 0: none."""
    biased: IdList
    biases: torch.Tensor
    """float32, one for each id of `biased`."""
    suppressed: IdList


def adjust_logits(logits: torch.Tensor, asked: Adjustments) -> torch.Tensor:
    """Adjusted copy of float32 [rows, vocab]; the given logits stay, for log probabilities.

    Raises:
        ValueError: shapes or types do not go together; names which.
    """
    _check(logits, asked)
    out = torch.empty_like(logits)
    num_rows, vocab_size = logits.shape
    if num_rows:
        _adjust[(num_rows, triton.cdiv(vocab_size, _BLOCK))](
            logits, out, asked.history, asked.history_row, asked.repetition, asked.frequency,
            asked.presence, asked.masks, asked.mask_row, asked.biased.start, asked.biased.ids,
            asked.biases, asked.suppressed.start, asked.suppressed.ids, vocab_size,
            asked.masks.shape[1], BLOCK=_BLOCK,
            **FUSED,
        )  # fmt: skip
    return out


@triton.jit
def _adjust(
    logits, out, history, history_row, repetition, frequency, presence, masks, mask_row,
    bias_start, bias_ids, biases, suppressed_start, suppressed_ids, vocab_size, mask_words,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (rows, blocks of the vocabulary)."""
    row, first = tl.program_id(0), tl.program_id(1) * BLOCK
    token = first + tl.arange(0, BLOCK)
    live = token < vocab_size
    x = tl.load(logits + row.to(tl.int64) * vocab_size + token, mask=live, other=-float("inf"))
    for at in range(tl.load(bias_start + row), tl.load(bias_start + row + 1)):
        x = tl.where(token == tl.load(bias_ids + at), x + tl.load(biases + at), x)
    known = tl.load(history_row + row).to(tl.int64)
    if known >= 0:
        seen = tl.load(history + known * vocab_size + token, mask=live, other=0)
        count = seen >> 1
        penalty = tl.load(repetition + row)
        x = tl.where(seen != 0, tl.where(x > 0, x / penalty, x * penalty), x)
        x = x - tl.load(frequency + row) * count.to(tl.float32)
        x = x - tl.where(count > 0, tl.load(presence + row), 0.0)
    for at in range(tl.load(suppressed_start + row), tl.load(suppressed_start + row + 1)):
        x = tl.where(token == tl.load(suppressed_ids + at), -float("inf"), x)
    mask = tl.load(mask_row + row).to(tl.int64)
    if mask >= 0:
        word = tl.load(masks + mask * mask_words + token // 32, mask=live, other=0)
        kept = tl.where(x > _LEAST_ALLOWED, x, _LEAST_ALLOWED)  # of a NaN this is false
        x = tl.where(((word >> (token % 32)) & 1) != 0, kept, -float("inf"))
    tl.store(out + row.to(tl.int64) * vocab_size + token, x, mask=live)


def adjust_logits_reference(logits: torch.Tensor, asked: Adjustments) -> torch.Tensor:
    """The same in plain torch, row by row."""
    _check(logits, asked)
    out = logits.clone()
    for row, x in enumerate(out):
        begin, end = asked.biased.start[row : row + 2].tolist()
        x[asked.biased.ids[begin:end].long()] += asked.biases[begin:end]
        known = int(asked.history_row[row])
        if known >= 0:
            seen, count = asked.history[known], asked.history[known] >> 1
            penalty = asked.repetition[row]
            x.copy_(torch.where(seen != 0, torch.where(x > 0, x / penalty, x * penalty), x))
            x -= asked.frequency[row] * count
            x -= asked.presence[row] * (count > 0)
        begin, end = asked.suppressed.start[row : row + 2].tolist()
        x[asked.suppressed.ids[begin:end].long()] = -torch.inf
        mask = int(asked.mask_row[row])
        if mask >= 0:
            token = torch.arange(len(x), dtype=torch.int32)
            bits = (asked.masks[mask][(token // 32).long()] >> (token % 32)) & 1
            kept = x.nan_to_num(nan=LEAST_ALLOWED, posinf=torch.inf, neginf=LEAST_ALLOWED)
            x.copy_(torch.where(bits != 0, kept.clamp_min(LEAST_ALLOWED), -torch.inf))
    return out


def _check(logits: torch.Tensor, asked: Adjustments) -> None:
    if logits.ndim != 2 or logits.dtype != torch.float32 or not logits.is_contiguous():
        raise ValueError(f"logits {tuple(logits.shape)} {logits.dtype}: not float32 [rows, vocab]")
    num_rows, vocab_size = logits.shape
    for name in ("history_row", "repetition", "frequency", "presence", "mask_row"):
        if getattr(asked, name).shape != (num_rows,):
            raise ValueError(f"{name} {tuple(getattr(asked, name).shape)}: not [{num_rows}]")
    if asked.history.ndim != 2 or asked.history.shape[1] != vocab_size:
        raise ValueError(f"history {tuple(asked.history.shape)}: not [known, {vocab_size}]")
    if asked.masks.ndim != 2 or asked.masks.shape[1] < -(-vocab_size // 32):
        raise ValueError(f"masks {tuple(asked.masks.shape)} for a vocabulary of {vocab_size}")
    for name in ("biased", "suppressed"):
        if getattr(asked, name).start.shape != (num_rows + 1,):
            raise ValueError(f"{name}.start is not [{num_rows + 1}]")
    if asked.biases.shape != asked.biased.ids.shape:
        raise ValueError(f"{len(asked.biases)} biases for {len(asked.biased.ids)} ids")


def compile_cases() -> CompileCases:
    """The vocabulary is no constant."""
    yield CompileCase(
        name="adjust_logits",
        kernel=_adjust,
        types={
            "logits": "*fp32", "out": "*fp32", "history": "*i32", "history_row": "*i32",
            "repetition": "*fp32", "frequency": "*fp32", "presence": "*fp32", "masks": "*i32",
            "mask_row": "*i32", "bias_start": "*i32", "bias_ids": "*i32", "biases": "*fp32",
            "suppressed_start": "*i32", "suppressed_ids": "*i32", "vocab_size": "i32",
            "mask_words": "i32",
        },
        constants={"BLOCK": _BLOCK},
    )  # fmt: skip
