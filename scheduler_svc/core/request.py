"""State of one request inside the core.  Holds numbers; decides nothing.

One arithmetic: a request has `num_tokens` and `num_computed` and owes the difference.  Prefix
hits, chunks, decoding and resuming after retraction are all that one subtraction.
"""

from __future__ import annotations

from array import array
from enum import Enum

from scheduler_svc.core.messages import Submission
from scheduler_svc.core.radix_node import Lease, Namespace


class State(Enum):
    """Where a request stands."""

    WAITING = 1
    RUNNING = 2
    RETRACTING = 3
    """Cut back; what it holds comes back with its last plan in flight, then it waits again."""
    LEAVING = 4
    """Ended; what it holds comes back with its last plan in flight."""
    GONE = 5


class Request:
    """A live request: its tokens, how far they are computed, and what it holds."""

    __slots__ = (
        "arrival",
        "cached_tokens",
        "is_bound",
        "is_resuming",
        "lease",
        "most_computed",
        "namespace",
        "num_acked",
        "num_admitted_before",
        "num_computed",
        "num_in_flight",
        "num_pending",
        "num_retractions",
        "pages",
        "peek_again_at",
        "peeked_tokens",
        "row",
        "state",
        "submission",
        "tokens",
    )

    def __init__(
        self, submission: Submission, namespace: Namespace, *, arrival: int, num_admitted: int
    ) -> None:
        self.submission = submission
        self.namespace = namespace
        self.arrival = arrival
        """Counts up; the order of submission."""
        self.num_admitted_before = num_admitted
        """Admissions before this request arrived."""
        self.tokens: array[int] = array("i", submission.prompt_ids)
        """Prompt and every known output token."""
        if submission.resume_output_ids is not None:
            self.tokens.extend(submission.resume_output_ids)
        self.state = State.WAITING
        self.is_resuming = False
        """Was retracted: comes back only when its whole need fits."""
        self.num_retractions = 0
        self.cached_tokens: int | None = None
        """Prompt tokens found in the tree at first admission; fixed from then on."""
        self.peeked_tokens = 0
        """Tokens the tree held at the last look at it while waiting."""
        self.peek_again_at = 0
        """Step id from which on to look again."""
        self.most_computed = 0
        """Highest num_computed ever; what lies below and is computed again is the tax."""
        self.row = -1
        self.is_bound = False
        """The worker has been told which slots the row begins with."""
        self.lease: Lease | None = None
        self.pages: list[int] = []
        """Pages of positions [0, len(pages) * page_size); the first ones are the lease's."""
        self.num_computed = 0
        """Positions computed once every plan in flight has run."""
        self.num_acked = 0
        """Positions whose computation the worker has reported."""
        self.num_pending = 0
        """Tokens sampled by plans in flight, not known yet."""
        self.num_in_flight = 0
        """Plans in flight that name this request."""

    @property
    def request_id(self) -> str:
        """The id its submitter chose."""
        return self.submission.request_id

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.submission.prompt_ids)

    @property
    def num_outputs(self) -> int:
        """Known output tokens."""
        return len(self.tokens) - len(self.submission.prompt_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens known or being sampled."""
        return len(self.tokens) + self.num_pending

    @property
    def num_owed(self) -> int:
        """Tokens to compute before the next one can be sampled."""
        return len(self.tokens) + self.num_pending - self.num_computed

    @property
    def num_left(self) -> int:
        """Tokens still to be sampled, beyond those already pending."""
        return self.submission.max_tokens - self.num_outputs - self.num_pending

    def forget_kv(self) -> None:
        """After its pages and row were given back: nothing of it is computed any more."""
        self.row = -1
        self.is_bound = False
        self.lease = None
        self.pages = []
        self.num_computed = self.num_acked = self.num_pending = self.num_in_flight = 0
