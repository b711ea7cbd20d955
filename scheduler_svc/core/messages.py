"""What goes into the core and what comes out of it, besides plans and results."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from enum import IntEnum

from protos.plan import BatchPlan, SamplingParams


class Ending(IntEnum):
    """How a request ended.  The numbers are those of radixd.scheduler.v1.Ending."""

    STOP = 1
    LENGTH = 2
    DEADLINE = 3
    """With whatever tokens there were; none at all means that it expired in the queue."""
    POOL_FULL = 4
    """It was alone and the pool had no slot left to grow into."""
    CANCELLED = 5
    REJECTED_INVALID = 6
    REJECTED_TOO_LARGE = 7
    REJECTED_QUEUE_FULL = 8
    REJECTED_DUPLICATE_ID = 9
    FAILED = 10
    PREHEATED = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A request as the core takes it."""

    request_id: str
    prompt_ids: array[int]
    """[num_prompt_tokens], typecode "i"."""
    sampling: SamplingParams = SamplingParams()  # noqa: RUF009 (frozen, so sharing it is safe)
    max_tokens: int
    """Most tokens to generate; 0 only with preheat."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    cache_domain: str = ""
    no_store: bool = False
    deadline_ns: int | None = None
    """On the clock of the `now_ns` arguments."""
    preheat: bool = False
    resume_output_ids: array[int] | None = None
    """Tokens an earlier scheduler already delivered; they count against max_tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """News of one request.  After an output with an ending there is none."""

    request_id: str
    token_ids: array[int]
    """[n] new tokens, typecode "i"; may be empty."""
    ending: Ending | None = None
    message: str = ""
    """For people, where the ending needs a sentence."""
    field: str = ""
    """The field of the submission that a rejection is about."""
    cached_tokens: int = 0
    """Prompt tokens served from the cache at first admission."""
    computed_tokens: int = 0
    """Of a preheat that is done: tokens computed for it; whole pages only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one call of schedule decided."""

    plan: BatchPlan | None
    """None: nothing to compute now, or enough plans are in flight."""
    outputs: list[Output]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotBooks:
    """Slots by owner; free + private + evictable + locked + in_flight == total."""

    total: int
    free: int
    private: int
    evictable: int
    locked: int
    in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeNodeView:
    """One node of a dumped tree."""

    parent: int
    """Position of the parent in the dump; -1 for a root."""
    token_ids: array[int]
    locked: bool
    hits: int
    cache_domain: str
