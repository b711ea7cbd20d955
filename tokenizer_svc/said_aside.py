"""Pieces that are long to say are said in the thread that long replies have.

They hold up their own stream, and no other.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from tokenizer_svc.delivery import ChoicePiece
from tokenizer_svc.sink import Sink

_LONG_SCORES = 1 << 9
"""Log probabilities of one piece; more of them are said aside."""
_LONG_PIECES = 1 << 8
"""Of a whole reply; more are put together aside."""

T = TypeVar("T")
U = TypeVar("U")
Aside = Callable[[Callable[[], U]], Awaitable[U]]
"""Does work in that thread."""


def is_long(each: ChoicePiece) -> bool:
    """It has more log probabilities than the event loop has time for."""
    piece = each.piece
    if piece.logprobs is None and piece.prompt_logprobs is None:
        return False
    columns = [c for c in (piece.logprobs, piece.prompt_logprobs) if c is not None]
    return sum(len(c.chosen) + len(c.top_ids) for c in columns) > _LONG_SCORES


def is_long_reply(pieces: Sequence[ChoicePiece]) -> bool:
    """The same of a whole reply from these pieces."""
    return len(pieces) > _LONG_PIECES or any(map(is_long, pieces))


class SaidAside(Generic[T, U]):
    """Passes values on in other words; those that are long to say are said in a thread.

    It is not ready meanwhile, and nothing else is said, so that `say` may keep what it has said.
    """

    def __init__(
        self,
        say: Callable[[T], U],
        sink: Sink[U],
        *,
        is_long: Callable[[T], bool],
        aside: "Aside[U]",
        say_long: Callable[[T], U] | None = None,
    ) -> None:
        """Without `say_long`, `say` says the long ones, too; it pauses while it does."""
        self._say = say
        self._say_long = say_long or say
        self._sink = sink
        self._is_long = is_long
        self._aside = aside
        self._waiting: list[T] = []
        """The long one that is not said yet, if there is one."""
        self._turn = asyncio.Lock()

    @property
    def is_ready(self) -> bool:
        """As the other sink, unless something is being said."""
        return not self._waiting and self._sink.is_ready

    def put(self, value: T, /) -> bool:
        """Says it to the other sink, or lets it wait for `ready`."""
        if not self._is_long(value):
            return self._sink.put(self._say(value))
        self._waiting.append(value)
        return False

    async def ready(self) -> None:
        """Returns once the other sink has passed on what was said.

        Raises:
            RadixdError: it takes no more.
        """
        async with self._turn:
            for value in self._waiting:
                said = await self._aside(partial(self._say_long, value))
                await self._sink.ready()
                self._sink.put(said)
            self._waiting.clear()
        await self._sink.ready()
