"""`radixd preheat`: computes prefixes into the cache before anybody asks for them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from protos.radixd.v1 import admin_pb2
from radixd.cli.client import Client, CommandError, default_target
from radixd.cli.options import takes
from radixd.cli.request import ROLE_SYSTEM, chat_message, fill, nonblank_lines, read_text
from radixd.cli.terminal import Json, Target, err, out, print_json, snippet


@dataclass(frozen=True, slots=True, kw_only=True)
class PreheatOptions:
    """What the user typed."""

    texts: Annotated[list[str], typer.Argument(metavar="TEXT...")] = field(default_factory=list)
    file: Annotated[Path | None, typer.Option(help="One prefix a line; - is stdin.")] = None
    system: Annotated[
        list[str], typer.Option(help="System message of conversations to come; repeatable.")
    ] = field(default_factory=list)
    cache_domain: Annotated[str | None, typer.Option(help="Warm it for this domain.")] = None
    json: Json = False
    target: Target = None


@takes(PreheatOptions)
def preheat(options: PreheatOptions) -> None:
    """Compute prefixes into the cache, so that requests that start with them start warm."""
    prefixes = list(options.texts)
    if options.file is not None:
        prefixes += nonblank_lines(read_text(options.file, "--file"))
    requests = [_of_text(text, options.cache_domain) for text in prefixes]
    requests += [_of_system_message(text, options.cache_domain) for text in options.system]
    if not requests:
        raise CommandError("give prefixes as arguments, with --file or with --system")
    with Client(options.target or default_target()) as client:
        results = _warm(client, requests)
    texts = [*prefixes, *options.system]
    rows = [_row(text, result) for text, result in zip(texts, results, strict=True)]
    if options.json:
        print_json({"prefixes": rows})
    else:
        out.print(_table(rows))
    if any(row["error"] for row in rows):
        raise typer.Exit(1)


def _of_text(text: str, cache_domain: str | None) -> admin_pb2.PreheatRequest:
    request = admin_pb2.PreheatRequest()
    fill(request, cache_domain=cache_domain, prefixes=[text])
    return request


def _of_system_message(text: str, cache_domain: str | None) -> admin_pb2.PreheatRequest:
    request = admin_pb2.PreheatRequest()
    fill(request, cache_domain=cache_domain)
    request.chats.add().messages.append(chat_message(ROLE_SYSTEM, text))
    return request


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
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table("prefix")
    for heading in ("tokens", "cached", "computed"):
        table.add_column(heading, justify="right")
    table.add_column("state")
    for row in rows:
        numbers = [str(row[key]) for key in ("num_tokens", "cached_tokens", "computed_tokens")]
        state = Text(row["error"], "red") if row["error"] else Text("warm", "green")
        table.add_row(Text(snippet(row["text"], 48)), *numbers, state)
    return table
