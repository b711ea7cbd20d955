"""What the samplers on a device are told of a step: parameters of rows by sampled token.

A row samples after each of its last tokens, as if each draft among them had been sampled (see
BatchPlan.samples); one entry for each.  Numpy; not here: drawing, tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpu_worker.device.row_store import Histories
from gpu_worker.device.transfers import IntArray
from gpu_worker.row_sampling import BoolArray, RowSampling
from gpu_worker.row_table import RowTable
from gpu_worker.step import Step, StepRow
from protos.plan import NewRow

FLOATS = ("temperature", "top_p", "min_p", "repetition", "frequency", "presence")
NO_DRAFT = -1
_NONE = -1


class RowParameters:
    """Parameters of rows, as columns that change only when a row opens."""

    def __init__(self, max_rows: int) -> None:
        self._floats = np.zeros((len(FLOATS), max_rows), np.float32)
        self._top_k = np.zeros(max_rows, np.int32)
        self._seeds = np.zeros(max_rows, np.int64)
        self._is_adjusted = np.zeros(max_rows, np.bool_)
        self._num_top = np.full(max_rows, _NONE, np.int32)

    def open(self, new: NewRow) -> None:
        """Takes a new row's."""
        params, row = new.sampling, new.row
        self._floats[:, row] = (
            params.temperature,
            params.top_p,
            params.min_p,
            params.repetition_penalty,
            params.frequency_penalty,
            params.presence_penalty,
        )
        # More than a vocabulary is no limit.
        self._top_k[row] = min(params.top_k, np.iinfo(np.int32).max)
        self._seeds[row] = params.seed
        is_suppressed = bool(new.suppressed_ids) and params.min_tokens > 0
        self._is_adjusted[row] = params.needs_context or bool(params.logit_bias) or is_suppressed
        self._num_top[row] = params.logprobs

    def are_adjusted(self, rows: IntArray) -> bool:
        """Whether any of these rows asks for more than a draw from its logits."""
        return bool(self._is_adjusted[rows].any())

    def num_top(self, rows: IntArray) -> IntArray:
        """Alternatives that each wants with its log probabilities; -1: it wants none."""
        wanted: IntArray = self._num_top[rows]
        return wanted

    def columns(self, rows: IntArray) -> dict[str, IntArray]:
        """Of each of these rows."""
        floats = np.ascontiguousarray(self._floats[:, rows])
        columns: dict[str, IntArray] = {
            name: column.view(np.int32) for name, column in zip(FLOATS, floats, strict=True)
        }
        columns["top_k"] = self._top_k[rows]
        columns["seed"] = self._seeds[rows].view(np.int32)
        return columns


@dataclass(frozen=True, slots=True)
class Draws:
    """The tokens that a step samples, row after row."""

    rows: tuple[StepRow, ...]
    """Those that sample."""
    samplings: tuple[RowSampling, ...]
    """Theirs."""
    row: IntArray
    """[draws] of each its row."""
    start: IntArray
    """[rows + 1] where each row's begin."""
    length: IntArray
    """[draws] tokens before it in its row: its position."""
    logit: IntArray
    """[draws] which of the step's logits it is drawn from."""
    drafts: IntArray
    """[draws] the guess at it; NO_DRAFT: none."""

    def __len__(self) -> int:
        return len(self.row)


def draws_of(step: Step, table: RowTable) -> Draws:
    """The draws of a step."""
    rows = tuple(row for row in step.rows if row.num_samples)
    counts = np.array([row.num_samples for row in rows], np.int32)
    start = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(counts, out=start[1:])
    nth = np.arange(start[-1], dtype=np.int32) - np.repeat(start[:-1], counts)
    lengths = np.array([row.length - row.num_samples + 1 for row in rows], np.int32)
    logits = np.array([r.first_logit + r.num_logits - r.num_samples for r in rows], np.int32)
    drafts = np.full(start[-1], NO_DRAFT, np.int32)
    for row, first in zip(rows, start.tolist(), strict=False):
        if row.num_drafts:
            drafts[first : first + row.num_drafts] = step.drafts(row)
    return Draws(
        rows=rows,
        samplings=tuple(table.sampling(row.row) for row in rows),
        row=np.repeat(np.array([row.row for row in rows], np.int32), counts),
        start=start,
        length=np.repeat(lengths, counts) + nth,
        logit=np.repeat(logits, counts) + nth,
        drafts=drafts,
    )


def draw_columns(
    draws: Draws, parameters: RowParameters, histories: Histories
) -> dict[str, IntArray]:
    """What drawing and keeping needs to find on the device."""
    rows = [row.row for row in draws.rows]
    return {
        **parameters.columns(draws.row),
        "position": draws.length,
        "logit": draws.logit,
        "draft": draws.drafts,
        "draw_start": draws.start,
        "draw_rows": np.array(rows, np.int32),
        "kept_history": np.array([histories.place(row) for row in rows], np.int32),
    }


def history_columns(draws: Draws, kept: IntArray) -> dict[str, IntArray]:
    """Which history each draw is adjusted by.

    A draw behind drafts has a copy of its own, which counts them; then all have copies, in the
    order of `history_places`.

    kept: [rows] places of the rows' histories; -1: none.
    """
    counts = np.diff(draws.start)
    places = np.repeat(kept, counts).astype(np.int32)
    known = np.flatnonzero(places >= 0)
    nth = np.arange(len(draws)) - np.repeat(draws.start[:-1], counts)
    if not len(known) or not nth[known].any():
        return {"history_row": places}
    history_row = np.full(len(draws), _NONE, np.int32)
    history_row[known] = np.arange(len(known))
    owners = np.repeat(history_row[known], nth[known])
    counted = [draws.drafts[at - n : at] for at, n in zip(known, nth[known], strict=True)]
    return {
        "history_row": history_row,
        "history_places": places[known],
        "draft_owners": owners,
        "history_drafts": np.concatenate(counted),
    }


def id_lists(lists: Sequence[IntArray]) -> tuple[IntArray, IntArray]:
    """Begin of each list [lists + 1], and all ids one after the other."""
    start = np.zeros(len(lists) + 1, np.int32)
    np.cumsum([len(ids) for ids in lists], out=start[1:])
    return start, np.concatenate([np.empty(0, np.int32), *lists]).astype(np.int32)


def bias_columns(draws: Draws) -> dict[str, IntArray]:
    """Biases of each draw, which it adds to its logits."""
    owners = np.repeat(np.arange(len(draws.rows)), np.diff(draws.start))
    samplings = [draws.samplings[owner] for owner in owners]
    start, ids = id_lists([sampling.biased for sampling in samplings])
    biases = np.concatenate([np.empty(0, np.float32), *(s.biases for s in samplings)])
    return {"bias_start": start, "bias_ids": ids, "biases": biases.view(np.int32)}


def constraint_columns(draws: Draws, vocab_size: int) -> dict[str, IntArray]:
    """What each draw may not give: ids that are suppressed, and what its grammar leaves.

    Asks the grammars, which must know of every token sampled before.
    """
    masks: list[IntArray] = []
    mask_row = np.full(len(draws), _NONE, np.int32)
    suppressed: list[IntArray] = []
    for index, sampling in enumerate(draws.samplings):
        begin, end = int(draws.start[index]), int(draws.start[index + 1])
        found: list[bytes | None] = [None] * (end - begin)
        if sampling.grammar is not None:
            found = sampling.grammar.masks(draws.drafts[begin : end - 1].tolist())
        for at, mask in enumerate(found, begin):
            length = int(draws.length[at])
            if mask is None:
                suppressed.append(sampling.suppressed(length))
            else:  # suppression is in the mask
                mask_row[at] = len(masks)
                masks.append(_words(sampling.allowed(mask, length), vocab_size))
                suppressed.append(np.empty(0, np.intp))
    start, ids = id_lists(suppressed)
    return {
        "suppressed_start": start,
        "suppressed_ids": ids,
        "mask_row": mask_row,
        "masks": np.concatenate([np.empty(0, np.int32), *masks]),
    }


def mask_words(vocab_size: int) -> int:
    """Of 32 bits in a mask."""
    return -(-vocab_size // 32)


def _words(allowed: BoolArray, vocab_size: int) -> IntArray:
    words = np.zeros(mask_words(vocab_size), np.uint32)
    bits = np.packbits(allowed, bitorder="little")
    words.view(np.uint8)[: len(bits)] = bits
    return words.view(np.int32)
