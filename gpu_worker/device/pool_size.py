"""How many slots a pool gets that takes what memory is left: figures in, a number out.

Not here: measuring (profiling), and pools whose size somebody named.
"""

from dataclasses import dataclass
from typing import Protocol

from protos.plan import MAX_PAGE_SIZE

_GIB = 2**30


class NoRoom(MemoryError):
    """What is left holds no page; the message has the figures and the options that change them."""


class MemoryMeter(Protocol):
    """What is known of a device's memory."""

    @property
    def total_bytes(self) -> int:
        """All of it."""
        ...

    def tidy(self) -> None:
        """Gives back what this process holds without using it."""
        ...

    def used_bytes(self) -> int:
        """Taken now by anybody, with what this process has freed and still holds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFit:
    """How a pool is to be fitted into a device's memory."""

    memory_fraction: float
    """Share of the memory that is used, for weights, steps and pool together."""
    max_tokens: int
    """Of the largest step."""
    max_rows: int
    """Of the largest step."""
    max_draws: int = 0
    """Of the largest step, drafts among them; 0: one a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """What was measured."""

    total_bytes: int
    loaded_bytes: int
    """Taken by anybody once the weights are loaded."""
    peak_bytes: int
    """Taken by anybody when the largest step was done, with what it has freed."""


def fitting_slots(use: MemoryUse, fit: PoolFit, bytes_per_slot: int) -> int:
    """Slots for which there is room, a multiple of the largest page, so of every page.

    Raises:
        NoRoom: there is room for none.
    """
    left = int(use.total_bytes * fit.memory_fraction) - use.peak_bytes
    # A pool has so many slots more than it says: the dump slot's page.
    pages = left // (bytes_per_slot * MAX_PAGE_SIZE) - 1
    if pages >= 1:
        return pages * MAX_PAGE_SIZE
    needed = 2 * MAX_PAGE_SIZE * bytes_per_slot
    raise NoRoom(
        f"no room for a pool: {fit.memory_fraction:g} of the GPU's {_gib(use.total_bytes)} may be "
        f"used; {_gib(use.loaded_bytes)} are taken once the weights are loaded, "
        f"{_gib(use.peak_bytes - use.loaded_bytes)} by a step of {fit.max_tokens} tokens, and the "
        f"least pool needs {_gib(needed)}; --weights of fewer bits, a smaller --max-batch-tokens "
        "or a larger --memory-fraction would make room"
    )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.2f} GiB"
