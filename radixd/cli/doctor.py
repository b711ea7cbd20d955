"""`radixd doctor`: looks at everything `radixd up` needs and says what to do about the rest."""

from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from radixd.chassis.backends import GPU
from radixd.chassis.command import settings_from_argv
from radixd.cli import doctor_backend, doctor_checks, doctor_server
from radixd.cli.doctor_finding import Finding, State
from radixd.cli.terminal import Json, out, print_json

COLORS = {State.OK: "green", State.WARN: "yellow", State.FAIL: "bold red"}


def doctor(
    ctx: typer.Context,
    json: Json = False,
    target: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Server to examine; default: of the settings."),
    ] = None,
) -> None:
    """Check this machine; takes every option of `radixd up`, to check for those settings."""
    settings = settings_from_argv("radixd doctor", ctx.args)
    backend, kind = doctor_backend.backend(settings)
    findings = [
        doctor_checks.python(),
        *doctor_checks.packages(settings),
        doctor_checks.names(),
        doctor_checks.model(settings),
        backend,
        doctor_checks.memory(settings, on_gpu=kind is GPU),
        doctor_checks.run_folder(settings),
        *doctor_server.ports(settings),
        doctor_server.health(settings, target),
    ]
    if json:
        print_json({"findings": [_as_dict(f) for f in findings], "ok": not _failed(findings)})
    else:
        out.print(_table(findings))
    if _failed(findings):
        raise typer.Exit(1)


def _failed(findings: list[Finding]) -> bool:
    return any(finding.state is State.FAIL for finding in findings)


def _as_dict(finding: Finding) -> dict[str, Any]:
    return {
        "check": finding.check,
        "state": finding.state.value,
        "detail": finding.detail,
        "advice": finding.advice,
    }


def _table(findings: list[Finding]) -> Table:
    table = Table.grid(padding=(0, 2))
    for _ in range(3):
        table.add_column(overflow="fold")
    for finding in findings:
        said = Text(finding.detail)
        if finding.advice:
            said.append(f"\n→ {finding.advice}", style="dim")
        mark = Text(finding.state.value, COLORS[finding.state])
        table.add_row(mark, Text(finding.check, "bold"), said)
    return table
