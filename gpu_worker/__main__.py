"""The worker process: builds an engine, connects, serves until SIGTERM or SIGINT.

Not here: arithmetic, protocol.  With --fake-worker nothing of torch, numpy or transformers loads.
"""

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

from gpu_worker.engine import Engine, EngineLost
from gpu_worker.session import Session
from protos.errors import InvalidRequest, ModelError, RadixdError
from protos.plan import MAX_CONTEXT_TOKENS
from radixd.chassis.channel import WorkerChannel
from radixd.chassis.command import LOST_EXIT_STATUS, settings_from_argv
from radixd.chassis.logs import configure_logs
from radixd.chassis.settings import Settings

EXIT_BAD_START = 2
"""Exit status when options or model are wrong; stderr then has one line that says why."""


def main(argv: list[str], *, build: Callable[[Settings], Engine] | None = None) -> int:
    """Runs the worker; returns its exit status.  `build` makes another engine than they ask for."""
    _on_stop_signals(lambda: sys.exit(0))  # nothing to finish while loading
    try:
        settings = settings_from_argv("gpu_worker", argv)
        configure_logs("gpu_worker", settings.log_level)
        engine = (build or build_engine)(settings)
        channel = WorkerChannel(settings.worker_address)
    except (ModelError, InvalidRequest) as error:
        return _refuse(error)
    stop = threading.Event()
    _on_stop_signals(stop.set)
    try:
        Session(engine, channel).run(stop)
    except EngineLost as error:
        return _refuse(error, LOST_EXIT_STATUS)
    finally:
        channel.close()
    return 0


def build_engine(settings: Settings) -> Engine:
    """The engine that the settings ask for.

    Raises:
        ModelError: the model cannot be loaded.
        InvalidRequest: an option asks for what cannot be had here.
    """
    if settings.fake_worker:
        if settings.tp > 1:
            raise InvalidRequest("tp", "the fake worker is one process")
        return _fake_engine(settings)
    if settings.tp > 1:
        from gpu_worker.parallel.start import lead_group

        return lead_group(settings)
    from gpu_worker.loading import engine_for  # late: the fake worker needs no numpy

    return engine_for(settings)


def _fake_engine(settings: Settings) -> Engine:
    from gpu_worker.fake_engine import FakeEngine, FakeModel

    return FakeEngine(
        FakeModel(),
        num_slots=settings.cpu_kv_slots,
        max_rows=settings.max_running,
        max_length=settings.max_length or min(settings.cpu_kv_slots, MAX_CONTEXT_TOKENS),
        step_delay_s=settings.fake_step_ms / 1000,
    )


def _refuse(error: RadixdError, status: int = EXIT_BAD_START) -> int:
    print(f"gpu_worker: {error}", file=sys.stderr)
    return status


def _on_stop_signals(action: Callable[[], object]) -> None:
    def handle(_number: int, _frame: FrameType | None) -> None:
        action()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
