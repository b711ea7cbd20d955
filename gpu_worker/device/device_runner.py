"""Steps on a device: one may run while the next is begun, which then waits in the device's queue.

Not here: the forward pass, drawing.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

import torch

from gpu_worker.device.device_forward import DeviceForward
from gpu_worker.device.lost_device import losing
from gpu_worker.device.row_store import RowStore
from gpu_worker.device.step_sampler import Drawn, StepSampler
from gpu_worker.device.transfers import Moment, Staging
from gpu_worker.row_table import RowTable
from gpu_worker.step import Step
from gpu_worker.step_runner import Sampled
from protos.plan import RowFault


class DeviceStep:
    """RunningStep in a device's queue."""

    def __init__(self, step: Step, table: RowTable, drawn: Drawn, begun: Moment) -> None:
        self._step = step
        self._table = table
        self._drawn = drawn
        self._begun = begun
        self._ended = Moment(begun.device)
        self._sampling = tuple(row for row in step.rows if row.num_samples)
        # By now rows may be others': what they sampled is told to those who asked.
        self._grammars = tuple(
            (row, sampling, grammar)
            for row in step.rows
            for sampling in (table.sampling(row.row),)
            for grammar in (sampling.grammar,)
            if grammar is not None
        )
        self._sampled: Sampled | None = None

    @property
    def has_drafts(self) -> bool:
        """Whether the table does not know yet how many tokens its rows have."""
        return self._sampled is None and any(row.num_drafts for row in self._sampling)

    def is_done(self) -> bool:
        """See RunningStep; a step that failed is, as `sampled` then says."""
        try:
            return self._ended.has_passed()
        except RuntimeError:
            return True

    def sampled(self) -> Sampled:
        """See RunningStep."""
        if self._sampled is None:
            with losing(self._begun.device):
                self._sampled = self._settled()
        return self._sampled

    def _settled(self) -> Sampled:
        tokens = self._drawn.read(self._step)
        of_row = dict(zip((row.row for row in self._sampling), tokens.rows, strict=True))
        for row in self._sampling:
            if row.num_drafts:
                self._table.record_unseen(row, len(of_row[row.row]))
        for row, _, grammar in self._grammars:
            for token in of_row.get(row.row, ()):
                grammar.record(token)
        counts = bytes(map(len, tokens.rows))
        self._ended.wait()
        return Sampled(
            token_ids=array("i", (token for some in tokens.rows for token in some)),
            num_sampled=counts if any(count > 1 for count in counts) else b"",
            logprobs=tokens.logprobs,
            prompt_logprobs=tokens.scores,
            row_faults=tuple(
                RowFault(row=row.row, message=sampling.problem)
                for row, sampling, _ in self._grammars
                if sampling.problem
            ),
            forward_ns=self._ended.ns_since(self._begun),
        )


class DeviceRunner:
    """StepRunner on a device."""

    def __init__(
        self,
        forward: DeviceForward,
        rows: RowStore,
        table: RowTable,
        sampler: StepSampler,
        forget: Callable[[], None],
    ) -> None:
        """`forget`: marks the content of all slots as gone."""
        self._forget = forget
        self._forward = forward
        self._rows = rows
        self._table = table
        self._sampler = sampler
        self._staging = Staging(rows.slots.device)
        self._former: DeviceStep | None = None

    def settle(self) -> None:
        """See StepRunner: only drafts leave open how many tokens a row has."""
        if self._former is not None and self._former.has_drafts:
            self._former.sampled()

    def begin(self, step: Step) -> DeviceStep:
        """See StepRunner; queues the step."""
        with torch.inference_mode(), losing(self._rows.slots.device):
            begun = Moment(self._rows.slots.device)
            prepared = self._forward.prepare(step)
            kept = self._rows.columns(step)
            asked = self._sampler.asked(step)
            # The forward pass first: recordings copy the beginning.
            flat, there = self._staging.send(prepared.columns.columns() | kept | asked.columns)
            self._rows.apply(step, there)
            logits = self._forward.logits(prepared, flat, there)
            drawn = self._sampler.draw(asked, logits, there, self._settle_former)
            self._former = DeviceStep(step, self._table, drawn, begun)
        for row in step.rows:
            if row.num_samples and not row.num_drafts:
                self._table.record_unseen(row, 1)
        return self._former

    def forget(self) -> None:
        """See StepRunner."""
        self._former = None
        self._rows.forget()
        self._forget()

    def _settle_former(self) -> None:
        if self._former is not None:
            self._former.sampled()
