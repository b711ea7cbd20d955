"""Work that ends with the client's connection."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from tokenizer_svc.http.errors import ClientGone

T = TypeVar("T")


async def while_connected(
    receive: Receive,
    work: Coroutine[Any, Any, T],
    *,
    silent_at: Callable[[], float] | None = None,
    on_silence: Callable[[], Awaitable[None]] | None = None,
) -> T:
    """The result of this work; it is cancelled as soon as the client leaves.

    `on_silence` is called at the time, on the event loop's clock, that `silent_at` says, again and
    again.

    Raises:
        ClientGone: the client left first.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_until_gone(receive, silent_at, on_silence))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            watching.result()
            raise ClientGone
        return working.result()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _until_gone(
    receive: Receive,
    silent_at: Callable[[], float] | None,
    on_silence: Callable[[], Awaitable[None]] | None,
) -> None:
    while True:
        try:
            async with asyncio.timeout_at(None if silent_at is None else silent_at()):
                message = await receive()
        except TimeoutError:
            # Something may have been said meanwhile.
            if silent_at is not None and silent_at() <= asyncio.get_running_loop().time():
                assert on_silence is not None
                await on_silence()
            continue
        if message["type"] == "http.disconnect":
            return
