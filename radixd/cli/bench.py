"""`radixd bench`: plays a fixed workload and prints one JSON object, or a table for people."""

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from radixd.bench.figures import Figures, Trace, figures_of, report
from radixd.bench.machine import describe_machine
from radixd.bench.player import play
from radixd.bench.services import OwnServices, own_services
from radixd.bench.workload import Workload, load_workload
from radixd.chassis.command import settings_from_argv
from radixd.cli.client import Client, CommandError
from radixd.cli.terminal import Json, err, out, print_json


class WorkloadName(StrEnum):
    """The workloads there are."""

    W1 = "w1"
    W2 = "w2"
    W3 = "w3"
    W4 = "w4"


def bench(
    ctx: typer.Context,
    workload: Annotated[WorkloadName, typer.Option(help="What to play; see the README.")],
    runs: Annotated[int, typer.Option(min=1, help="Runs; figures are medians.")] = 1,
    json: Json = False,
    target: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="A running server; absent: start one of our own."),
    ] = None,
) -> None:
    """Measure a workload; takes every option of `radixd up` for the services it starts.

    Empties the server's cache before each run, and removes its pins.

    `radixd bench core` measures the scheduler core alone.
    """
    work = load_workload(workload.value)
    with _serving(ctx.args, target) as (address, services):
        figures = [_run(work, address, services, label) for label in _labels(work.name, runs)]
    value = report(work.name, figures, describe_machine())
    if json:
        print_json(value)
    else:
        out.print(table_of(value))


@contextlib.contextmanager
def _serving(argv: list[str], target: str | None) -> Iterator[tuple[str, OwnServices | None]]:
    """An address to measure, and the services behind it where they are ours."""
    if target is not None:
        if argv:
            raise CommandError(f"{argv[0]}: options of services do not go with --target")
        yield target, None
        return
    with own_services(settings_from_argv("radixd bench", argv)) as services:
        yield services.address, services


def _labels(name: str, runs: int) -> list[str]:
    return [name] if runs == 1 else [f"{name} {run}/{runs}" for run in range(1, runs + 1)]


def _run(work: Workload, address: str, services: OwnServices | None, label: str) -> Figures:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        Client(address) as client,
        # Few refreshes: on a small machine the bar runs on the cores that are measured.
        Progress(
            *columns,
            TimeElapsedColumn(),
            console=err,
            transient=True,
            disable=not err.is_terminal,
            refresh_per_second=2,
        ) as progress,
    ):
        stats = client.stats()
        if not stats.worker_connected:
            raise CommandError("the worker is away; there is nothing to measure")
        work = work.for_vocabulary(stats.model.vocab_size)
        client.flush()
        task = progress.add_task(label, total=work.num_output_tokens)
        playing = play(work, address, lambda tokens: progress.advance(task, tokens))
        traces = asyncio.run(_watched(playing, services))
        reported = sum(client.stats().peak_rss_bytes.values())
    if not reported and services is not None:
        reported = services.peak_rss_bytes()
    return figures_of(traces, peak_rss_bytes=reported)


async def _watched(
    playing: Coroutine[Any, Any, list[Trace]], services: OwnServices | None
) -> list[Trace]:
    """The traces, or an error as soon as a service of ours has ended."""
    task = asyncio.create_task(playing)
    try:
        while not task.done():
            await asyncio.wait((task,), timeout=1.0)
            if services is not None:
                services.check()
        return task.result()
    finally:
        task.cancel()


def table_of(value: dict[str, Any]) -> Table:
    """The report for people; ranges in brackets where there were several runs."""
    runs = value.get("runs")
    table = Table("figure", title=f"{value['workload']} on {value['machine']['cpu']}")
    table.add_column("median" if runs else "value", justify="right")
    if runs:
        table.add_column("range", justify="right")
    for name, path in _ROWS:
        cells = [_cell(name, _at(value, path))]
        if runs:
            low, high = _at(runs["lowest"], path), _at(runs["highest"], path)
            cells.append("-" if low is None else f"{_cell(name, low)} … {_cell(name, high)}")
        table.add_row(name, *cells)
    return table


_ROWS = (
    ("wall time, s", ("wall_s",)),
    ("output tokens/s", ("out_tok_s",)),
    ("first token p50, s", ("ttft_s", "p50")),
    ("first token p95, s", ("ttft_s", "p95")),
    ("short prompts p50, s", ("short_ttft_s", "p50")),
    ("short prompts p95, s", ("short_ttft_s", "p95")),
    ("between tokens p50, s", ("itl_s", "p50")),
    ("between tokens p95, s", ("itl_s", "p95")),
    ("cached tokens", ("cached_tokens",)),
    ("peak memory, GiB", ("peak_rss_bytes",)),
)


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if name.endswith("GiB"):
        return f"{value / 2**30:.2f}"
    return str(value) if isinstance(value, int) else f"{value:.3f}"
