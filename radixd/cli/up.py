"""`radixd up`: starts every service and stays until one ends it or Ctrl-C does."""

import sys

from radixd.chassis.command import settings_from_argv
from radixd.launcher.supervisor import Supervisor


def run_services(argv: list[str]) -> int:
    """Runs all services with these options; the value is the exit code."""
    settings = settings_from_argv("radixd up", argv)
    with Supervisor(settings, restart_worker=True, echo=_echo) as supervisor:
        return supervisor.wait()


def _echo(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
