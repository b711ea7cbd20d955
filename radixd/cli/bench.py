"""`radixd bench`: plays fixed workloads and prints one JSON object each, or a table for people."""

import asyncio
import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any

import typer

from radixd.bench.figures import Figures, comparison, report
from radixd.bench.machine import describe_machine
from radixd.bench.peer import OURS, Peer, find_model, parse_peers
from radixd.bench.profile import notes
from radixd.bench.services import OwnServices, own_services
from radixd.bench.workload import CONCURRENCY, Workload, load_workload
from radixd.chassis.command import settings_from_argv
from radixd.cli.bench_profile import profile_table
from radixd.cli.bench_runs import books_of, run_ours, run_peer, run_profiled
from radixd.cli.bench_tables import comparison_table, table_of
from radixd.cli.client import CommandError
from radixd.cli.options import takes
from radixd.cli.server_options import ServerOptions
from radixd.cli.terminal import Json, out, print_json, print_table


class WorkloadName(StrEnum):
    """The workloads there are."""

    W1 = "w1"
    W2 = "w2"
    W3 = "w3"
    W4 = "w4"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions(ServerOptions):
    """What the user typed; options of services are left in the context."""

    ctx: typer.Context
    workload: Annotated[WorkloadName, typer.Option(help="What to play; see the README.")]
    runs: Annotated[int, typer.Option(min=1, help="Runs; figures are medians.")] = 1
    json: Json = False
    target: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="A running server; absent: start one of our own."),
    ] = None
    vs: Annotated[
        list[str],
        typer.Option(
            metavar="[NAME=]URL", help="A peer with the OpenAI API, measured in turn; repeatable."
        ),
    ] = field(default_factory=list)
    profile: Annotated[
        bool, typer.Option("--profile", help="Play once, and tell where the steps' time went.")
    ] = False


@takes(BenchOptions)
def bench(options: BenchOptions) -> None:
    """Measure workloads; takes every option of `radixd up` for the services it starts.

    Empties the server's cache before each run, and removes its pins.  With --vs the runs of ours
    and of the peers alternate, so that a noisy machine hits all alike, and the first token of
    every prompt is another one in each run, so that no peer finds the runs before in its cache.

    Of --workload all, peak memory is the highest up to the workload's end, not of it alone.

    `radixd bench core` measures the scheduler core alone, `radixd bench kernels` the roofline of
    this machine.
    """
    if options.profile and (options.vs or options.runs > 1):
        raise CommandError("--profile plays once, and ours alone: not with --vs or --runs")
    peers = [replace(peer, model=asyncio.run(find_model(peer))) for peer in parse_peers(options.vs)]
    is_all = options.workload is WorkloadName.ALL
    names = tuple(CONCURRENCY) if is_all else (options.workload.value,)
    machine = describe_machine()
    with _serving(options) as (server, services):
        for name in names:
            work, runs = load_workload(name), options.runs
            if options.profile:
                value = run_profiled(work, server, services, name) | {"machine": machine}
            elif peers:
                value = _compare(work, server, services, peers, runs, machine)
            else:
                labels = _labels(name, runs)
                figures = [run_ours(work, server, services, label) for label in labels]
                value = report(name, figures, machine)
            _show(value, as_json=options.json)


@contextlib.contextmanager
def _serving(options: BenchOptions) -> Iterator[tuple[ServerOptions, OwnServices | None]]:
    """A server to measure, and the services that it is where they are ours."""
    argv = options.ctx.args
    if options.target is not None:
        if argv:
            raise CommandError(f"{argv[0]}: options of services do not go with --target")
        yield options, None
        return
    if options.tls.is_asked_for:
        raise CommandError("--tls-ca, --tls-cert and --tls-key go with --target")
    with own_services(settings_from_argv("radixd bench", argv)) as services:
        yield replace(options, target=services.address), services


def _compare(
    work: Workload,
    server: ServerOptions,
    services: OwnServices | None,
    peers: list[Peer],
    num_runs: int,
    machine: dict[str, Any],
) -> dict[str, Any]:
    """Ours, then each peer, and again; all of them get the same prompts in a run."""
    with server.connect() as client:
        vocab_size = books_of(client).model.vocab_size
    work = work.for_vocabulary(vocab_size)
    # Not 0: a peer may still have in its cache what an earlier command asked for.
    first_run_id = secrets.randbelow(vocab_size)
    ours: list[Figures] = []
    theirs: dict[str, list[Figures]] = {peer.name: [] for peer in peers}
    for number, label in enumerate(_labels(work.name, num_runs)):
        of_run = work.for_run(first_run_id + number, vocab_size)
        ours.append(run_ours(of_run, server, services, f"{label} {OURS}"))
        for peer in peers:
            figures = run_peer(of_run, peer, services, f"{label} {peer.name}")
            theirs[peer.name].append(figures)
    value = comparison(work.name, ours, theirs, machine)
    for peer in peers:
        value["peers"][peer.name] |= {"url": peer.url, "model": peer.model}
    return value


def _labels(name: str, runs: int) -> list[str]:
    return [name] if runs == 1 else [f"{name} {run}/{runs}" for run in range(1, runs + 1)]


def _show(value: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(value)
    elif "idle_s" in value:
        print_table(profile_table(value))
        for note in notes(value):
            out.print(note, markup=False, soft_wrap=True)
    elif "peers" in value:
        print_table(comparison_table(value))
    else:
        out.print(table_of(value))
