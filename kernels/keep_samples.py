"""What rows sampled, checked against their drafts and kept for the next step.

A row samples after each of its last tokens; all of those but the first are drafts, guesses at what
it samples.  Its samples count as far as the drafts were right, and one more (Leviathan et al., Fast
inference from transformers via speculative decoding, 2023, with drafts that are certain).  The last
one that counts is the row's next input; all that count join its history, for penalties.
Moves some 10 bytes a sample: a launch, no more.
"""

import torch
import triton
import triton.language as tl

from kernels.compile_case import CompileCase, CompileCases


def keep_samples(
    samples: torch.Tensor,
    drafts: torch.Tensor,
    start: torch.Tensor,
    rows: torch.Tensor,
    last_tokens: torch.Tensor,
    history: torch.Tensor,
    history_row: torch.Tensor,
) -> torch.Tensor:
    """How many samples of each row count, int32 [n].

    samples: int32 [samples], row after row.
    drafts: int32 [samples] the row's guess at the same sample; below 0: none, as at a row's last.
    start: int32 [n + 1] a row's samples are samples[start[i]:start[i + 1]], at least one.
    rows: int32 [n] each different, and which of last_tokens [rows] gets its last that counts.
    history: int32 [known, vocab] as in adjust_logits; 2 is added for each that counts.
    history_row: int32 [n]; below 0: none is kept.

    Raises:
        ValueError: shapes or types do not go together; names which.
    """
    _check(samples, drafts, start, rows, history, history_row)
    counts = torch.empty_like(rows)
    if len(rows):
        _keep[(len(rows),)](
            samples, drafts, start, rows, last_tokens, history, history_row, counts,
            history.shape[1], num_warps=1,
        )  # fmt: skip
    return counts


@triton.jit
def _keep(samples, drafts, start, rows, last_tokens, history, history_row, counts, vocab_size):
    """Grid (rows)."""
    index = tl.program_id(0)
    begin, end = tl.load(start + index), tl.load(start + index + 1)
    known = tl.load(history_row + index).to(tl.int64)
    count, last, is_right = 0, 0, 1
    for at in range(begin, end):
        token = tl.load(samples + at)
        counts_too = is_right > 0
        last = tl.where(counts_too, token, last)
        count += is_right
        # Atomic, as every thread runs this and one is to write.
        place = history + tl.where(known >= 0, known, 0) * vocab_size + token
        tl.atomic_add(place, 2, mask=counts_too & (known >= 0))
        is_right = tl.where(counts_too & (tl.load(drafts + at) == token), 1, 0)
    tl.store(last_tokens + tl.load(rows + index), last)
    tl.store(counts + index, count)


def keep_samples_reference(
    samples: torch.Tensor,
    drafts: torch.Tensor,
    start: torch.Tensor,
    rows: torch.Tensor,
    last_tokens: torch.Tensor,
    history: torch.Tensor,
    history_row: torch.Tensor,
) -> torch.Tensor:
    """The same in plain torch, row by row."""
    _check(samples, drafts, start, rows, history, history_row)
    counts = torch.zeros_like(rows)
    for index, row in enumerate(rows.tolist()):
        for at in range(int(start[index]), int(start[index + 1])):
            token = int(samples[at])
            counts[index] += 1
            last_tokens[row] = token
            if history_row[index] >= 0:
                history[history_row[index], token] += 2
            if drafts[at] != token:
                break
    return counts


def _check(
    samples: torch.Tensor,
    drafts: torch.Tensor,
    start: torch.Tensor,
    rows: torch.Tensor,
    history: torch.Tensor,
    history_row: torch.Tensor,
) -> None:
    for name, column, size in (
        ("samples", samples, len(samples)),
        ("drafts", drafts, len(samples)),
        ("start", start, len(rows) + 1),
        ("rows", rows, len(rows)),
        ("history_row", history_row, len(rows)),
    ):
        if column.shape != (size,) or column.dtype != torch.int32:
            raise ValueError(f"{name} {tuple(column.shape)} {column.dtype}: not int32 [{size}]")
    if history.ndim != 2 or history.dtype != torch.int32 or not history.is_contiguous():
        raise ValueError(f"history {tuple(history.shape)}: not int32 [known, vocab]")


def compile_cases() -> CompileCases:
    """No size is a constant."""
    yield CompileCase(
        name="keep_samples",
        kernel=_keep,
        types={
            "samples": "*i32", "drafts": "*i32", "start": "*i32", "rows": "*i32",
            "last_tokens": "*i32", "history": "*i32", "history_row": "*i32", "counts": "*i32",
            "vocab_size": "i32",
        },
        constants={},
        num_warps=1,
        any_size=frozenset({"vocab_size"}),
    )  # fmt: skip
