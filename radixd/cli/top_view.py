"""The books as `radixd top` shows them: rates from two looks, JSON for programs, a page for people.

Not here: where the books come from.
"""

from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from protos.radixd.v1 import admin_pb2
from radixd.cli.message_json import message_dict
from radixd.cli.terminal import duration, snippet

OWNERS = (
    ("locked", "magenta", "in the tree, read by live requests or pinned hard"),
    ("private", "cyan", "of live requests alone"),
    ("in_flight", "yellow", "given back, still named by a plan"),
    ("evictable", "green", "cached, read by nobody"),
    ("free", "bright_black", "empty"),
)
"""Field of SlotBooks, color, meaning; in the order of the bar."""

RATED = ("generated", "computed", "prompt", "evicted")
"""Counters whose growth a second is shown."""

BAR_CHARS = 60
MAX_TENANTS = 8
"""Tenants shown to people, those with most slots first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The books at a moment, and what flowed since the moment before."""

    stats: admin_pb2.GetStatsResponse
    rates: dict[str, float]
    """Tokens a second by counter name; 0 after a restart of the server."""
    retractions: int
    """Since the look before."""


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
        "slots": message_dict(stats.slots),
        "requests": message_dict(stats.requests),
        "tokens": message_dict(tokens),
        "tokens_per_s": {name: round(rate, 3) for name, rate in look.rates.items()},
        "reuse_rate": share(tokens.cached, tokens.prompt),
        "recompute_tax": share(tokens.recomputed, tokens.computed),
        "economy": message_dict(stats.economy),
        "sessions": {"known": stats.num_sessions, "kept_tokens": stats.session_tokens},
        "waiting_by_reason": {
            _reason(reason).replace(" ", "_"): stats.waiting_by_reason[reason]
            for reason in sorted(stats.waiting_by_reason)
        },
        "tenants": {name: message_dict(stats.tenants[name]) for name in sorted(stats.tenants)},
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
        f", up {duration(stats.uptime_ms)}, {stats.num_steps} steps",
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
        Text(),
        _economy(stats.economy),
        *_tenants(stats),
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
    reasons = _waiting(stats)
    if reasons:
        table.add_row("waiting", *reasons)
    table.add_row("", ended, troubled)
    table.add_row(
        "tokens/s",
        f"{look.rates['generated']:.1f} generated",
        f"{look.rates['computed']:.1f} computed",
    )
    reuse = f"{share(tokens.cached, tokens.prompt):.1%} of {tokens.prompt} prompt tokens"
    tax = f"{share(tokens.recomputed, tokens.computed):.1%} computed again"
    table.add_row("reuse", reuse, tax)
    if tokens.drafted:
        right = f"{share(tokens.accepted, tokens.drafted):.1%} of {tokens.drafted} guesses right"
        table.add_row("guessed", right, f"{tokens.accepted} tokens without a step of their own")
    table.add_row(
        "tree",
        f"{stats.slots.num_tree_nodes} nodes, pages of {stats.slots.page_size}",
        f"{look.rates['evicted']:.1f} tokens/s evicted",
    )
    if stats.num_sessions:
        known = f"{stats.num_sessions} known"
        table.add_row("sessions", known, f"{stats.session_tokens} tokens kept warm")
    table.add_row("retracted", f"{requests.retractions} in all", f"{look.retractions} just now")
    kept = f"weights {stats.model.weights}, KV {stats.model.kv_dtype}"
    table.add_row(
        "memory", f"{rss_bytes / 2**20:.0f} MiB at most", kept if stats.model.weights else ""
    )
    return table


def _waiting(stats: admin_pb2.GetStatsResponse) -> list[str]:
    """Up to four reasons in two cells, the commonest first."""
    found = [(count, reason) for reason, count in stats.waiting_by_reason.items() if count]
    found.sort(key=lambda pair: (-pair[0], pair[1]))
    said = [f"{count} {_reason(reason)}" for count, reason in found[:4]]
    return [", ".join(said[:2]), ", ".join(said[2:])] if said else []


def _reason(name: str) -> str:
    return name.removeprefix("WAITING_REASON_").replace("_", " ").lower()


def _economy(economy: admin_pb2.Economy) -> Table:
    table = Table.grid(padding=(0, 3))
    table.add_row(
        "economy",
        f"{economy.reuse_rate:.1%} reuse rate",
        f"{economy.density:.2f} density",
        f"{economy.turnover:.3f} turnover/s",
    )
    table.add_row(
        "",
        f"{economy.recompute_tax:.1%} recompute tax",
        f"{economy.volatility:.3f} volatility",
        f"{economy.pinned_slots} slots pinned",
    )
    return table


def _tenants(stats: admin_pb2.GetStatsResponse) -> list[RenderableType]:
    """A table, when there is anybody but nobody in particular."""
    names = sorted(stats.tenants, key=lambda name: (-stats.tenants[name].held_slots, name))
    if not any(names):
        return []
    table = Table("tenant")
    for heading in ("running", "waiting", "slots", "pinned", "reuse", "recomputed"):
        table.add_column(heading, justify="right")
    for name in names[:MAX_TENANTS]:
        books = stats.tenants[name]
        numbers = (books.running, books.waiting, books.held_slots, books.pinned_slots)
        table.add_row(
            Text(snippet(name, 32) if name else "-"),
            *(str(number) for number in numbers),
            f"{share(books.cached_tokens, books.prompt_tokens):.1%}",
            f"{share(books.recomputed_tokens, books.computed_tokens):.1%}",
        )
    if len(names) > MAX_TENANTS:
        table.add_row(Text(f"and {len(names) - MAX_TENANTS} more", "dim"))
    return [Text(), table]
