"""The forward pass of steps on the device: their columns, recorded or not, and their logits.

Not here: sampling, copies between host and device, the arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import structlog
import torch

from gpu_worker.decoder import StepDecoder
from gpu_worker.device.decode_graphs import DecodeGraphs, Recorder
from gpu_worker.device.row_store import RowStore
from gpu_worker.device.step_inputs import (
    CutSizes,
    StepColumns,
    StepInputs,
    step_columns,
    step_inputs,
)
from gpu_worker.device.transfers import Staging
from gpu_worker.step import EMPTY_STEP, Step
from kernels.take_inputs import take_inputs
from protos.errors import first_line

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step on the host, as it is to be run."""

    columns: StepColumns
    num_logits: int
    is_recorded: bool


class DeviceForward:
    """Runs steps of a decoder on a store of rows."""

    def __init__(
        self,
        decoder: StepDecoder[StepInputs],
        rows: RowStore,
        sizes: CutSizes,
        recorder: Recorder | None,
    ) -> None:
        """Without a recorder nothing is recorded."""
        self._decoder = decoder
        self._rows = rows
        self._sizes = sizes
        self.graphs: DecodeGraphs | None = None
        if recorder is not None:
            self.graphs = DecodeGraphs(
                self._states,
                recorder,
                max_rows=rows.dump_row,
                device=rows.slots.device,
            )

    def prepare(self, step: Step) -> Prepared:
        """Its columns, filled up where it is to be recorded."""
        num_logits = sum(row.num_logits for row in step.rows)
        if self.graphs is None or not step.rows or not _is_decode(step):
            columns = step_columns(step, self._sizes, self._rows.slots.shape[1])
            return Prepared(columns, num_logits, False)
        columns = self._filled(step, self.graphs.num_rows(len(step.rows)))
        fitted = self.graphs.fitted(columns)
        return Prepared(columns if fitted is None else fitted, num_logits, fitted is not None)

    def record_all(self, staging: Staging) -> None:
        """Records steps of every number of rows, up to middling contexts; the largest first, in
        whose memory the others find room.  Other shapes are recorded once they have come often."""
        graphs, with_stems = self.graphs, self._sizes.stems is not None
        if graphs is None:
            return
        for num_rows in reversed(graphs.sizes):
            empty = self._filled(EMPTY_STEP, num_rows)
            for columns in graphs.with_room(empty, with_stems=with_stems):
                if self.graphs is None:  # it does not work here
                    return
                self._recorded(columns, *staging.send(columns.columns()))
        graphs.record_seldom()

    def logits(
        self, prepared: Prepared, flat: torch.Tensor, there: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        """Queues a step; float32 logits [num_logits, vocab] on the device.

        flat: begins with the step's columns; there: the same by name.
        """
        if not len(prepared.columns.tokens["token_ids"]):
            return self._decoder.logits(flat.new_empty(0, 1))
        if prepared.is_recorded:
            states = self._recorded(prepared.columns, flat, there)
        else:
            states = self._states(prepared.columns, there)
        return self._decoder.logits(states[: prepared.num_logits])

    def _recorded(
        self, columns: StepColumns, flat: torch.Tensor, there: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        """States of a step, recorded or played again.  Where that cannot be, whether memory is
        measured, the worker starts or serves, nothing is recorded from then on, and a warning says
        why."""
        if self.graphs is not None:
            try:
                return self.graphs.run(columns, flat)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                self.graphs = None
                _log.warning("steps_not_recorded", reason=first_line(error))
        return self._states(columns, there)

    def _filled(self, step: Step, num_rows: int) -> StepColumns:
        rows = self._rows
        return step_columns(
            step, self._sizes, rows.slots.shape[1], fill_to=num_rows, dump_row=rows.dump_row
        )

    def _states(self, columns: StepColumns, there: Mapping[str, torch.Tensor]) -> torch.Tensor:
        rows = self._rows
        take_inputs(
            there["token_ids"],
            there["token_rows"],
            there["positions"],
            there["out_slots"],
            rows.last_tokens,
            rows.slots,
        )
        return self._decoder.states(step_inputs(columns, there, rows.slots.view(-1)))


def _is_decode(step: Step) -> bool:
    """Whether every row has one token and one logit."""
    return all(row.extend_len == 1 and row.num_logits == 1 for row in step.rows)
