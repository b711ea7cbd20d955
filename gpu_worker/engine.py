"""The seam between the worker's session and whatever does the arithmetic.

`session` drives an Engine and knows no tensors; engines know no sockets.  Not here: any engine.
"""

from dataclasses import dataclass
from typing import Protocol

from protos.errors import RadixdError
from protos.plan import BatchPlan, BatchResult, Hello


class PlanError(RadixdError):
    """A plan that contradicts the worker's rows or sizes; nothing of it was carried out."""

    reason = "BAD_PLAN"


class EngineLost(RadixdError):
    """What computes cannot go on in this process, which is to be started anew."""

    reason = "ENGINE_LOST"


class StepInFlight(Protocol):
    """A step that was begun; what it sampled comes when it is done."""

    def is_done(self) -> bool:
        """Whether `result` would not wait.  Cheap enough to be asked again and again."""
        ...

    def result(self) -> BatchResult:
        """Waits for the step; what its rows sampled, in plan order.  The same every time.

        Raises:
            RadixdError: the step failed underway; rows and pool are unknown until `reset`.
            EngineLost: see there.
        """
        ...


@dataclass(frozen=True, slots=True)
class DoneStep:
    """StepInFlight of an engine that computes in `begin`."""

    done: BatchResult

    def is_done(self) -> bool:
        """Always."""
        return True

    def result(self) -> BatchResult:
        """See StepInFlight."""
        return self.done


class Engine(Protocol):
    """Executes plans on a pool of token slots."""

    def hello(self) -> Hello:
        """What this engine offers.  `instance_id` is 0; the session puts its own there."""
        ...

    def reset(self) -> None:
        """Makes all rows free and the content of all slots unknown; nobody will ask for what the
        steps in flight sampled."""
        ...

    def begin(self, plan: BatchPlan) -> StepInFlight:
        """Begins a step.  At most one begun before may still be in flight, and is done first.

        Raises:
            PlanError: the plan names a row, slot, token or length that cannot be.  The plan was
                checked whole before its first effect, so rows and pool are as before.
            RadixdError: this step, or the one before, failed; rows and pool are unknown until
                `reset`.
            EngineLost: see there.
        """
        ...
