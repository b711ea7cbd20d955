"""`python -m scheduler_svc`: runs the scheduler until it is told to stop.

Exit status: 0 after SIGINT or SIGTERM, 1 after a defect, 2 for options that cannot be.
"""

import asyncio
import gc
import sys

from protos.errors import InvalidRequest
from radixd.chassis.command import complain, settings_from_argv
from radixd.chassis.grpc_server import wait_for_stop_signal
from radixd.chassis.logs import configure_logs
from radixd.chassis.settings import Settings
from scheduler_svc.server import SchedulerServer


def main(argv: list[str]) -> int:
    """Runs the service; returns the exit status."""
    settings = settings_from_argv("scheduler_svc", argv)
    configure_logs("scheduler_svc", settings.log_level)
    try:
        return asyncio.run(_serve(settings))
    except InvalidRequest as error:
        return complain("scheduler_svc", error)


async def _serve(settings: Settings) -> int:
    server = SchedulerServer(settings)
    told_to_stop = asyncio.create_task(wait_for_stop_signal())
    # From here on a signal is noticed, even one that comes during the start.
    await asyncio.sleep(0)
    await server.start()
    # What lives now lives for ever: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    await asyncio.wait((told_to_stop, server.crashed), return_when=asyncio.FIRST_COMPLETED)
    crashed = server.crashed.done()
    if not crashed:
        await server.stop()
    told_to_stop.cancel()
    return 1 if crashed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
