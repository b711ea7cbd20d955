"""Draws a step's tokens on the device, from logits that stay there.

Only tokens and log probabilities come back, as one flat column.  The tokens are those of
`step_sampling`, up to near-ties in float32.  Not here: when a step is begun, what the host does
with its tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from gpu_worker.device.row_store import RowStore
from gpu_worker.device.sampling_columns import (
    FLOATS,
    Draws,
    RowParameters,
    bias_columns,
    constraint_columns,
    draw_columns,
    draws_of,
    history_columns,
    mask_words,
)
from gpu_worker.device.transfers import IntArray, Readback, Staging
from gpu_worker.row_table import RowTable
from gpu_worker.step import Step, StepRow
from kernels.adjust_logits import Adjustments, IdList, adjust_logits
from kernels.keep_samples import keep_samples
from kernels.logprobs import logprobs
from kernels.sample import Sampling, sample
from protos.plan import NOT_SCORED, LogprobColumns

Views = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a step's rows ask of the sampler."""

    draws: Draws
    num_logits: int
    columns: dict[str, IntArray]
    """What `StepSampler.draw` needs to find on the device."""
    is_adjusted: bool
    has_grammar: bool
    reported: IntArray
    """Draws whose log probabilities are wanted."""
    num_top: IntArray
    """[reported] alternatives wanted with them."""
    scored: tuple[tuple[StepRow, int], ...]
    """Rows whose prompt is scored, and the alternatives that they want."""


class StepSampler:
    """Samples the rows of a store."""

    def __init__(
        self, rows: RowStore, table: RowTable, *, vocab_size: int, device: torch.device
    ) -> None:
        self._rows = rows
        self._table = table
        self._vocab_size = vocab_size
        self._parameters = RowParameters(rows.dump_row)
        self._late = Staging(device)

    def asked(self, step: Step) -> Asked:
        """What a step asks; new rows' parameters are taken, their histories have a place."""
        for new in step.opened:
            self._parameters.open(new)
        draws = draws_of(step, self._table)
        columns = draw_columns(draws, self._parameters, self._rows.histories)
        is_adjusted = self._parameters.are_adjusted(draws.row)
        has_grammar = any(sampling.grammar is not None for sampling in draws.samplings)
        if is_adjusted:
            columns |= history_columns(draws, columns["kept_history"]) | bias_columns(draws)
        if is_adjusted and not has_grammar:
            columns |= constraint_columns(draws, self._vocab_size)
        num_top = self._parameters.num_top(draws.row)
        reported = np.flatnonzero(num_top >= 0).astype(np.int32)
        columns["reported"] = reported
        if len(step.next_ids):
            columns["next_ids"] = np.maximum(step.next_ids, 0)
        return Asked(
            draws=draws,
            num_logits=sum(row.num_logits for row in step.rows),
            columns=columns,
            is_adjusted=is_adjusted,
            has_grammar=has_grammar,
            reported=reported,
            num_top=num_top[reported],
            scored=tuple(self._scored(step)),
        )

    def draw(
        self, asked: Asked, logits: torch.Tensor, there: Views, settle: Callable[[], None]
    ) -> Drawn:
        """Queues a step's draws.

        logits: float32 [num_logits, vocab] on the device; they stay as they are.
        settle: makes known what the step before sampled; called only where a grammar must know.
        """
        parts = self._scores(asked, logits, there)
        if len(asked.draws):
            if len(asked.draws) < len(logits):
                logits = logits.index_select(0, there["logit"])
            parts = [*self._drawn(asked, logits, there, settle), *parts]
        flat = [part.reshape(-1).view(torch.int32) for part in parts]
        return Drawn(asked, Readback(torch.cat(flat)) if flat else None)

    def _drawn(
        self, asked: Asked, logits: torch.Tensor, there: Views, settle: Callable[[], None]
    ) -> list[torch.Tensor]:
        """Tokens, how many of each row count; and log probabilities."""
        histories = self._rows.histories
        adjusted = self._adjusted(asked, logits, there, settle) if asked.is_adjusted else logits
        tokens = sample(adjusted, _sampling(there))
        counts = keep_samples(
            tokens,
            there["draft"],
            there["draw_start"],
            there["draw_rows"],
            self._rows.last_tokens,
            histories.counts,
            there["kept_history"],
        )
        parts = [tokens, counts]
        if len(asked.reported):
            some, chosen = logits, tokens
            if len(asked.reported) < len(asked.draws):
                some, chosen = (of.index_select(0, there["reported"]) for of in (some, chosen))
            parts += logprobs(some, chosen, int(asked.num_top.max()))
        return parts

    def _adjusted(
        self, asked: Asked, logits: torch.Tensor, there: Views, settle: Callable[[], None]
    ) -> torch.Tensor:
        history = self._rows.histories.counts
        if "history_places" in there:
            history = self._rows.histories.with_drafts(
                there["history_places"], there["draft_owners"], there["history_drafts"]
            )
        late = there
        if asked.has_grammar:
            settle()
            _, late = self._late.send(constraint_columns(asked.draws, self._vocab_size))
        return adjust_logits(
            logits,
            Adjustments(
                history=history,
                history_row=there["history_row"],
                repetition=there["repetition"].view(torch.float32),
                frequency=there["frequency"].view(torch.float32),
                presence=there["presence"].view(torch.float32),
                masks=late["masks"].view(-1, mask_words(self._vocab_size)),
                mask_row=late["mask_row"],
                biased=IdList(start=there["bias_start"], ids=there["bias_ids"]),
                biases=there["biases"].view(torch.float32),
                suppressed=IdList(start=late["suppressed_start"], ids=late["suppressed_ids"]),
            ),
        )

    def _scored(self, step: Step) -> list[tuple[StepRow, int]]:
        if not len(step.next_ids):
            return []
        return [
            (row, self._table.sampling(row.row).params.prompt_logprobs)
            for row in step.rows
            if (step.next_ids[row.logit_tokens] != NOT_SCORED).any()
        ]

    def _scores(self, asked: Asked, logits: torch.Tensor, there: Views) -> list[torch.Tensor]:
        """Log probabilities of the prompts of each row that is scored, of all its logits."""
        parts: list[torch.Tensor] = []
        for row, num_top in asked.scored:
            own = logits[row.first_logit : row.first_logit + row.num_logits]
            parts += logprobs(own, there["next_ids"][row.logit_tokens], num_top)
        return parts


class Drawn:
    """What a step sampled, on its way to the host."""

    def __init__(self, asked: Asked, readback: Readback | None) -> None:
        self._asked = asked
        self._readback = readback

    def read(self, step: Step) -> Tokens:
        """Waits for it."""
        asked = self._asked
        flat = _Reader(np.empty(0, np.int32) if self._readback is None else self._readback.numpy())
        draws, num_reported = asked.draws, len(asked.reported)
        tokens, counts = flat.ints(len(draws)), flat.ints(len(draws.rows))
        most = int(asked.num_top.max(initial=0))
        reported = flat.logprobs(num_reported, most) if num_reported else None
        nth = np.arange(len(draws)) - np.repeat(draws.start[:-1], np.diff(draws.start))
        does_count = nth < np.repeat(counts, np.diff(draws.start))
        columns = None
        if reported is not None:
            columns = _joined(
                reported.rows(np.flatnonzero(does_count[asked.reported]), asked.num_top)
            )
        of_rows = [
            tokens[first : first + count].tolist()
            for first, count in zip(draws.start.tolist(), counts.tolist(), strict=False)
        ]
        return Tokens(rows=of_rows, logprobs=columns, scores=self._scores(step, flat))

    def _scores(self, step: Step, flat: _Reader) -> LogprobColumns | None:
        found = []
        for row, num_top in self._asked.scored:
            part = flat.logprobs(row.num_logits, num_top)
            wanted = np.flatnonzero(step.next_ids[row.logit_tokens] != NOT_SCORED)
            found += part.rows(wanted, np.full(row.num_logits, num_top))
        return _joined(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What a step sampled, on the host."""

    rows: list[list[int]]
    """Of each row that samples the tokens that count."""
    logprobs: LogprobColumns | None
    scores: LogprobColumns | None


@dataclass(frozen=True, slots=True)
class _Logprobs:
    """Of n rows of logits."""

    chosen: IntArray
    top_ids: IntArray
    top: IntArray

    def rows(self, wanted: IntArray, num_top: IntArray) -> list[tuple[IntArray, ...]]:
        """Those of some rows, each with the alternatives that it asked for."""
        return [
            (self.chosen[at : at + 1], self.top_ids[at, :n], self.top[at, :n])
            for at, n in zip(wanted.tolist(), num_top[wanted].tolist(), strict=True)
        ]


class _Reader:
    """Takes parts off a flat column."""

    def __init__(self, flat: IntArray) -> None:
        self._flat = flat
        self._at = 0

    def ints(self, count: int) -> IntArray:
        self._at += count
        return self._flat[self._at - count : self._at]

    def logprobs(self, num_rows: int, num_top: int) -> _Logprobs:
        chosen = self.ints(num_rows)
        top_ids = self.ints(num_rows * num_top).reshape(num_rows, num_top)
        return _Logprobs(chosen, top_ids, self.ints(num_rows * num_top).reshape(top_ids.shape))


def _joined(rows: list[tuple[IntArray, ...]]) -> LogprobColumns | None:
    if not rows:
        return None
    chosen, top_ids, top = (np.concatenate(part) for part in zip(*rows, strict=True))
    return LogprobColumns(
        chosen=array("f", chosen.tobytes()),
        top_ids=array("i", top_ids.tobytes()),
        top_logprobs=array("f", top.tobytes()),
    )


def _sampling(there: Views) -> Sampling:
    floats = {name: there[name].view(torch.float32) for name in FLOATS}
    return Sampling(
        temperature=floats["temperature"],
        top_k=there["top_k"],
        top_p=floats["top_p"],
        min_p=floats["min_p"],
        seed=there["seed"].view(torch.int64),
        position=there["position"],
    )
