"""What the device keeps of rows from step to step: their slots, last tokens and histories.

Changed by what a step brings, in the order of the steps, so that a step may be queued while the one
before it runs.  Not here: what the host knows of rows (`row_table`).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

import numpy as np
import torch

from gpu_worker.device.transfers import IntArray
from gpu_worker.step import Step
from protos.errors import InvalidRequest
from protos.plan import DUMP_SLOT, NewRow


class RowStore:
    """Tables by row; the row behind the last one is for tokens that fill up a step."""

    def __init__(
        self, *, max_rows: int, max_length: int, vocab_size: int, device: torch.device
    ) -> None:
        """Places in the table are 32 bits.

        Raises:
            InvalidRequest: rows and tokens are too many for that.
        """
        if (max_rows + 1) * max_length >= 1 << 31:
            problem = f"{max_length} tokens for each of {max_rows} rows (--max-running)"
            raise InvalidRequest("max_length", f"{problem} are more than a table of 2**31 holds")
        self.dump_row = max_rows
        self.last_tokens = torch.zeros(max_rows + 1, dtype=torch.int32, device=device)
        """[max_rows + 1] what each row sampled last."""
        self.slots = torch.full(
            (max_rows + 1, max_length), DUMP_SLOT, dtype=torch.int32, device=device
        )
        """[max_rows + 1, max_length]; entries past a row's length mean nothing."""
        self.histories = Histories(vocab_size, device)

    def columns(self, step: Step) -> dict[str, IntArray]:
        """Makes room for the rows that a step opens; what `apply` needs to find on the device."""
        for new in step.opened:
            self.histories.close(new.row)
            if new.sampling.has_penalties:
                self.histories.open(new.row)
        counted = [new.context_ids for new in step.opened if new.sampling.has_penalties]
        return {
            "moved": np.fromiter(chain.from_iterable(m.slots for m in step.moved), np.int32),
            "context_ids": np.fromiter(chain.from_iterable(counted), np.int32),
        }

    def apply(self, step: Step, there: Mapping[str, torch.Tensor]) -> None:
        """Opens and moves the rows of a step, before its tokens come."""
        at = 0
        for move in step.moved:
            size = len(move.slots)
            if size:
                target = self.slots[move.row, move.start : move.start + size]
                target.copy_(there["moved"][at : at + size])
            at += size
        at = 0
        for new in step.opened:
            if new.sampling.has_penalties:
                size = len(new.context_ids)
                self.histories.fill(new, there["context_ids"][at : at + size])
                at += size

    def forget(self) -> None:
        """Nothing is known of any row."""
        self.histories.clear()


class Histories:
    """Of rows with penalties, as `kernels.adjust_logits` takes them."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.counts = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)
        """[known, vocab]: 2 * times in the output + (1 if in the prompt)."""
        self._places: dict[int, int] = {}
        self._free: list[int] = []

    def place(self, row: int) -> int:
        """Which of `counts` is a row's; -1: it has none."""
        return self._places.get(row, -1)

    def open(self, row: int) -> None:
        """Gives a row a place."""
        if not self._free:
            self._grow()
        self._places[row] = self._free.pop()

    def fill(self, new: NewRow, context_ids: torch.Tensor) -> None:
        """Counts the tokens that a row comes with, which lie on the device."""
        history, known = self.counts[self._places[new.row]], context_ids.long()
        history.zero_()
        history.index_fill_(0, known[: new.num_prompt], 1)
        outputs = known[new.num_prompt :]
        history.index_add_(0, outputs, torch.full_like(outputs, 2, dtype=torch.int32))

    def close(self, row: int) -> None:
        """Forgets a row, if it is known."""
        place = self._places.pop(row, None)
        if place is not None:
            self._free.append(place)

    def clear(self) -> None:
        """Forgets all rows."""
        for row in tuple(self._places):
            self.close(row)

    def with_drafts(
        self, places: torch.Tensor, owners: torch.Tensor, drafts: torch.Tensor
    ) -> torch.Tensor:
        """[n, vocab] copies of the histories at `places` [n]; the copy that each of `owners` [m]
        names counts one of `drafts` [m] as output, too."""
        copies = self.counts.index_select(0, places)
        flat = owners.long() * copies.shape[1] + drafts
        copies.view(-1).index_add_(0, flat, torch.full_like(drafts, 2))
        return copies

    def _grow(self) -> None:
        size = len(self.counts)
        more = self.counts.new_zeros(max(4, size), self.counts.shape[1])
        self.counts = torch.cat([self.counts, more])
        self._free.extend(range(size, len(self.counts)))
