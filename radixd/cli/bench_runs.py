"""One run of a workload, against a radixd or a peer, with a progress bar.

Not here: which runs there are and in which order (bench.py), how they are shown (bench_tables.py).
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from protos.radixd.v1 import admin_pb2
from radixd.bench.figures import Figures, Trace, figures_of
from radixd.bench.peer import Peer
from radixd.bench.peer_player import play_peer
from radixd.bench.player import play
from radixd.bench.profile import profile_report
from radixd.bench.services import OwnServices
from radixd.bench.turns import OnTokens
from radixd.bench.workload import Workload
from radixd.cli.client import Client, CommandError
from radixd.cli.server_options import ServerOptions
from radixd.cli.terminal import err

Playing = Coroutine[Any, Any, list[Trace]]


def books_of(client: Client) -> admin_pb2.GetStatsResponse:
    """The books of a server that can be measured.

    Raises:
        CommandError: its worker is away.
    """
    stats = client.stats()
    if not stats.worker_connected:
        raise CommandError("the worker is away; there is nothing to measure")
    return stats


def run_ours(
    work: Workload, server: ServerOptions, services: OwnServices | None, label: str
) -> Figures:
    """One run with a cold cache against a radixd."""
    with server.connect() as client:
        traces = _play_cold(work, server, client, services, label)
        reported = sum(client.stats().peak_rss_bytes.values())
    if not reported and services is not None:
        reported = services.peak_rss_bytes()
    return figures_of(traces, peak_rss_bytes=reported)


def run_profiled(
    work: Workload, server: ServerOptions, services: OwnServices | None, label: str
) -> dict[str, Any]:
    """As `run_ours`, but where the time of its steps went; see `radixd.bench.profile`."""
    with server.connect() as client:
        before = books_of(client).step_profile
        traces = _play_cold(work, server, client, services, label)
        after = client.stats().step_profile
    wall_s = figures_of(traces, peak_rss_bytes=None).wall_s
    return profile_report(work.name, before, after, wall_s)


def run_peer(work: Workload, peer: Peer, services: OwnServices | None, label: str) -> Figures:
    """One run against a peer, whose memory nobody tells; see `Workload.for_run` for its cache."""
    traces = _traces_of(work, lambda on_tokens: play_peer(work, peer, on_tokens), services, label)
    return figures_of(traces, peak_rss_bytes=None)


def _play_cold(
    work: Workload,
    server: ServerOptions,
    client: Client,
    services: OwnServices | None,
    label: str,
) -> list[Trace]:
    work = work.for_vocabulary(books_of(client).model.vocab_size)
    client.flush()

    def start(on_tokens: OnTokens) -> Playing:
        target, api_key, tls = server.address, server.api_key, server.tls
        return play(work, target, on_tokens, api_key=api_key, tls=tls)

    return _traces_of(work, start, services, label)


def _traces_of(
    work: Workload,
    start: Callable[[OnTokens], Playing],
    services: OwnServices | None,
    label: str,
) -> list[Trace]:
    """What one run brought; an error as soon as a service of ours has ended."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    # Few refreshes: on a small machine the bar runs on the cores that are measured.
    with Progress(
        *columns,
        TimeElapsedColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
        refresh_per_second=2,
    ) as progress:
        task = progress.add_task(label, total=work.num_output_tokens)
        playing = start(lambda num_tokens: progress.advance(task, num_tokens))
        return asyncio.run(_watched(playing, services))


async def _watched(playing: Playing, services: OwnServices | None) -> list[Trace]:
    task = asyncio.create_task(playing)
    try:
        while not task.done():
            await asyncio.wait((task,), timeout=1.0)
            if services is not None:
                services.check()
        return task.result()
    finally:
        task.cancel()
