"""The books again and again for those who watch: so many at once, and none of them for ever.

Not here: where the books come from and what a watcher may see of them.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

from protos.errors import QueueFull, Unavailable

MAX_WATCHERS = 64

T = TypeVar("T")


class StatsWatch:
    """Everybody who watches now."""

    def __init__(self) -> None:
        self._watchers: set[asyncio.Timeout] = set()
        self._is_closed = False

    def close(self) -> None:
        """Ends every watch, with a reason: a server that drains must not wait for them."""
        self._is_closed = True
        now_s = asyncio.get_running_loop().time()
        for watcher in self._watchers:
            watcher.reschedule(now_s)

    async def watch(
        self,
        look: Callable[[], Awaitable[T]],
        tell: Callable[[T], Awaitable[None]],
        *,
        interval_s: float,
    ) -> None:
        """Looks and tells at once and then every interval, until cancelled.

        `tell` waits for a slow reader, and what it misses meanwhile is never looked at.  A look
        that fails ends the watch only if it is the first; later ones are left out until the
        scheduler is back.

        Raises:
            QueueFull: as many watch as may.
            Unavailable: the first look failed, or the server is shutting down.
        """
        if len(self._watchers) >= MAX_WATCHERS:
            raise QueueFull(f"{MAX_WATCHERS} callers watch the books, as many as may; try later")
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._watchers.add(scope)
                await self._tell_on(look, tell, interval_s)
        except TimeoutError:
            if not self._is_closed:
                raise
            raise Unavailable("the server is shutting down") from None
        finally:
            self._watchers.discard(scope)

    async def _tell_on(
        self,
        look: Callable[[], Awaitable[T]],
        tell: Callable[[T], Awaitable[None]],
        interval_s: float,
    ) -> None:
        loop = asyncio.get_running_loop()
        await tell(await look())
        next_s = loop.time() + interval_s
        while True:
            await asyncio.sleep(next_s - loop.time())
            # Beats that a slow reader or a slow answer made late are dropped, not made up for.
            next_s = max(next_s, loop.time()) + interval_s
            with contextlib.suppress(Unavailable):
                await tell(await look())
