"""`radixd up`: starts every service and stays until one ends it or Ctrl-C does."""

import typer

from radixd.chassis.command import settings_from_argv
from radixd.cli.terminal import err
from radixd.launcher.supervisor import Supervisor


def up(ctx: typer.Context) -> None:
    """Start all services and watch them; every option is in `radixd up --help`."""
    settings = settings_from_argv("radixd up", ctx.args)
    with Supervisor(settings, restart_worker=True, echo=_echo) as supervisor:
        code = supervisor.wait()
    raise typer.Exit(code)


def _echo(line: str) -> None:
    err.print(line, markup=False, soft_wrap=True)
