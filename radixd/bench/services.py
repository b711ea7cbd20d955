"""Services of its own for a benchmark: all of them, on free ports, gone afterwards."""

import contextlib
import signal
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from radixd.chassis.readiness import SERVING, readiness
from radixd.chassis.settings import Settings
from radixd.cli.client import CommandError
from radixd.launcher.supervisor import Supervisor

NUM_SERVICES = 3
NUM_LAST_LINES = 20


class OwnServices:
    """Running services that nobody else uses."""

    def __init__(self, supervisor: Supervisor, last_lines: deque[str]) -> None:
        self._supervisor = supervisor
        self._last_lines = last_lines

    @property
    def address(self) -> str:
        """Their public port."""
        return self._supervisor.target

    @property
    def http_url(self) -> str | None:
        """Where they answer HTTP; None: nowhere."""
        return self._supervisor.http_url

    @property
    def run_dir(self) -> Path:
        """Their folder, which goes with them."""
        folder = self._supervisor.settings.run_dir
        assert folder is not None
        return folder

    def pids(self) -> dict[str, int]:
        """Process id of each service, by name."""
        return self._supervisor.pids()

    def peak_rss_bytes(self) -> int:
        """Highest resident memory of all services together."""
        return sum(self._supervisor.peak_rss_bytes().values())

    def check(self) -> None:
        """Nothing when all run.

        Raises:
            CommandError: one has ended; shows the last lines, as its streams would wait for ever.
        """
        if len(self._supervisor.pids()) < NUM_SERVICES:
            lines = "".join(f"\n  {line}" for line in self._last_lines)
            raise CommandError(f"a service ended during the benchmark; the last lines:{lines}")


@contextlib.contextmanager
def own_services(
    settings: Settings, *, modules: Mapping[str, str] = MappingProxyType({})
) -> Iterator[OwnServices]:
    """Started services with these settings, whose output is kept to explain a failure.

    Ports and run folder of the settings are replaced, so that a benchmark runs beside a server.
    `modules` names other modules to run as a service.

    Raises:
        RadixdError: they did not start.
    """
    private = {"port": 0, "scheduler_port": 0, "run_dir": None, "worker_endpoint": ""}
    last_lines: deque[str] = deque(maxlen=NUM_LAST_LINES)
    supervisor = Supervisor(
        settings.model_copy(update=private),
        restart_worker=False,
        echo=last_lines.append,
        modules=modules,
    )
    with supervisor:
        # The supervisor waits for Ctrl-C; a benchmark is to be stopped by it at once.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        if readiness(supervisor.target) != SERVING:
            raise KeyboardInterrupt  # it came before the services were ready
        yield OwnServices(supervisor, last_lines)
