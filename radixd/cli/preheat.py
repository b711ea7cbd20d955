"""`radixd preheat`: computes prefixes into the cache before anybody asks for them."""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from protos.radixd.v1 import admin_pb2
from radixd.cli.client import Client, CommandError
from radixd.cli.options import takes
from radixd.cli.request import ROLE_SYSTEM, chat_message, fill, nonblank_lines, read_text
from radixd.cli.server_options import ServerOptions
from radixd.cli.terminal import Json, err, out, print_json, snippet


class Pin(StrEnum):
    """How firmly a prefix may be asked to stay."""

    SOFT = "soft"
    HARD = "hard"


_LEVELS = {
    Pin.SOFT: admin_pb2.PinLevel.PIN_LEVEL_SOFT,
    Pin.HARD: admin_pb2.PinLevel.PIN_LEVEL_HARD,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PreheatOptions(ServerOptions):
    """What the user typed."""

    texts: Annotated[list[str], typer.Argument(metavar="TEXT...")] = field(default_factory=list)
    file: Annotated[Path | None, typer.Option(help="One prefix a line; - is stdin.")] = None
    system: Annotated[
        list[str], typer.Option(help="System message of conversations to come; repeatable.")
    ] = field(default_factory=list)
    cache_domain: Annotated[str | None, typer.Option(help="Warm it for this domain.")] = None
    pin: Annotated[
        Pin | None, typer.Option(help="soft: evicted last; hard: never evicted, if it fits.")
    ] = None
    ttl: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Of the pin, since its last hit; absent: no end."),
    ] = None
    json: Json = False


@takes(PreheatOptions)
def preheat(options: PreheatOptions) -> None:
    """Compute prefixes into the cache, so that requests that start with them start warm."""
    prefixes = list(options.texts)
    if options.file is not None:
        prefixes += nonblank_lines(read_text(options.file, "--file"))
    requests = [admin_pb2.PreheatRequest() for _ in (*prefixes, *options.system)]
    for request, text in zip(requests, prefixes, strict=False):
        fill(request, prefixes=[text])
    for request, text in zip(requests[len(prefixes) :], options.system, strict=True):
        request.chats.add().messages.append(chat_message(ROLE_SYSTEM, text))
    for request in requests:
        _set_terms(request, options)
    if not requests:
        raise CommandError("give prefixes as arguments, with --file or with --system")
    with options.connect() as client:
        results = _warm(client, requests)
    texts = [*prefixes, *options.system]
    rows = [_row(text, result) for text, result in zip(texts, results, strict=True)]
    if options.json:
        print_json({"prefixes": rows})
    else:
        out.print(_table(rows))
    if any(row["error"] or row["pin_error"] for row in rows):
        raise typer.Exit(1)


def _set_terms(request: admin_pb2.PreheatRequest, options: PreheatOptions) -> None:
    fill(request, cache_domain=options.cache_domain)
    if options.pin is not None:
        request.pin = _LEVELS[options.pin]
    if options.ttl is not None:
        if not math.isfinite(options.ttl):
            raise CommandError(f"--ttl: {options.ttl} is no number of seconds")
        fill(request, ttl_ms=round(options.ttl * 1000))


def _warm(
    client: Client, requests: list[admin_pb2.PreheatRequest]
) -> list[admin_pb2.PreheatedPrefix]:
    # One prefix a call, in order: the bar moves, and a later prefix finds the stem of an earlier.
    results: list[admin_pb2.PreheatedPrefix] = []
    columns = (TextColumn("preheating"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        for request in progress.track(requests):
            results.extend(client.preheat(request).prefixes)
    return results


def _row(prefix: str, result: admin_pb2.PreheatedPrefix) -> dict[str, Any]:
    return {
        "text": prefix,
        "num_tokens": result.num_tokens,
        "cached_tokens": result.cached_tokens,
        "computed_tokens": result.computed_tokens,
        "error": result.error,
        "pin_id": result.pin_id,
        "pinned_tokens": result.pinned_tokens,
        "pin_error": result.pin_error,
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table("prefix")
    for heading in ("tokens", "cached", "computed"):
        table.add_column(heading, justify="right")
    table.add_column("state")
    if any(row["pin_id"] or row["pin_error"] for row in rows):
        table.add_column("pin")
    for row in rows:
        numbers = [str(row[key]) for key in ("num_tokens", "cached_tokens", "computed_tokens")]
        state = Text(row["error"], "red") if row["error"] else Text("warm", "green")
        cells: list[str | Text] = [Text(snippet(row["text"], 48)), *numbers, state]
        if len(table.columns) > len(cells):
            cells.append(_pin_cell(row))
        table.add_row(*cells)
    return table


def _pin_cell(row: dict[str, Any]) -> Text:
    given = f"{row['pin_id']}, {row['pinned_tokens']} tokens" if row["pin_id"] else ""
    cell = Text(given)
    if row["pin_error"]:
        cell.append(f"{': ' if given else ''}{row['pin_error']}", "yellow")
    return cell
