"""From the news of a request's choices to the sink of its pieces, without a task in between.

Whoever brings news (the scheduler's stream, a cancellation) carries it through to the sink in the
same call as long as the sink is ready, so that a token costs no wake-up of a task.  Where it is
not, tokens stay in their live requests, and the request's own task goes on from there.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tokenizer_svc.generate import Finish, Piece, RunningOutput
from tokenizer_svc.sink import Sink


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The bill of a request."""

    num_prompt_tokens: int
    """Once, however many choices there are."""
    num_output_tokens: int
    """Of all choices, those that best_of dropped among them."""
    num_cached_tokens: int
    """Of choice 0, which is the first to ask for the prompt."""
    num_reasoning_tokens: int = 0
    """Of num_output_tokens, those of thoughts that came apart from the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoicePiece:
    """A piece of one choice."""

    choice: int
    """From 0."""
    piece: Piece
    usage: Usage | None = None
    """Set in the last piece of all, and only there."""


class Delivery:
    """Delivers the outputs of one request; `run` it once."""

    def __init__(self, outputs: Sequence[RunningOutput], sink: Sink[ChoicePiece]) -> None:
        """Outputs are in the order of their choices."""
        self._running = dict(enumerate(outputs))
        self._sink = sink
        self._finishes: dict[int, Finish] = {}
        self._problem: Exception | None = None
        self._is_busy = False
        self._is_needed = asyncio.Event()
        """Set where the task has to go on: the sink is not ready, or all is over."""

    async def run(self) -> None:
        """Returns once the sink has passed on the last piece of all choices.

        Raises:
            RadixdError: a choice ended without a result, or the sink takes no more.
        """
        followed = list(self._running.items())
        for choice, output in followed:
            output.live.listener = partial(self._carry, choice, output)
        try:
            is_over = False
            while not is_over:
                for choice, output in list(self._running.items()):
                    self._carry(choice, output)
                await self._is_needed.wait()
                self._is_needed.clear()
                if self._problem is not None:
                    raise self._problem
                # What comes while it waits may be the last, and have to wait in turn.
                is_over = not self._running
                await self._sink.ready()
        finally:
            for _, output in followed:
                output.live.listener = None

    def _carry(self, choice: int, output: RunningOutput) -> None:
        """Takes what a choice has to the sink; never raises, as whoever calls serves others too."""
        # A stop text ends its own request, which is news of it again.
        if self._is_busy or self._problem is not None or not output.live.has_news:
            return
        if not self._sink.is_ready:
            self._is_needed.set()
            return
        self._is_busy = True
        try:
            piece = output.take()
            if piece is not None:
                self._put(choice, piece)
        except Exception as problem:
            self._problem = problem
            self._is_needed.set()
        finally:
            self._is_busy = False

    def _put(self, choice: int, piece: Piece) -> None:
        usage = None
        if piece.finish is not None:
            self._running.pop(choice).live.listener = None
            self._finishes[choice] = piece.finish
            if not self._running:
                usage = _usage(self._finishes)
                self._is_needed.set()
        if not self._sink.put(ChoicePiece(choice=choice, piece=piece, usage=usage)):
            self._is_needed.set()


def _usage(finishes: Mapping[int, Finish]) -> Usage:
    return Usage(
        num_prompt_tokens=finishes[0].num_prompt_tokens,
        num_output_tokens=sum(finish.num_output_tokens for finish in finishes.values()),
        num_cached_tokens=finishes[0].num_cached_tokens,
        num_reasoning_tokens=sum(finish.num_reasoning_tokens for finish in finishes.values()),
    )
