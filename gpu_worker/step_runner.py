"""The seam between the engine's books and whatever carries out a step: forward pass and sampling.

A runner may leave a step in flight and take the next one meanwhile, whose tokens "from the step
before" are then known to the runner alone.  Not here: any runner, plans, messages.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Protocol

from gpu_worker.step import Step
from protos.plan import LogprobColumns, RowFault


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What a step gave; the fields are those of BatchResult."""

    token_ids: array[int]
    num_sampled: bytes = b""
    logprobs: LogprobColumns | None = None
    prompt_logprobs: LogprobColumns | None = None
    row_faults: tuple[RowFault, ...] = ()
    forward_ns: int
    """From the step's begin to its tokens."""
    phases_ns: tuple[int, ...] = ()


class RunningStep(Protocol):
    """A step that was begun."""

    def is_done(self) -> bool:
        """Whether `sampled` would not wait."""
        ...

    def sampled(self) -> Sampled:
        """Waits for the step.  The same every time.

        Raises:
            RadixdError: the step failed.
        """
        ...


class StepRunner(Protocol):
    """Carries out steps of one table of rows."""

    def settle(self) -> None:
        """Waits for the step in flight as far as the table must know of it before the next plan:
        how many tokens each of its rows has."""
        ...

    def begin(self, step: Step) -> RunningStep:
        """Begins a step; the one before may be in flight still, and is done first."""
        ...

    def forget(self) -> None:
        """Nothing is known of rows and slots from here on; steps in flight do not count."""
        ...
