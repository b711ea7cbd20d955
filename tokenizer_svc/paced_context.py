"""The context of a call whose client is expected to read: a write waits only so long.

gRPC lets a write wait for as long as the client reads nothing, cannot take a message back and
sends no status before it.  So the service is told to end the call, which gives back all that it
holds; what is left is one message, and the status after it, until the client reads or goes.
"""

import asyncio
import contextlib
from typing import Any

import grpc

from protos.errors import SlowReader


class PacedContext:
    """What our services use of a context."""

    def __init__(
        self, context: grpc.aio.ServicerContext[Any, Any], *, slow_reader_s: float
    ) -> None:
        self._context = context
        self._slow_reader_s = slow_reader_s
        self._writing: asyncio.Task[None] | None = None
        self._written: asyncio.Future[None] | None = None
        """What `write` waits for: the end of the write, or of the client's time."""
        self._begun_s = 0.0
        self._watch: asyncio.TimerHandle | None = None

    async def write(self, message: Any) -> None:
        """Sends a message of the stream.

        Raises:
            SlowReader: the client took nothing for too long.
        """
        # Every token comes by here, so it is asyncio.timeout around asyncio.shield in few steps: a
        # future instead of the shield, one timer for many writes.
        loop = asyncio.get_running_loop()
        self._begun_s = loop.time()
        self._written = loop.create_future()
        self._writing = loop.create_task(self._context.write(message))
        self._writing.add_done_callback(self._note_end)
        if self._watch is None:
            self._watch = loop.call_later(self._slow_reader_s, self._look)
        try:
            # A write that is cancelled would keep gRPC busy all the same, and unseen.
            await self._written
        except asyncio.CancelledError:
            self._writing.cancel()
            raise
        finally:
            self._written = None
        self._writing.result()
        self._writing = None

    def close(self) -> None:
        """Nothing more is written."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _note_end(self, writing: "asyncio.Task[None]") -> None:
        if writing is self._writing and self._written is not None and not self._written.done():
            self._written.set_result(None)

    def _look(self) -> None:
        """Whether the write under way, if there is one, has had its time."""
        self._watch = None
        if self._written is None or self._written.done():
            return
        loop = asyncio.get_running_loop()
        left_s = self._begun_s + self._slow_reader_s - loop.time()
        if left_s > 0:
            self._watch = loop.call_later(left_s, self._look)
            return
        self._written.set_exception(
            SlowReader(
                f"nothing of this stream was read for {self._slow_reader_s:g} s (slow_reader_s)"
            )
        )

    async def settle(self) -> None:
        """Returns once no write is under way, so that the call can be ended with a status."""
        if self._writing is not None:
            with contextlib.suppress(Exception):
                await self._writing

    def time_remaining(self) -> float | None:
        """Seconds until the call's own deadline; None: there is none."""
        return self._context.time_remaining()
