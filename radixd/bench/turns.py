"""When each request of a workload is sent; what sends it is the caller's."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from radixd.bench.figures import Trace
from radixd.bench.workload import BenchRequest, Workload
from radixd.cli.client import CommandError

OnTokens = Callable[[int], object]
"""Told the number of new tokens of each message, for a progress bar."""


async def take_turns(
    workload: Workload, ask: Callable[[BenchRequest], Awaitable[Trace]]
) -> list[Trace]:
    """One run: arrivals by the clock, at most `concurrency` requests open.

    Raises:
        CommandError: `ask` raised one; a run with a hole has no figures.
    """
    turns = asyncio.Semaphore(workload.concurrency)
    start_s = time.perf_counter()

    async def turn(request: BenchRequest) -> Trace:
        await asyncio.sleep(start_s + request.arrival_s - time.perf_counter())
        async with turns:
            return await ask(request)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(turn(request)) for request in workload.requests]
    except* CommandError as refusals:
        raise CommandError(str(refusals.exceptions[0])) from None
    return [task.result() for task in tasks]
