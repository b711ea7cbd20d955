"""`radixd top`: the books of a running server, live: who owns the slots and what flows."""

import time
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from protos.radixd.v1 import admin_pb2
from radixd.cli.client import Client, CommandError, default_target
from radixd.cli.options import takes
from radixd.cli.terminal import Json, Target, out, print_json

OWNERS = (
    ("locked", "magenta", "in the tree, read by live requests"),
    ("private", "cyan", "of live requests alone"),
    ("in_flight", "yellow", "given back, still named by a plan"),
    ("evictable", "green", "cached, read by nobody"),
    ("free", "bright_black", "empty"),
)
"""Field of SlotBooks, color, meaning; in the order of the bar."""

RATED = ("generated", "computed", "prompt", "evicted")
"""Counters whose growth a second is shown."""

BAR_CHARS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class TopOptions:
    """What the user typed."""

    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between looks.")] = 1.0
    once: Annotated[bool, typer.Option("--once", help="One look, one interval long.")] = False
    json: Json = False
    target: Target = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The books at a moment, and what flowed since the moment before."""

    stats: admin_pb2.GetStatsResponse
    rates: dict[str, float]
    """Tokens a second by counter name; 0 after a restart of the server."""
    retractions: int
    """Since the look before."""


@takes(TopOptions)
def top(options: TopOptions) -> None:
    """Watch the books: slots by owner, requests, tokens a second, reuse."""
    with Client(options.target or default_target()) as client:
        watcher = Watcher(client)
        if options.once:
            time.sleep(options.interval)
            look = watcher.look()
            if options.json:
                print_json(look_dict(look))
            else:
                out.print(render(look, client.target))
            return
        try:
            _watch(watcher, options, client.target)
        except KeyboardInterrupt:
            return


def _watch(watcher: "Watcher", options: TopOptions, target: str) -> None:
    if options.json:
        while True:
            time.sleep(options.interval)
            print_json(look_dict(watcher.look()))
    shown: RenderableType = Text(f"looking at {target}", "dim")
    with Live(shown, console=out, auto_refresh=False, screen=out.is_terminal) as live:
        while True:
            time.sleep(options.interval)
            try:
                shown = render(watcher.look(), target)
                live.update(shown, refresh=True)
            except CommandError as error:
                # A server that comes back is shown again; the last books stay on the screen.
                live.update(Group(shown, Text(str(error), "red")), refresh=True)


class Watcher:
    """Turns counters into rates by remembering the look before.

    Raises CommandError when made or asked while the server is away.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._before = client.stats()
        self._at_s = time.monotonic()

    def look(self) -> Look:
        """The books now."""
        stats, at_s = self._client.stats(), time.monotonic()
        look = compare(self._before, stats, at_s - self._at_s)
        self._before, self._at_s = stats, at_s
        return look


def compare(
    before: admin_pb2.GetStatsResponse, stats: admin_pb2.GetStatsResponse, elapsed_s: float
) -> Look:
    """What happened between two looks; counters that went back (a restart) count as no flow."""

    def growth(name: str) -> int:
        return max(0, int(getattr(stats.tokens, name)) - int(getattr(before.tokens, name)))

    rates = {name: growth(name) / max(elapsed_s, 1e-9) for name in RATED}
    retractions = max(0, stats.requests.retractions - before.requests.retractions)
    return Look(stats=stats, rates=rates, retractions=retractions)


def share(part: int, whole: int) -> float:
    """part / whole, 0 where there is no whole."""
    return part / whole if whole else 0.0


def look_dict(look: Look) -> dict[str, Any]:
    """The look as the JSON object of `--json`."""
    stats, tokens = look.stats, look.stats.tokens
    return {
        "model": stats.model.name,
        "worker_connected": stats.worker_connected,
        "uptime_ms": stats.uptime_ms,
        "num_steps": stats.num_steps,
        "slots": {f.name: getattr(stats.slots, f.name) for f in stats.slots.DESCRIPTOR.fields},
        "requests": {
            f.name: getattr(stats.requests, f.name) for f in stats.requests.DESCRIPTOR.fields
        },
        "tokens": {f.name: getattr(tokens, f.name) for f in tokens.DESCRIPTOR.fields},
        "tokens_per_s": {name: round(rate, 3) for name, rate in look.rates.items()},
        "reuse_rate": share(tokens.cached, tokens.prompt),
        "recompute_tax": share(tokens.recomputed, tokens.computed),
        "peak_rss_bytes": dict(sorted(stats.peak_rss_bytes.items())),
    }


def render(look: Look, target: str) -> RenderableType:
    """The look as people read it."""
    stats, books = look.stats, look.stats.slots
    state = Text("serving", "green") if stats.worker_connected else Text("worker away", "bold red")
    head = Text.assemble(
        ("radixd ", "bold"),
        f"{stats.model.name or 'no model yet'} at {target}, ",
        state,
        f", up {_duration(stats.uptime_ms)}, {stats.num_steps} steps",
    )
    used = books.total - books.free - books.evictable
    return Group(
        head,
        Text(),
        Text(f"slots  {used} of {books.total} in use ({share(used, books.total):.0%})"),
        slot_bar(books),
        _legend(books),
        Text(),
        _numbers(look),
    )


def slot_bar(books: admin_pb2.SlotBooks, width: int = BAR_CHARS) -> Text:
    """The pool as one bar; an owner with any slot at all gets at least one character."""
    bar = Text()
    for name, color, _ in OWNERS[:-1]:
        slots = getattr(books, name)
        chars = max(1, round(share(slots, books.total) * width)) if slots else 0
        bar.append("█" * min(chars, width - len(bar)), style=color)
    bar.append("░" * (width - len(bar)), style=OWNERS[-1][1])
    return bar


def _legend(books: admin_pb2.SlotBooks) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    for name, color, meaning in OWNERS:
        label = Text.assemble(("■ ", color), name.replace("_", " "))
        table.add_row(label, str(getattr(books, name)), Text(meaning, "dim"))
    return table


def _numbers(look: Look) -> Table:
    stats, tokens, requests = look.stats, look.stats.tokens, look.stats.requests
    rss_bytes = sum(stats.peak_rss_bytes.values())
    table = Table.grid(padding=(0, 3))
    ended = f"{requests.finished} finished, {requests.cancelled} cancelled"
    troubled = f"{requests.rejected} rejected, {requests.expired} expired, {requests.failed} failed"
    table.add_row("requests", f"{requests.running} running", f"{requests.waiting} waiting")
    table.add_row("", ended, troubled)
    table.add_row(
        "tokens/s",
        f"{look.rates['generated']:.1f} generated",
        f"{look.rates['computed']:.1f} computed",
    )
    reuse = f"{share(tokens.cached, tokens.prompt):.1%} of {tokens.prompt} prompt tokens"
    tax = f"{share(tokens.recomputed, tokens.computed):.1%} computed again"
    table.add_row("reuse", reuse, tax)
    table.add_row(
        "tree",
        f"{stats.slots.num_tree_nodes} nodes, pages of {stats.slots.page_size}",
        f"{look.rates['evicted']:.1f} tokens/s evicted",
    )
    table.add_row("retracted", f"{requests.retractions} in all", f"{look.retractions} just now")
    table.add_row("memory", f"{rss_bytes / 2**20:.0f} MiB at most", "")
    return table


def _duration(ms: int) -> str:
    seconds = ms // 1000
    hours, minutes = seconds // 3600, seconds // 60 % 60
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{seconds % 60:02}s"
