"""How much of a step prompts may take, and how much of it one prompt.  Moves nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from scheduler_svc.core.in_flight import PlanInFlight
from scheduler_svc.core.request import Request
from scheduler_svc.core.step_time import MIN_PREFILL_TOKENS, StepTimeModel

_NS_PER_MS = 1_000_000

LONG_STEP_NS = 50 * _NS_PER_MS
"""A step during which somebody may well come."""


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
        """Predicted time a step stays below while others decode or share it; 0: no target."""
        ...


MOST_SCORED_TOKENS = 256
"""Of all prompts that are scored, a step computes so many tokens: a worker has the logits of each
at once, 150 MB at a vocabulary of 150 000."""


def chunk_of(config: ChunkingConfig, request: Request) -> int:
    """Most tokens of this request's prompt that one step computes."""
    size = config.chunk_sizes.get(request.submission.workload, config.chunk_size)
    if request.num_unscored:
        size = min(size, MOST_SCORED_TOKENS)
    return min(size, config.max_batch_tokens)


def prefill_budget(
    config: ChunkingConfig,
    num_decodes: int,
    model: StepTimeModel,
    *,
    num_before: int = 0,
    num_unscored: int = 0,
    is_shared: bool = False,
) -> int:
    """Tokens that all prompts together may take in a step beside `num_decodes` decoding rows.

    All of the step when nobody decodes and nobody else has a prompt, because nobody's next token
    then waits for it.  At least one otherwise, as long as the rows leave any, so that prompts
    always advance.

    Args:
        num_before: Tokens that the oldest part-way prompt has behind it; late in a long one a
            token takes longer.
        num_unscored: So many of them are scored; each of those goes through the head.
        is_shared: Whether more than one prompt wants tokens now: of those that end in this step,
            each first token waits for all of it.
    """
    budget = config.max_batch_tokens
    if num_decodes:
        budget = max(1, int(config.prefill_share * config.max_batch_tokens))
        budget = min(budget, config.max_batch_tokens - num_decodes)
    if config.itl_target_ms > 0 and budget > 0 and (num_decodes or is_shared):
        target_ns = int(config.itl_target_ms * _NS_PER_MS)
        budget = model.most_prefill_tokens(num_decodes, target_ns, budget, num_before, num_unscored)
    return max(0, budget)


def is_ahead_of_time(plan: PlanInFlight, model: StepTimeModel) -> bool:
    """Whether the next step should not be planned yet, because the one in flight is long.

    Planning ahead saves the worker a wait of a millisecond or two.  Beside a long step that is
    little, and whoever comes during it would find the next one planned without them.
    """
    rows = len(plan.decodes) + plan.num_verified_tokens
    predicted_ns = model.predict_ns(
        rows, plan.num_prefill_tokens, plan.num_prefill_pairs, plan.num_scored
    )
    return predicted_ns is not None and predicted_ns >= LONG_STEP_NS


def share_of_first(budget: int, shorter_want: int) -> int:
    """Most tokens of a step for the prompt that has waited longest; shorter ones want so many.

    What they leave, and a quarter at least, but no fewer than MIN_PREFILL_TOKENS, or it could be
    cut back faster than it advances.  Short prompts that came after it thus get the most of a step;
    longer ones get what it leaves: to share with those would delay it and help nobody.
    """
    return max(MIN_PREFILL_TOKENS, budget // 4, budget - shorter_want)


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
