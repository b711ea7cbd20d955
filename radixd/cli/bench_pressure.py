"""`radixd pressure`: asks a running server for twice what its pool holds, and says what that cost.

Measures the policies in force, or two sets of them in turn on the same requests.
"""

import asyncio
from dataclasses import dataclass, replace
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from protos.radixd.v1 import admin_pb2, policy_pb2
from radixd.bench.pressure import Pressure
from radixd.bench.pressure_figures import PressureFigures, report, tax_ratio
from radixd.bench.pressure_trace import DEMAND, num_clients, trace
from radixd.cli.client import Client, CommandError
from radixd.cli.options import takes
from radixd.cli.server_options import ServerOptions
from radixd.cli.terminal import Json, err, out, print_json

COMPARED = (("cost", "partial"), ("lifo", "none"))
"""Retraction policy and keep of the two runs of `--compare`: ours, and what is common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PressureOptions(ServerOptions):
    """What the user typed."""

    seconds: Annotated[float, typer.Option(min=1, help="How long, for each set of policies.")] = 600
    seed: Annotated[int, typer.Option(min=0, help="Of the requests.")] = 1
    compare: Annotated[
        bool, typer.Option("--compare", help="Two runs: cost with partial, lifo with none.")
    ] = False
    json: Json = False


@takes(PressureOptions)
def pressure(options: PressureOptions) -> None:
    """Ask for twice what the pool can hold, for a while; made for `up --fake-worker`.

    Empties the server's cache first, and removes its pins.
    """
    with options.connect() as client:
        stats = client.stats()
        if not stats.worker_connected:
            raise CommandError("the worker is away; there is nothing to measure")
        before = client.policy().policies
        pairs = COMPARED if options.compare else ((None, None),)
        clients = num_clients(stats.slots.total)
        player = Pressure(options.address, clients, options.api_key, options.tls)
        try:
            runs = [_run(client, player, options, *pair) for pair in pairs]
        finally:
            if options.compare:
                _set(client, before.retraction_policy, before.retraction_keep)
    value = report(runs, seed=options.seed, slots=stats.slots.total, clients=clients, demand=DEMAND)
    if options.json:
        print_json(value)
    else:
        out.print(table_of(runs))


def _run(
    client: Client,
    player: Pressure,
    options: PressureOptions,
    policy: str | None,
    keep: str | None,
) -> PressureFigures:
    if policy is not None and keep is not None:
        _set(client, policy, keep)
    client.flush()
    in_force = client.policy().policies
    label = f"{in_force.retraction_policy} with {in_force.retraction_keep}"
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    # Few refreshes: on a small machine the bar runs on the cores that are measured.
    with Progress(
        *columns, console=err, transient=True, disable=not err.is_terminal, refresh_per_second=2
    ) as progress:
        task = progress.add_task(label, total=options.seconds)
        playing = player.keep_up(
            trace(options.seed),
            options.seconds,
            lambda seconds: progress.advance(task, seconds),
        )
        figures = asyncio.run(playing)
    return replace(
        figures,
        retraction_policy=in_force.retraction_policy,
        retraction_keep=in_force.retraction_keep,
    )


def _set(client: Client, policy: str, keep: str) -> None:
    policies = policy_pb2.Policies(retraction_policy=policy, retraction_keep=keep)
    client.set_policy(admin_pb2.SetPolicyRequest(policies=policies))


def table_of(runs: list[PressureFigures]) -> Table:
    """The runs side by side, for people."""
    ratio = tax_ratio(runs) if len(runs) > 1 else None
    title = None if ratio is None else f"recompute tax {ratio:.1f} times as high"
    table = Table("figure", title=title)
    for run in runs:
        table.add_column(f"{run.retraction_policy}, {run.retraction_keep}", justify="right")
    for name, attribute, form in _ROWS:
        table.add_row(name, *(form.format(getattr(run, attribute)) for run in runs))
    return table


_ROWS = (
    ("wall time, s", "wall_s", "{:.1f}"),
    ("requests", "requests", "{}"),
    ("output tokens", "output_tokens", "{}"),
    ("output tokens/s", "out_tok_s", "{:.1f}"),
    ("recompute tax", "recompute_tax", "{:.2%}"),
    ("tokens computed again", "recomputed_tokens", "{}"),
    ("retractions", "retractions", "{}"),
    ("tokens evicted", "evicted_tokens", "{}"),
    ("used share, mean", "used_share_mean", "{:.1%}"),
    ("used share, highest", "used_share_max", "{:.1%}"),
    ("volatility", "volatility", "{:.4f}"),
    ("longest time without a token, s", "longest_gap_s", "{:.3f}"),
)
