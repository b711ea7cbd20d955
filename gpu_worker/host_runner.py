"""Steps whose logits lie in the host's memory: the backend computes, the host samples, at once.

Not here: the forward pass, how one token is drawn.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from gpu_worker.backend import Backend
from gpu_worker.prompt_scoring import score_prompts
from gpu_worker.row_table import RowTable
from gpu_worker.step import Step
from gpu_worker.step_runner import Sampled
from gpu_worker.step_sampling import row_faults, sample_step


@dataclass(frozen=True, slots=True)
class SampledStep:
    """RunningStep that is done."""

    done: Sampled

    def is_done(self) -> bool:
        """Always."""
        return True

    def sampled(self) -> Sampled:
        """See RunningStep."""
        return self.done


class HostRunner:
    """StepRunner on a backend of the CPU."""

    def __init__(self, backend: Backend, table: RowTable) -> None:
        self._backend = backend
        self._table = table

    def settle(self) -> None:
        """See StepRunner: nothing is ever in flight."""

    def begin(self, step: Step) -> SampledStep:
        """See StepRunner; all of it happens here."""
        started_ns = time.perf_counter_ns()
        logits = self._backend.forward(step)
        sampling_ns = time.perf_counter_ns()
        prompt_logprobs = score_prompts(self._table, step, logits)
        token_ids, num_sampled, logprobs = sample_step(self._table, step, logits)
        done_ns = time.perf_counter_ns()
        phases = self._backend.phases_ns()
        inside_ns = phases["products"], phases["attention"], phases["rest"]
        # Calling the backend is Python of the worker, as far as the backend does not count it.
        python_ns = max(0, sampling_ns - started_ns - sum(inside_ns))
        sampled = Sampled(
            token_ids=token_ids,
            num_sampled=num_sampled,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            row_faults=row_faults(self._table, step),
            forward_ns=done_ns - started_ns,
            phases_ns=(*inside_ns, done_ns - sampling_ns, python_ns),
        )
        return SampledStep(sampled)

    def forget(self) -> None:
        """See StepRunner."""
        self._backend.forget()
