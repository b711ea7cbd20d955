"""Between host and device: a step's integers in one copy, results back in another.

On a GPU both run beside what the device computes; on the CPU the same code copies at once.  Not
here: what the integers mean.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

IntArray = np.ndarray[Any, np.dtype[np.signedinteger[Any]]]

_ALIGNED = 4
"""Columns begin at multiples of 16 bytes, so that kernels may read them 16 bytes at a time."""
_FIRST_CAPACITY = 1 << 14


class Moment:
    """A place in a device's queue of work; on the CPU, whose work is done at once, now."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._event: torch.cuda.Event | None = None
        self._now_ns = 0
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)
            self._event.record()
        else:
            self._now_ns = time.perf_counter_ns()

    def has_passed(self) -> bool:
        """Whether all work before it is done."""
        return self._event is None or self._event.query()

    def wait(self) -> None:
        """Until it has passed."""
        if self._event is not None:
            self._event.synchronize()

    def ns_since(self, earlier: Moment) -> int:
        """What the device took from another moment to this one; both have passed."""
        if self._event is None or earlier._event is None:
            return self._now_ns - earlier._now_ns
        return int(earlier._event.elapsed_time(self._event) * 1e6)


class Readback:
    """A tensor on its way to the host."""

    def __init__(self, tensor: torch.Tensor) -> None:
        is_far = tensor.device.type == "cuda"
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=is_far)
        self._host.copy_(tensor, non_blocking=True)
        self._done = Moment(tensor.device)

    def numpy(self) -> IntArray:
        """Waits for it."""
        self._done.wait()
        array: IntArray = self._host.numpy()
        return array


@dataclass(frozen=True, slots=True)
class Layout:
    """Where columns lie in one flat array."""

    sizes: Mapping[str, int]

    @property
    def size(self) -> int:
        """Of the flat array."""
        return sum(map(_room, self.sizes.values()))

    def views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """The columns [size] of a flat tensor."""
        views, at = {}, 0
        for name, size in self.sizes.items():
            views[name] = flat[at : at + size]
            at += _room(size)
        return views

    def fill(self, flat: IntArray, columns: Mapping[str, IntArray]) -> None:
        """Writes the columns, flattened, into a flat array."""
        at = 0
        for name, size in self.sizes.items():
            flat[at : at + size] = columns[name].ravel()
            at += _room(size)


def layout_of(columns: Mapping[str, IntArray]) -> Layout:
    """A layout of columns in their order."""
    return Layout({name: column.size for name, column in columns.items()})


def _room(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


class Staging:
    """Sends a step's columns, in two buffers in turn: one step may be in flight meanwhile.

    What `send` gave is valid until the next but one.
    """

    def __init__(self, device: torch.device) -> None:
        stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._buffers = (_Buffer(device, stream), _Buffer(device, stream))
        self._turn = 0

    def send(self, columns: Mapping[str, IntArray]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """All columns as one flat int32 tensor on the device, and each of them in it.

        Work queued after the call finds them there.
        """
        self._buffers[self._turn].note_used()
        self._turn ^= 1
        layout = layout_of(columns)
        flat = self._buffers[self._turn].send(layout, columns)
        return flat, layout.views(flat)


class _Buffer:
    """Pinned memory and its twin on the device."""

    def __init__(self, device: torch.device, stream: torch.cuda.Stream | None) -> None:
        self._device = device
        self._stream = stream
        self._copied: torch.cuda.Event | None = None
        self._used: torch.cuda.Event | None = None
        self._allocate(_FIRST_CAPACITY)

    def _allocate(self, capacity: int) -> None:
        is_far = self._stream is not None
        self._host = torch.empty(capacity, dtype=torch.int32, pin_memory=is_far)
        self._there = torch.empty(capacity, dtype=torch.int32, device=self._device)
        if self._stream is not None:
            # The memory may have been that of work which is queued still.
            self._stream.wait_stream(torch.cuda.current_stream())

    def note_used(self) -> None:
        """Everything that reads the buffer is queued."""
        if self._stream is not None:
            self._used = torch.cuda.Event()
            self._used.record()

    def send(self, layout: Layout, columns: Mapping[str, IntArray]) -> torch.Tensor:
        if self._copied is not None:
            self._copied.synchronize()  # of two steps ago
        size = layout.size
        if size > len(self._host):
            self._allocate(1 << (size - 1).bit_length())
        layout.fill(self._host.numpy(), columns)
        there, host = self._there[:size], self._host[:size]
        if self._stream is None:
            return there.copy_(host)
        if self._used is not None:
            self._stream.wait_event(self._used)
        with torch.cuda.stream(self._stream):
            there.copy_(host, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()
        torch.cuda.current_stream().wait_event(self._copied)
        return there
