"""One request between the scheduler's stream and the handler that answers the client.

Tokens collect here however slowly the client reads, at most max_tokens of them; a slow client
therefore blocks nobody.  Sends nothing itself.
"""

import asyncio
from array import array
from collections.abc import Callable
from dataclasses import dataclass

from protos.errors import RadixdError
from protos.plan import LogprobColumns, SamplingParams
from tokenizer_svc.prompt_scores import PromptScores
from tokenizer_svc.token_log import TokenLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A request as the scheduler takes it."""

    prompt_ids: "array[int]"
    """[num_prompt_tokens] typecode "I"."""
    sampling: SamplingParams = SamplingParams()  # noqa: RUF009 (frozen, so sharing it is safe)
    max_tokens: int
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    cache_domain: str = ""
    no_store: bool = False
    deadline_s: float | None = None
    """On the event loop's clock."""
    preheat: bool = False
    priority: int = 0
    workload: str = ""
    tenant: str = ""
    """Whom the front authenticated; empty: nobody in particular."""
    session: str = ""
    """The conversation whose tail stays warm; empty: none."""
    pin: int = 0
    """Of a preheat: a value of radixd.v1.PinLevel; 0: no pin."""
    pin_ttl_ms: int = 0
    """0: the pin stays until it is removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the scheduler says a request ended."""

    ending: int
    """A value of radixd.scheduler.v1.Ending."""
    message: str = ""
    field: str = ""
    computed_tokens: int = 0
    """Of a preheat."""
    pin_id: str = ""
    """Of a preheat whose prefix is pinned."""
    pinned_tokens: int = 0
    pin_error: str = ""
    """Why it is not pinned, or not as asked."""


class LiveRequest:
    """What is known of one request; exactly one handler waits for its news."""

    __slots__ = (
        "_news",
        "_num_taken",
        "cached_tokens",
        "expiry",
        "listener",
        "log",
        "outcome",
        "request_id",
        "scores",
        "submission",
        "wire_id",
    )

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.submission: Submission | None = None
        """None until it is submitted."""
        self.wire_id = ""
        """The name of this attempt towards the scheduler; empty: none."""
        self.log = TokenLog()
        """All tokens so far, taken by the handler or not."""
        self.scores: PromptScores | None = None
        """Of a request that asks for its prompt's log probabilities, once it is submitted."""
        self.cached_tokens: int | None = None
        """Fixed with the first news from the scheduler."""
        self.outcome: Outcome | RadixdError | None = None
        self.expiry: asyncio.TimerHandle | None = None
        self.listener: Callable[[], None] | None = None
        """Called with each news where nobody waits in `changed`; must not raise."""
        self._num_taken = 0
        self._news = asyncio.Event()

    @property
    def token_ids(self) -> "array[int]":
        """All tokens so far; typecode "I"."""
        return self.log.token_ids

    def receive(
        self,
        token_ids: "array[int]",
        *,
        cached_tokens: int,
        logprobs: LogprobColumns | None = None,
    ) -> None:
        """Adds new tokens, of which `tell` or `end` tells; the first of them fix the cached
        count."""
        if token_ids:
            if self.cached_tokens is None:
                self.cached_tokens = cached_tokens
            self.log.extend(token_ids, logprobs)

    def end(self, outcome: Outcome | RadixdError) -> None:
        """Sets how it ended; the first call counts."""
        if self.outcome is None:
            self.outcome = outcome
            self.tell()

    def tell(self) -> None:
        """Tells whoever follows this request that there is news of it."""
        if self.listener is not None:
            self.listener()
        else:
            self._news.set()

    def wake(self) -> None:
        """Lets `changed` return without news: what it waits for elsewhere has changed."""
        self._news.set()

    @property
    def has_news(self) -> bool:
        """There are tokens to take, or it has ended."""
        return self.outcome is not None or self._num_taken < len(self.token_ids)

    async def changed(self) -> None:
        """Returns when there is news, or after `wake`."""
        if not self.has_news:
            self._news.clear()
            await self._news.wait()

    def take(self) -> "array[int]":
        """The tokens that came since the last call."""
        taken = self.token_ids[self._num_taken :]
        self._num_taken = len(self.token_ids)
        return taken
