"""`radixd bench core`: times and weighs the scheduler core, and installed peers beside it."""

import os
import sys
from typing import Annotated, Any

import typer
from rich.table import Table

from radixd.bench.core_child import PEERS, check_interpreter, core_figures, peer_figures
from radixd.bench.core_report import AIMS, comparisons, core_report
from radixd.bench.machine import describe_machine
from radixd.cli.measuring import measuring_progress
from radixd.cli.terminal import Json, out, print_json

MUCH_DISTURBED = 0.05
"""Share of laps disturbed above which the machine was too busy for figures to be trusted."""


STATISTICS = ("mean", "p99")
"""Of those a peer is compared by; the rest is in the JSON."""


def bench_core(
    json: Json = False,
    peers: Annotated[
        bool, typer.Option("--peers", help="Measure SGLang and vLLM too, where installed.")
    ] = False,
    peer_python: Annotated[
        str,
        typer.Option(
            metavar="PATH", help="The interpreter that has the peers.", show_default="this one"
        ),
    ] = sys.executable,
    scale: Annotated[
        float, typer.Option(hidden=True, help="Share of the workload; only 1 is comparable.")
    ] = 1.0,
) -> None:
    """Measure the scheduler core alone: prefix tree, steps, plans, memory.  Takes a minute or two,
    with --peers some more."""
    if not 0.0 < scale <= 1.0:
        raise typer.BadParameter(f"{scale} is not above 0 and at most 1", param_hint="--scale")
    check_interpreter(peer_python)
    load = os.getloadavg()[0]
    with measuring_progress() as announce:
        core = core_figures(scale, announce)
        others = None
        if peers:
            others = {name: peer_figures(name, peer_python, scale, announce) for name in PEERS}
    machine = describe_machine() | {"load_before": round(load, 2)}
    report = core_report(core, others, machine)
    if json:
        print_json(report)
        return
    out.print(aims_table(report))
    if others is not None:
        out.print(peers_table(report))
    for note in notes(report):
        out.print(note, markup=False, soft_wrap=True)


def aims_table(report: dict[str, Any]) -> Table:
    """Each aim, what was measured, and whether that is enough."""
    table = Table("figure", title=f"scheduler core on {report['machine']['cpu']}")
    for name in ("measured", "aim", "met"):
        table.add_column(name, justify="right")
    for aim in AIMS:
        met = aim.is_met(report)
        sign = "<" if aim.below else "≤"
        table.add_row(
            aim.name,
            f"{aim.value(report):.6g}",
            f"{sign} {aim.most:g}",
            "yes" if met else "NO",
            style=None if met else "red",
        )
    return table


def peers_table(report: dict[str, Any]) -> Table:
    """Mean and tail of every peer beside ours, and how many times ours theirs are."""
    table = Table("peer", "figure", "setting", title="peers in the same run, µs")
    for statistic in STATISTICS:
        for name in (statistic, "ours", "times"):
            table.add_column(name, justify="right")
    for name, peer in report["peers"].items():
        for figure, setting, theirs in comparisons(peer):
            ours, ratios = report[figure][setting], report["ratios"][name][figure][setting]
            cells = [
                f"{value:.{0 if value >= 1000 else 1}f}"
                for statistic in STATISTICS
                for value in (theirs[statistic], ours[statistic], ratios[statistic])
            ]
            table.add_row(name, figure.removesuffix("_us"), setting, *cells)
    return table


def notes(report: dict[str, Any]) -> list[str]:
    """What a reader must know to trust the tables."""
    found = []
    for name, peer in report.get("peers", {}).items():
        if "missing" in peer:
            found.append(f"{name}: {peer['missing']}; to install it: {peer['install']}")
        elif not peer["wanted"].endswith(f"=={peer['version']}"):
            found.append(
                f"{name}: {peer['version']} was measured; the aims speak of {peer['wanted']}"
            )
    for figure in ("match_insert_us", "steady_cycle_us", "schedule_apply_us", "intake_us"):
        share = report[figure]["disturbed"]
        if share > MUCH_DISTURBED:
            found.append(f"{figure}: {share:.0%} of the laps were disturbed; the machine is busy")
    return found
