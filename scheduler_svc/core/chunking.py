"""How much of a step prompts may take, and how much of it one prompt.  Moves nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from scheduler_svc.core.request import Request
from scheduler_svc.core.step_time import StepTimeModel

_NS_PER_MS = 1_000_000


class ChunkingConfig(Protocol):
    """The part of the configuration that chunks depend on."""

    @property
    def max_batch_tokens(self) -> int:
        """Most tokens computed in one step."""
        ...

    @property
    def chunk_size(self) -> int:
        """Most tokens of one prompt in one step, without a workload class."""
        ...

    @property
    def chunk_sizes(self) -> Mapping[str, int]:
        """The same by workload class."""
        ...

    @property
    def prefill_share(self) -> float:
        """Share of a step's tokens that prompts may take while others decode."""
        ...

    @property
    def itl_target_ms(self) -> float:
        """Predicted time a step stays below while others decode; 0: no target."""
        ...


def chunk_of(config: ChunkingConfig, request: Request) -> int:
    """Most tokens of this request's prompt that one step computes."""
    size = config.chunk_sizes.get(request.submission.workload, config.chunk_size)
    return min(size, config.max_batch_tokens)


def prefill_budget(config: ChunkingConfig, num_decodes: int, model: StepTimeModel) -> int:
    """Tokens that all prompts together may take in a step beside `num_decodes` decoding rows.

    All of the step when nobody decodes, because nobody's next token then waits for it.  At
    least one otherwise, as long as the rows leave any, so that prompts always advance.
    """
    if not num_decodes:
        return config.max_batch_tokens
    budget = max(1, int(config.prefill_share * config.max_batch_tokens))
    budget = min(budget, config.max_batch_tokens - num_decodes)
    if config.itl_target_ms > 0 and budget > 0:
        target_ns = int(config.itl_target_ms * _NS_PER_MS)
        budget = model.most_prefill_tokens(num_decodes, target_ns, budget)
    return max(0, budget)


def order_prefills(prefills: Sequence[Request]) -> list[Request]:
    """In which order part-way prompts get their chunks of a step.

    The first, which has waited longest, always advances, so none starves; then those that end
    soonest, so that a short prompt never waits for the end of a long one (field case 49).

    Args:
        prefills: In order of admission.
    """
    return [*prefills[:1], *sorted(prefills[1:], key=_num_owed)]


def _num_owed(request: Request) -> int:
    return request.num_owed
