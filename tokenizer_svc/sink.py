"""Where the pieces of a generation go: pushed as they come, held back where nobody takes them.

Knows no client and no format.
"""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
U = TypeVar("U")


class Sink(Protocol[T_contra]):
    """Takes values without a wait as long as it is ready, which is most of the time."""

    @property
    def is_ready(self) -> bool:
        """It takes a value now; else whoever has one keeps it, and waits in `ready`."""
        ...

    def put(self, value: T_contra, /) -> bool:
        """Takes a value; only when it is ready.  False: it goes on only while somebody waits in
        `ready`.

        Raises:
            RadixdError: it takes no more.
        """
        ...

    async def ready(self) -> None:
        """Returns once it has passed on what it took.

        Raises:
            RadixdError: it takes no more.
        """
        ...


class Collected(Generic[T]):
    """Keeps everything, for those who want it whole."""

    is_ready = True

    def __init__(self) -> None:
        self.values: list[T] = []

    def put(self, value: T, /) -> bool:
        """Keeps it."""
        self.values.append(value)
        return True

    async def ready(self) -> None:
        """At once."""


class Discarded:
    """Keeps nothing, for those who have seen what they want on the way."""

    is_ready = True

    def put(self, value: object, /) -> bool:
        """Forgets it."""
        return True

    async def ready(self) -> None:
        """At once."""


class Translated(Generic[T, U]):
    """Passes values on in other words."""

    def __init__(self, say: Callable[[T], U], sink: Sink[U]) -> None:
        self._say = say
        self._sink = sink
        self.ready = sink.ready

    @property
    def is_ready(self) -> bool:
        """As the other sink."""
        return self._sink.is_ready

    def put(self, value: T, /) -> bool:
        """Says it to the other sink."""
        return self._sink.put(self._say(value))
