"""The worker process: builds an engine, connects, serves until SIGTERM or SIGINT.

Not here: arithmetic, protocol.  With --fake-worker nothing of torch, numpy or transformers loads.
"""

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

from gpu_worker.engine import Engine
from gpu_worker.session import Session
from protos.errors import InvalidRequest, ModelError, RadixdError
from protos.plan import MAX_CONTEXT_TOKENS
from radixd.chassis.channel import WorkerChannel
from radixd.chassis.command import settings_from_argv
from radixd.chassis.logs import configure_logs
from radixd.chassis.model_source import resolve_model
from radixd.chassis.processors import usable_processors
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
        return _fake_engine(settings)
    source = resolve_model(settings.model)
    from gpu_worker.backend_choice import BackendOptions  # late: the fake worker needs no numpy
    from gpu_worker.loading import load_engine
    from gpu_worker.model_engine import EngineLimits

    limits = EngineLimits(
        num_slots=settings.cpu_kv_slots,
        max_rows=settings.max_running,
        max_length=settings.max_length,
        poison=settings.log_level == "debug",
    )
    options = BackendOptions(
        device=settings.device,
        backend=settings.backend,
        weights=settings.weights,
        kv_dtype=settings.kv_dtype,
        num_threads=settings.num_threads or usable_processors(),
        cpu_kernels=settings.cpu_kernels,
        deterministic=settings.deterministic,
        fit_pool=settings.kv_slots == "auto",
        memory_fraction=settings.memory_fraction,
        max_batch_tokens=settings.max_batch_tokens,
    )
    return load_engine(source, limits, options)


def _fake_engine(settings: Settings) -> Engine:
    from gpu_worker.fake_engine import FakeEngine, FakeModel

    return FakeEngine(
        FakeModel(),
        num_slots=settings.cpu_kv_slots,
        max_rows=settings.max_running,
        max_length=settings.max_length or min(settings.cpu_kv_slots, MAX_CONTEXT_TOKENS),
        step_delay_s=settings.fake_step_ms / 1000,
    )


def _refuse(error: RadixdError) -> int:
    print(f"gpu_worker: {error}", file=sys.stderr)
    return EXIT_BAD_START


def _on_stop_signals(action: Callable[[], object]) -> None:
    def handle(_number: int, _frame: FrameType | None) -> None:
        action()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
