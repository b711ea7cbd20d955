"""Rank 0's engine: what it is asked to do, the other ranks are told first.

Not here: how ranks compute together, and how their processes live.
"""

from dataclasses import dataclass, replace

from gpu_worker.engine import Engine, PlanError, StepInFlight
from gpu_worker.parallel.followers import Followers
from gpu_worker.parallel.link import Kind
from protos import wire
from protos.plan import BatchPlan, BatchResult, Envelope, Hello


@dataclass(frozen=True, slots=True)
class LeaderStep:
    """StepInFlight of all ranks; they sample the same, so that rank 0's result is everybody's."""

    own: StepInFlight
    followers: Followers

    def is_done(self) -> bool:
        """See StepInFlight."""
        return self.own.is_done()

    def result(self) -> BatchResult:
        """See StepInFlight."""
        try:
            return self.own.result()
        except Exception as error:
            self.followers.fail(error)
            raise


class LeaderEngine:
    """Engine whose every call all ranks carry out, in the same order.

    Whatever fails but a plan ends the group: the others may wait for this rank in the middle of the
    step, and the pool is no longer the same everywhere.
    """

    def __init__(self, engine: Engine, followers: Followers) -> None:
        """`engine` is rank 0's; all ranks are ready."""
        self._engine = engine
        self._followers = followers

    def hello(self) -> Hello:
        """See Engine; bytes are those of all ranks together."""
        hello = self._engine.hello()
        num_ranks = 1 + len(self._followers.pids)
        return replace(hello, kv_bytes_per_slot=hello.kv_bytes_per_slot * num_ranks)

    def reset(self) -> None:
        """See Engine."""
        self._followers.send(Kind.RESET)
        self._engine.reset()

    def begin(self, plan: BatchPlan) -> LeaderStep:
        """See Engine."""
        self._followers.send(Kind.PLAN, wire.encode(Envelope(epoch=0, message=plan)))
        try:
            return LeaderStep(self._engine.begin(plan), self._followers)
        except PlanError:
            raise  # all ranks found the same before they did anything
        except Exception as error:
            self._followers.fail(error)
            raise

    def dismiss(self) -> None:
        """Lets the other ranks leave, and waits; without it they leave with this process."""
        self._followers.dismiss()
