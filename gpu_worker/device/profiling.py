"""What memory the largest steps take, found out by running them, and the slots that leaves room
for.

Not here: the arithmetic on what was found (pool_size).
"""

from collections.abc import Callable

import numpy as np
import structlog
import torch

from gpu_worker.device.decode_graphs import MOST_ITEMS
from gpu_worker.device.pool_size import MemoryMeter, MemoryUse, PoolFit, fitting_slots
from gpu_worker.device.step_inputs import SPLIT
from gpu_worker.step import Step, StepRow

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
    forward: Callable[[Step], object],
    meter: MemoryMeter,
    fit: PoolFit,
    *,
    max_length: int,
    bytes_per_slot: int,
) -> int:
    """Slots that fit beside weights, which are loaded, and the largest steps.

    forward: of a model on a pool of a few slots, as steps read and write the dump slot only.

    Raises:
        NoRoom: there is room for none.
    """
    meter.tidy()
    loaded_bytes = meter.used_bytes()
    for step in largest_steps(fit, max_length):
        forward(step)
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
    """Those that may want the most memory, all at the end of the longest contexts.

    The longest in which all rows decode that is recorded, as recordings have memory of their own;
    the longest at all of that kind, where that is another; and one of as many tokens as there may
    be, nearly all of a prompt that is scored, the other rows decoding.  Recorded ones come first,
    see GpuMeter.
    """
    num_rows = max(1, min(fit.max_rows, fit.max_tokens))
    num_items = max(1, MOST_ITEMS // num_rows)
    recorded_length = min(max_length, num_items * SPLIT)
    prompt = min(fit.max_tokens - num_rows + 1, max_length)
    return [
        *([_step([1] * num_rows, recorded_length)] if recorded_length < max_length else []),
        _step([1] * num_rows, max_length),
        _step([prompt, *[1] * (num_rows - 1)], max_length),
    ]


def _step(lens: list[int], length: int) -> Step:
    """Rows of `length` tokens of which so many come with this step, all in the dump slot."""
    slots = np.zeros(length, np.int32)
    rows: list[StepRow] = []
    for index, extend_len in enumerate(lens):
        rows.append(
            StepRow(
                row=index,
                prefix_len=length - extend_len,
                extend_len=extend_len,
                first_token=sum(lens[:index]),
                num_samples=1,
                num_logits=min(extend_len, NUM_SCORED),
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
        next_ids=np.empty(0, np.int32),
    )
