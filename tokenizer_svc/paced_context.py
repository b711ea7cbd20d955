"""The context of a call whose client is expected to read: a write waits only so long.

gRPC lets a write wait for as long as the client reads nothing, cannot take a message back and
sends no status before it.  So the service is told to end the call, which gives back all that it
holds; what is left is one message, and the status after it, until the client reads or goes.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import grpc

from protos.errors import SlowReader


class PacedContext:
    """What our services use of a context; a sink of its messages (see `sink`)."""

    def __init__(
        self, context: grpc.aio.ServicerContext[Any, Any], *, slow_reader_s: float
    ) -> None:
        self._context = context
        self._slow_reader_s = slow_reader_s
        self._writing: Coroutine[Any, Any, None] | None = None
        """The write under way; gRPC takes one at a time."""
        self._problem: BaseException | None = None
        """Why nothing more is taken."""
        self._end: asyncio.Future[None] | None = None
        """What `ready` waits for: the end of the write, or of the client's time."""
        self._patience: asyncio.Timeout | None = None
        """Ends what puts without waiting."""
        self._begun_s = 0.0
        self._watch: asyncio.TimerHandle | None = None

    @property
    def is_ready(self) -> bool:
        """No write is under way."""
        return self._writing is None and self._problem is None

    def put(self, message: Any, /) -> bool:
        """Has a message of the stream sent.

        Every token comes by here, so no task is made for it.  The write begins when whoever puts
        is done with all streams: those of a step, back to back, share packets and wake-ups.
        """
        assert self.is_ready
        loop = asyncio.get_running_loop()
        self._writing = self._context.write(message)
        self._begun_s = loop.time()
        if self._watch is None:
            # One timer for many writes.
            self._watch = loop.call_later(self._slow_reader_s, self._look)
        loop.call_soon(self._go_on)
        return True

    @contextlib.asynccontextmanager
    async def while_read(self) -> AsyncIterator[None]:
        """Ends the block when the client has taken nothing for too long, whatever it waits for.

        Raises:
            SlowReader: that happened.
        """
        try:
            async with asyncio.timeout(None) as self._patience:
                yield
        except TimeoutError:
            if self._problem is None:
                raise
            raise self._problem from None
        finally:
            self._patience = None

    async def ready(self) -> None:
        """Returns once no write is under way.

        Raises:
            SlowReader: the client took nothing for too long.
        """
        while self._writing is not None and self._problem is None:
            self._end = asyncio.get_running_loop().create_future()
            await self._end
        if self._problem is not None:
            raise self._problem

    async def write(self, message: Any) -> None:
        """Sends a message of the stream.

        Raises:
            SlowReader: the client took nothing for too long.
        """
        await self.ready()
        self.put(message)
        await self.ready()

    def close(self) -> None:
        """Nothing more is written."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    async def settle(self) -> None:
        """Returns once no write is under way, so that the call can be ended with a status."""
        while self._writing is not None:
            self._end = asyncio.get_running_loop().create_future()
            await self._end

    def time_remaining(self) -> float | None:
        """Seconds until the call's own deadline; None: there is none."""
        return self._context.time_remaining()

    def _go_on(self, _: object = None) -> None:
        """Runs the write as far as it gets, as a task would.

        It is never cancelled: gRPC would be busy with it all the same, and unseen.
        """
        assert self._writing is not None
        try:
            waits_for = self._writing.send(None)
        except StopIteration:
            self._writing = None
        except (Exception, asyncio.CancelledError) as problem:
            self._writing, self._problem = None, problem
        else:
            waits_for.add_done_callback(self._go_on)
            return
        self._note_end()

    def _note_end(self) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(None)

    def _look(self) -> None:
        """Whether the write under way, if there is one, has had its time."""
        self._watch = None
        if self._writing is None:
            return
        loop = asyncio.get_running_loop()
        left_s = self._begun_s + self._slow_reader_s - loop.time()
        if left_s > 0:
            self._watch = loop.call_later(left_s, self._look)
            return
        self._problem = SlowReader(
            f"nothing of this stream was read for {self._slow_reader_s:g} s (slow_reader_s)"
        )
        self._note_end()
        if self._patience is not None:
            self._patience.reschedule(loop.time())
