"""What goes into the core and what comes out of it, besides plans and results."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from protos.plan import BatchPlan, LogprobColumns, SamplingParams


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


class PinLevel(IntEnum):
    """How firmly a prefix is kept.  The numbers are those of radixd.v1.PinLevel."""

    NONE = 1
    SOFT = 2
    """Evicted after everything that is not pinned."""
    HARD = 3
    """Not evicted while it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A request as the core takes it."""

    request_id: str
    prompt_ids: array[int]
    """[num_prompt_tokens], typecode "i"."""
    sampling: SamplingParams = SamplingParams()  # noqa: RUF009 (frozen, so sharing it is safe)
    max_tokens: int
    """Most tokens to generate; 0 only with preheat, or with log probabilities of the prompt."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    cache_domain: str = ""
    no_store: bool = False
    deadline_ns: int | None = None
    """On the clock of the `now_ns` arguments."""
    preheat: bool = False
    resume_output_ids: array[int] | None = None
    """Tokens an earlier scheduler already delivered; they count against max_tokens."""
    tenant: str = ""
    """Whom the front authenticated; empty: nobody in particular."""
    priority: int = 0
    """Higher goes first, under the policies that look at it."""
    workload: str = ""
    """Class that sets the chunk size; one the configuration does not know counts as none."""
    client_request_id: str = ""
    """What operators call it; empty: `request_id`."""
    session: str = ""
    """The conversation of its tenant and domain whose tail stays warm after it; empty: none."""
    pin: PinLevel = PinLevel.NONE
    """Of a preheat: what becomes of its prefix afterwards."""
    pin_ttl_ns: int = 0
    """The pin goes so long after its last hit; 0: when somebody removes it."""


class Output(NamedTuple):
    """News of one request.  After an output with an ending there is none.

    A tuple, because one is made for every token of every stream.
    """

    request_id: str
    token_ids: Sequence[int]
    """[n] new tokens; may be empty."""
    cached_tokens: int = 0
    """Prompt tokens served from the cache at first admission."""
    ending: Ending | None = None
    message: str = ""
    """For people, where the ending needs a sentence."""
    field: str = ""
    """The field of the submission that a rejection is about."""
    computed_tokens: int = 0
    """Of a preheat that is done: tokens computed for it; whole pages only."""
    logprobs: LogprobColumns | None = None
    """Of `token_ids`, where the request asked."""
    pin: PinReceipt | None = None
    """Of a preheat that asked for a pin."""
    prompt_logprobs: LogprobColumns | None = None
    """Where the request asked: of the next tokens of its prompt, which begin with the second.  All
    of them have come before, or come with, its first token."""


class PinReceipt(NamedTuple):
    """What became of the wish to pin a prefix."""

    pin_id: str
    """Empty: nothing is pinned."""
    num_tokens: int
    """Tokens the pin holds."""
    message: str = ""
    """Why it is not what was asked for."""


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
    tenant: str = ""
