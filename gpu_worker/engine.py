"""The seam between the worker's session and whatever does the arithmetic.

`session` drives an Engine and knows no tensors; engines know no sockets.  Not here: any engine.
"""

from typing import Protocol

from protos.errors import RadixdError
from protos.plan import BatchPlan, BatchResult, Hello


class PlanError(RadixdError):
    """A plan that contradicts the worker's rows or sizes; nothing of it was carried out."""

    reason = "BAD_PLAN"


class Engine(Protocol):
    """Executes plans on a pool of token slots."""

    def hello(self) -> Hello:
        """What this engine offers.  `instance_id` is 0; the session puts its own there."""
        ...

    def reset(self) -> None:
        """Makes all rows free and the content of all slots unknown."""
        ...

    def execute(self, plan: BatchPlan) -> BatchResult:
        """Carries out one step; what its rows sampled, in plan order.

        Raises:
            PlanError: the plan names a row, slot, token or length that cannot be.  The plan was
                checked whole before its first effect, so rows and pool are as before.
            RadixdError: the step failed underway; rows and pool are unknown until `reset`.
        """
        ...
