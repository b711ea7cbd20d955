"""Gathers the commands of `radixd`; how they are called and how they end is in `app`."""

from collections.abc import Callable

import typer

from radixd.cli.bench import bench
from radixd.cli.bench_core import bench_core
from radixd.cli.bench_front import bench_front
from radixd.cli.bench_kernels import bench_kernels
from radixd.cli.bench_pressure import pressure
from radixd.cli.chat import chat
from radixd.cli.doctor import doctor
from radixd.cli.explain import explain
from radixd.cli.generate import generate
from radixd.cli.pins import pins
from radixd.cli.policy import policy
from radixd.cli.preheat import preheat
from radixd.cli.requests import requests
from radixd.cli.sessions import sessions
from radixd.cli.terminal import PASSES_SETTINGS
from radixd.cli.top import top
from radixd.cli.tree import tree
from radixd.cli.up import run_services
from radixd.cli.version import version

BENCHES: dict[str, Callable[..., None]] = {
    "bench core": bench_core,
    "bench front": bench_front,
    "bench kernels": bench_kernels,
}
"""Commands of two words; `bench` takes every option of the services, so it cannot be a group."""


def up(ctx: typer.Context) -> None:
    """Start all services and watch them; every option is in `radixd up --help`."""
    raise typer.Exit(run_services(ctx.args))


app = typer.Typer(
    name="radixd",
    help="An LLM inference server that treats KV-cache memory as the scarce good.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
# `up` shows the help of the settings schema, which holds all of its options.
app.command(context_settings=PASSES_SETTINGS, add_help_option=False)(up)
app.command()(chat)
app.command()(generate)
app.command()(preheat)
app.command()(tree)
app.command()(top)
app.command()(requests)
app.command()(explain)
app.command()(pins)
app.command()(sessions)
app.command()(policy)
app.command(context_settings=PASSES_SETTINGS)(bench)
for name, command in BENCHES.items():
    app.command(name=name)(command)
app.command()(pressure)
app.command(context_settings=PASSES_SETTINGS)(doctor)
app.command()(version)
