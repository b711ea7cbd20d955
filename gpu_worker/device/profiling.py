"""What memory the largest steps take, found out by running them, and the slots that leaves room
for.

Rows ask for all that sampling has, so that what it takes is measured with the forward pass.

Not here: the arithmetic on what was found (pool_size).
"""

from array import array
from collections.abc import Callable

import numpy as np
import structlog
import torch

from gpu_worker.device.decode_graphs import MOST_ITEMS
from gpu_worker.device.pool_size import MemoryMeter, MemoryUse, PoolFit, fitting_slots
from gpu_worker.device.step_inputs import SPLIT
from gpu_worker.device.warm_up import EVERYTHING
from gpu_worker.step import IntArray, Step, StepRow
from protos.plan import DUMP_SLOT, NOT_SCORED, BatchPlan, NewRow

_log = structlog.get_logger(__name__)

NUM_SCORED = 256
"""Tokens of a prompt whose logits a step makes at once; the scheduler plans no more."""


class GpuMeter:
    """MemoryMeter of a GPU.

    The caching allocator keeps what is freed, so what is taken after a step is what was taken at
    its peak, with what is lost between blocks.  Not so where a step is recorded, before which torch
    gives back what it keeps: what is run after that counts.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.total_bytes: int = torch.cuda.mem_get_info(device)[1]

    def tidy(self) -> None:
        """See MemoryMeter."""
        torch.cuda.empty_cache()

    def used_bytes(self) -> int:
        """See MemoryMeter."""
        torch.cuda.synchronize(self._device)
        free: int = torch.cuda.mem_get_info(self._device)[0]
        return self.total_bytes - free


def measured_slots(
    run: Callable[[Step], object],
    meter: MemoryMeter,
    fit: PoolFit,
    *,
    max_length: int,
    bytes_per_slot: int,
) -> int:
    """Slots that fit beside weights, which are loaded, and the largest steps.

    run: carries a step out, draws and all, on a pool of a few slots, as steps read and write the
        dump slot only.

    Raises:
        NoRoom: there is room for none.
    """
    meter.tidy()
    loaded_bytes = meter.used_bytes()
    for step in largest_steps(fit, max_length):
        run(step)
    use = MemoryUse(
        total_bytes=meter.total_bytes, loaded_bytes=loaded_bytes, peak_bytes=meter.used_bytes()
    )
    slots = fitting_slots(use, fit, bytes_per_slot)
    _log.info(
        "pool_fitted",
        num_slots=slots,
        total_bytes=use.total_bytes,
        loaded_bytes=use.loaded_bytes,
        peak_bytes=use.peak_bytes,
        bytes_per_slot=bytes_per_slot,
    )
    return slots


def largest_steps(fit: PoolFit, max_length: int) -> list[Step]:
    """Those that may want the most memory, of rows that `opening_plan` opened, nearly all at the
    end of the longest contexts.

    The longest in which all rows decode that is recorded, as recordings have memory of their own;
    the longest at all of that kind, where that is another; one of as many draws as there may be,
    where they are more than rows; and one of as many tokens as there may be, nearly all of a prompt
    that is scored, the other rows decoding.  Recorded ones come first, see GpuMeter.
    """
    num_rows = _num_rows(fit)
    recorded_length = _recorded_length(num_rows, max_length)
    prompt = min(fit.max_tokens - num_rows + 1, max_length)
    steps = [_step([1] * num_rows, max_length)]
    if recorded_length < max_length:
        steps.insert(0, _step([1] * num_rows, recorded_length))
    num_draws = min(-(-fit.max_draws // num_rows), fit.max_tokens // num_rows, max_length)
    if num_draws > 1:
        # Of contexts that a pool can hold: else each draft would have the partial results of one.
        length = max(num_draws, _recorded_length(num_rows * num_draws, max_length))
        steps.append(_step([num_draws] * num_rows, length, num_draws=num_draws))
    return [*steps, _step([prompt, *[1] * (num_rows - 1)], max_length, is_scored=True)]


def opening_plan(fit: PoolFit) -> BatchPlan:
    """Opens the rows of the largest steps with a token each; they ask for all that there is."""
    num_rows = _num_rows(fit)
    one = array("i", [0])
    return BatchPlan(
        step_id=0,
        rows=array("i", range(num_rows)),
        prefix_lens=one * num_rows,
        extend_lens=array("i", [1]) * num_rows,
        samples=bytes(num_rows),
        input_ids=one * num_rows,
        out_slots=array("i", [DUMP_SLOT]) * num_rows,
        new_rows=tuple(
            NewRow(
                row=row,
                prefix_slots=array("i"),
                sampling=EVERYTHING,
                num_prompt=1,
                context_ids=one,
                suppressed_ids=(0,),
            )
            for row in range(num_rows)
        ),
        freed_rows=array("i"),
    )


def _num_rows(fit: PoolFit) -> int:
    return max(1, min(fit.max_rows, fit.max_tokens))


def _recorded_length(num_tokens: int, max_length: int) -> int:
    """Of contexts whose tokens have as many items as a recording has room for."""
    return min(max_length, max(1, MOST_ITEMS // num_tokens) * SPLIT)


def _step(lens: list[int], length: int, *, num_draws: int = 1, is_scored: bool = False) -> Step:
    """Rows of `length` tokens of which so many come with this step, all in the dump slot.

    is_scored: of the first row, all logits that may be asked for.
    """
    slots = np.zeros(length, np.int32)
    rows: list[StepRow] = []
    for index, extend_len in enumerate(lens):
        rows.append(
            StepRow(
                row=index,
                prefix_len=length - extend_len,
                extend_len=extend_len,
                first_token=sum(lens[:index]),
                num_samples=num_draws,
                num_logits=max(num_draws, min(extend_len, NUM_SCORED)),
                first_logit=sum(row.num_logits for row in rows),
                slots=slots,
            )
        )
    num_tokens = sum(lens)
    positions = [np.arange(length - count, length, dtype=np.int32) for count in lens]
    return Step(
        rows=tuple(rows),
        token_ids=np.zeros(num_tokens, np.int32),
        positions=np.concatenate(positions),
        out_slots=np.zeros(num_tokens, np.int32),
        next_ids=_scored(rows[0], num_tokens) if is_scored else np.empty(0, np.int32),
    )


def _scored(row: StepRow, num_tokens: int) -> IntArray:
    """Some token behind each of a row's whose logits are made."""
    next_ids = np.full(num_tokens, NOT_SCORED, np.int32)
    next_ids[row.logit_tokens] = 0
    return next_ids
