"""A rank above 0 as a process: loads its part, then does what rank 0 says, until rank 0 is gone.

`python -m gpu_worker.parallel.follower RANK PORT SETTINGS... FD`: where ranks meet, rank 0's
settings, and this end of the link.  Not here: sockets to the scheduler, results; rank 0 has its
own.
"""

import contextlib
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NoReturn

import structlog

from gpu_worker.engine import Engine, PlanError, StepInFlight
from gpu_worker.parallel.followers import GRACE_S, one_line
from gpu_worker.parallel.link import Kind, Link
from gpu_worker.session import GLANCE_S, MAX_IN_FLIGHT
from protos import wire
from protos.errors import RadixdError
from protos.plan import BatchPlan
from radixd.chassis.command import LOST_EXIT_STATUS, USAGE_EXIT_STATUS, settings_from_argv
from radixd.chassis.logs import configure_logs

Message = tuple[Kind, bytes]


def main(argv: list[str]) -> int:
    """Follows until rank 0 leaves, which ends the process; returns if this rank cannot go on."""
    # Who stops the service stops rank 0, which ends this process when it is done.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    rank, port, *flags, descriptor = argv
    link = Link(socket.socket(fileno=int(descriptor)))
    inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(link, inbox), name="rank_0", daemon=True).start()
    settings = settings_from_argv("gpu_worker", flags)
    # What every rank would say alike, rank 0 says.
    configure_logs("gpu_worker", "debug" if settings.log_level == "debug" else "warning")
    structlog.contextvars.bind_contextvars(rank=int(rank))
    try:
        from gpu_worker.parallel.group import load_rank  # late: rank 0 may leave meanwhile

        engine = load_rank(settings, int(rank), int(port))
    except RadixdError as error:
        time.sleep(GRACE_S)  # see there
        link.send(Kind.REFUSED, str(error).encode())
        return USAGE_EXIT_STATUS
    link.send(Kind.READY)
    try:
        follow(engine, lambda timeout_s: _next(inbox, timeout_s))
    except Exception as error:
        time.sleep(GRACE_S)  # where another rank's death is the cause, this one ends here
        structlog.get_logger(__name__).exception("step_crashed")
        link.send(Kind.FAILED, one_line(error).encode())
        return LOST_EXIT_STATUS


def follow(engine: Engine, receive: Callable[[float | None], Message | None]) -> NoReturn:
    """Carries out what rank 0 says and drops the results; ends by an exception alone.

    `receive` waits for the next message, or gives None after so many seconds.

    Raises:
        Exception: whatever a step raises but PlanError, which rank 0 then has as well.
    """
    in_flight: deque[StepInFlight] = deque()
    while True:
        message = receive(GLANCE_S if in_flight else None)
        if message is None:
            if in_flight and in_flight[0].is_done():
                in_flight.popleft().result()  # for its failure, and for what it makes known
        elif message[0] == Kind.RESET:
            in_flight.clear()
            engine.reset()
        else:
            plan = wire.decode(message[1]).message
            assert isinstance(plan, BatchPlan), message[0]
            while len(in_flight) >= MAX_IN_FLIGHT:
                in_flight.popleft().result()  # rank 0 has had it: its rows went on by their tokens
            with contextlib.suppress(PlanError):
                in_flight.append(engine.begin(plan))


def _listen(link: Link, inbox: "queue.SimpleQueue[Message]") -> None:
    """Always reads, so that rank 0's end shows whatever this rank is in the middle of."""
    while (message := link.receive()) is not None:
        inbox.put(message)
    # Not an exit by way of the main thread: it may wait in a collective for ever.
    os._exit(0)


def _next(inbox: "queue.SimpleQueue[Message]", timeout_s: float | None) -> Message | None:
    try:
        return inbox.get(timeout=timeout_s)
    except queue.Empty:
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
