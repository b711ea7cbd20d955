"""Where the time of the steps goes, as running sums.  Told every time; has no clock of its own."""

from dataclasses import dataclass, field
from typing import NamedTuple

from protos.plan import BatchPlan, BatchResult

_PHASES = ("products_ns", "attention_ns", "forward_rest_ns", "sampling_ns", "worker_rest_ns")
"""What `BatchResult.phases_ns` has, in its order."""


@dataclass(slots=True)
class StepSums:
    """Sums over answered steps of one kind; as in radixd.v1.StepSums."""

    num_steps: int = 0
    num_phased_steps: int = 0
    """Of those, steps that the worker measured by phase."""
    num_rows: int = 0
    num_tokens: int = 0
    """Computed; those sampled are apart."""
    num_sampled: int = 0
    busy_ns: int = 0
    products_ns: int = 0
    attention_ns: int = 0
    forward_rest_ns: int = 0
    sampling_ns: int = 0
    worker_rest_ns: int = 0
    schedule_ns: int = 0
    apply_ns: int = 0


class _Sent(NamedTuple):
    step_id: int
    sums: StepSums
    num_rows: int
    num_tokens: int
    schedule_ns: int
    sent_ns: int


@dataclass(slots=True)
class StepProfile:
    """The sums of both kinds of steps.

    A step is busy from when its plan was sent, or from the answer to the plan before if that came
    later, to its answer.  So no two steps are busy at once although two plans may be in flight,
    and what is left of the time is idle.
    """

    decode: StepSums = field(default_factory=StepSums)
    """Steps of which every row computes no more than what it samples after."""
    prompt: StepSums = field(default_factory=StepSums)
    """Steps that compute other tokens too: of prompts, or what was lost and comes back."""
    _in_flight: list[_Sent] = field(default_factory=list)
    _answered_ns: int = 0

    def sent(self, plan: BatchPlan, scheduled_ns: int, now_ns: int) -> None:
        """A plan is sent now; it took from `scheduled_ns` on to make."""
        is_decode = all(map(int.__le__, plan.extend_lens, plan.samples))
        self._in_flight.append(
            _Sent(
                step_id=plan.step_id,
                sums=self.decode if is_decode else self.prompt,
                num_rows=len(plan.rows),
                num_tokens=len(plan.input_ids),
                schedule_ns=now_ns - scheduled_ns,
                sent_ns=now_ns,
            )
        )

    def answered(self, result: BatchResult, answered_ns: int, now_ns: int) -> None:
        """The oldest plan was answered at `answered_ns`, and is applied now."""
        sent = self._in_flight.pop(0)
        assert sent.step_id == result.step_id, result.step_id
        sums = sent.sums
        sums.num_steps += 1
        sums.num_rows += sent.num_rows
        sums.num_tokens += sent.num_tokens
        sums.num_sampled += len(result.token_ids)
        sums.busy_ns += answered_ns - max(sent.sent_ns, self._answered_ns)
        sums.schedule_ns += sent.schedule_ns
        sums.apply_ns += now_ns - answered_ns
        if any(result.phases_ns) and len(result.phases_ns) == len(_PHASES):
            sums.num_phased_steps += 1
            for name, phase_ns in zip(_PHASES, result.phases_ns, strict=True):
                setattr(sums, name, getattr(sums, name) + phase_ns)
        self._answered_ns = answered_ns

    def forget_in_flight(self) -> None:
        """What is in flight will not be answered: its worker is gone."""
        self._in_flight.clear()
