"""State of one request inside the core.  Holds numbers; decides nothing.

One arithmetic: a request has `num_tokens` and `num_computed` and owes the difference.  Prefix
hits, chunks, decoding and resuming after retraction are all that one subtraction.
"""

from __future__ import annotations

from array import array
from enum import Enum
from typing import NamedTuple

from scheduler_svc.core.drafts import Drafter
from scheduler_svc.core.messages import Submission
from scheduler_svc.core.pin import Pin
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


class Event(NamedTuple):
    """Something that happened to a request, for whoever asks why."""

    at_ns: int
    name: str
    detail: str


MOST_EVENTS = 64
"""Events kept of one request; the oldest go first."""


class Request:
    """A live request: its tokens, how far they are computed, and what it holds."""

    __slots__ = (
        "admitted_tick",
        "arrival",
        "asked",
        "cached_tokens",
        "drafter",
        "end_tokens",
        "events",
        "generates",
        "is_bound",
        "is_resuming",
        "kept",
        "last_step_id",
        "lease",
        "most_computed",
        "namespace",
        "num_accepted",
        "num_admitted_before",
        "num_computed",
        "num_drafted",
        "num_found_pages",
        "num_pending",
        "num_retractions",
        "num_unacked",
        "num_unscored",
        "pages",
        "peeked_at",
        "peeked_tokens",
        "request_id",
        "row",
        "session",
        "state",
        "stop_ids",
        "submission",
        "submitted_ns",
        "tokens",
    )

    def __init__(
        self,
        submission: Submission,
        namespace: Namespace,
        *,
        arrival: int,
        num_admitted: int,
        now_ns: int,
        eos_token_ids: tuple[int, ...] = (),
    ) -> None:
        self.asked = submission
        """As it came; a worker with another length clips it anew."""
        self.submission = submission
        self.request_id = submission.request_id
        """The id its submitter chose."""
        self.namespace = namespace
        self.arrival = arrival
        """Counts up; the order of submission."""
        self.submitted_ns = now_ns
        self.num_admitted_before = num_admitted
        """Admissions before this request arrived."""
        self.tokens: array[int] = array("i", submission.prompt_ids)
        """Prompt and every known output token."""
        if submission.resume_output_ids is not None:
            self.tokens.extend(submission.resume_output_ids)
        self.end_tokens = len(submission.prompt_ids) + submission.max_tokens
        """Tokens it ends with at the latest."""
        self.generates = submission.max_tokens > 0
        """Samples tokens; the others compute their prompt, to keep it or to score it."""
        self.num_unscored = 0
        """Tokens of its prompt whose log probability is wanted and not known yet: the last ones."""
        if submission.sampling.prompt_logprobs >= 0:
            self.num_unscored = len(submission.prompt_ids) - 1
        eos = () if submission.ignore_eos else eos_token_ids
        self.stop_ids = frozenset((*submission.stop_token_ids, *eos))
        """Tokens that end it."""
        self.session = submission.session
        """Whose tail it becomes; empty: nobody's, or the session was closed meanwhile."""
        self.state = State.WAITING
        self.is_resuming = False
        """Was retracted: comes back only when its whole need fits."""
        self.kept: Pin | None = None
        """While it waits to return: what marks the part of it that is still cached."""
        self.most_computed = 0
        """Highest num_computed of earlier admissions; what is computed again below it is tax."""
        self._have_no_past()
        self._hold_nothing()

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
        return self.end_tokens - len(self.tokens) - self.num_pending

    @property
    def num_acked(self) -> int:
        """Positions whose computation the worker has reported."""
        return self.num_computed - self.num_unacked

    @property
    def num_scored(self) -> int:
        """The first so many positions need not be computed to score the prompt: what follows them
        is scored."""
        return len(self.submission.prompt_ids) - 1 - self.num_unscored

    def num_to_prefill(self, page_size: int) -> int:
        """Tokens of its prompt, or of what was cut back, still to be computed; of a preheat, in
        whole pages."""
        if self.is_preheat:
            return self.num_prompt - self.num_prompt % page_size - self.num_computed
        if not self.generates:
            return self.num_prompt - 1 - self.num_computed  # nothing follows the last token
        return self.num_owed

    def num_wanted(self, page_size: int) -> int:
        """Tokens it wants computed now, when it runs; 0 when it only waits for results."""
        if not self.generates or self.num_left > 0:
            return self.num_to_prefill(page_size)
        return 0

    @property
    def is_preheat(self) -> bool:
        """Computes its prompt and generates nothing."""
        return self.submission.preheat

    def clip(self, submission: Submission) -> None:
        """Takes the same submission with another max_tokens."""
        self.submission = submission
        self.end_tokens = len(submission.prompt_ids) + submission.max_tokens

    def note(self, now_ns: int, name: str, detail: str = "") -> None:
        """Remembers an event, for whoever asks why."""
        if len(self.events) >= MOST_EVENTS:
            del self.events[1]  # the first one says when it came
        self.events.append(Event(now_ns, name, detail))

    def forget_kv(self) -> None:
        """After its pages and row were given back: nothing of it is computed any more."""
        self.most_computed = max(self.most_computed, self.num_computed)
        self._hold_nothing()

    def _have_no_past(self) -> None:
        self.num_retractions = 0
        self.cached_tokens: int | None = None
        """Prompt tokens found in the tree at first admission; fixed from then on."""
        self.num_found_pages = 0
        """The first so many pages of its tokens were in the tree when it had computed them: those
        that others computed, too, while it could not use theirs."""
        self.peeked_tokens = 0
        """Tokens the tree held at the last look at it while waiting."""
        self.peeked_at = -1
        """Version of the tree at that look."""
        self.admitted_tick = 0
        """Which admission of all was its last one."""
        self.last_step_id = 0
        """The last plan that computed something for it."""
        self.events: list[Event] = []
        self.drafter: Drafter | None = None
        """Of a request that decoded where drafts were possible."""
        self.num_drafted = 0
        """Tokens that were computed for it on a guess."""
        self.num_accepted = 0
        """Tokens it got because a guess was right."""

    def _hold_nothing(self) -> None:
        self.row = -1
        self.is_bound = False
        """The worker has been told which slots the row begins with."""
        self.lease: Lease | None = None
        self.pages: array[int] = array("i")
        """Pages of positions [0, len(pages) * page_size); the first ones are the lease's."""
        self.num_computed = 0
        """Positions computed once every plan in flight has run."""
        self.num_unacked = 0
        """Of those, positions whose computation the worker has not reported yet."""
        self.num_pending = 0
        """Tokens sampled by plans in flight, not known yet."""
