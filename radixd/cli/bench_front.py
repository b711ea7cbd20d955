"""`radixd bench front`: what the public face costs, with the fake worker behind it."""

import os
from typing import Annotated, Any

import typer
from rich.table import Table

from radixd.bench.front import FrontBench, Scale
from radixd.bench.front_figures import FRONT
from radixd.bench.front_streams import DOORS
from radixd.bench.machine import describe_machine
from radixd.cli.measuring import measuring_progress
from radixd.cli.terminal import Json, out, print_json

LOADS = ("one", "all", "flood")

SMALL = Scale(
    num_streams=8,
    paced_tokens=40,
    paced_step_ms=20.0,
    flood_tokens=60,
    one_tokens=60,
    text_bytes=200_000,
)
"""Enough for every figure to be there."""


def bench_front(
    json: Json = False,
    small: Annotated[
        bool, typer.Option("--small", hidden=True, help="A look only; not comparable.")
    ] = False,
) -> None:
    """Measure the front alone: 200 streams through gRPC and HTTP, and a text of 10 MB beside one.
    Takes about a minute; starts services of its own."""
    load = os.getloadavg()[0]
    with measuring_progress() as announce:
        report = FrontBench(SMALL if small else Scale(), announce).report()
    report["machine"] = describe_machine() | {"load_before": round(load, 2)}
    if json:
        print_json(report)
        return
    out.print(streams_table(report))
    out.print(texts_table(report))
    for door, aims in report["aims_met"].items():
        missed = ", ".join(name for name, is_met in aims.items() if not is_met)
        out.print(f"{door}: {f'missed: {missed}' if missed else 'all aims met'}")


def streams_table(report: dict[str, Any]) -> Table:
    """Rate, cost and delay of each load."""
    table = Table("door", "load", title=f"the front on {report['machine']['cpu']}")
    for name in ("streams", "step, ms", "tokens/s", "front, µs/token", "front, cores"):
        table.add_column(name, justify="right")
    for name in ("delay p50, ms", "p99", "bound by"):
        table.add_column(name, justify="right")
    for door in DOORS:
        for load in LOADS:
            figures = report[door][load]
            table.add_row(
                door,
                load,
                f"{figures['num_streams']}",
                f"{figures['step_ms']:g}",
                f"{figures['out_tok_s']:.0f}",
                _cell(figures["front_cpu_us"], "{:.0f}"),
                f"{figures['cpu_share'][FRONT]:.2f}",
                _cell(figures["delay_ms"]["p50"], "{:.2f}"),
                _cell(figures["delay_ms"]["p99"], "{:.2f}"),
                figures["bound_by"],
                end_section=load == LOADS[-1],
            )
    return table


def texts_table(report: dict[str, Any]) -> Table:
    """What a stream feels of a long text."""
    size = report["scale"]["text_bytes"] / 1e6
    table = Table("door", title=f"one stream while {size:g} MB are tokenised")
    for name in ("takes, s", "gap p50, ms", "p99", "longest", "p50 before"):
        table.add_column(name, justify="right")
    for door, figures in report["long_text"].items():
        gaps = [_cell(figures["gap_ms"][name], "{:.1f}") for name in ("p50", "p99", "max")]
        before = _cell(figures["gap_before_ms"]["p50"], "{:.1f}")
        table.add_row(door, f"{figures['seconds']:.2f}", *gaps, before)
    return table


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
