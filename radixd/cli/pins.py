"""`radixd pins`: prefixes that are kept warm on purpose, and how to let them go."""

from dataclasses import dataclass, field
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from protos.radixd.v1 import admin_pb2
from radixd.cli.client import Client, CommandError
from radixd.cli.message_json import enum_word, message_dict
from radixd.cli.options import takes
from radixd.cli.request import fill
from radixd.cli.server_options import ServerOptions
from radixd.cli.terminal import (
    Json,
    duration,
    out,
    print_json,
    print_table,
    snippet,
)

PIN_LEVELS = admin_pb2.PinLevel.DESCRIPTOR


@dataclass(frozen=True, slots=True, kw_only=True)
class PinsOptions(ServerOptions):
    """What the user typed."""

    unpin: Annotated[
        list[str], typer.Option("--unpin", metavar="ID", help="Remove this pin; repeatable.")
    ] = field(default_factory=list)
    unpin_all: Annotated[bool, typer.Option("--unpin-all", help="Remove every pin.")] = False
    json: Json = False


@takes(PinsOptions)
def pins(options: PinsOptions) -> None:
    """List the pinned prefixes, or remove pins; what they kept stays cached like anything else."""
    if options.unpin and options.unpin_all:
        raise CommandError("give --unpin or --unpin-all, not both")
    with options.connect() as client:
        if options.unpin or options.unpin_all:
            _unpin(client, options)
            return
        listed = client.pins()
    if options.json:
        print_json(message_dict(listed))
    elif not listed.pins:
        out.print("nothing is pinned", style="dim")
    else:
        print_table(pins_table(listed))


def _unpin(client: Client, options: PinsOptions) -> None:
    request = admin_pb2.UnpinRequest(all=options.unpin_all)
    fill(request, pin_ids=options.unpin)
    done = client.unpin(request)
    if options.json:
        print_json(message_dict(done))
    else:
        for pin_id in done.removed:
            out.print(f"{pin_id} is removed", markup=False)
        for pin_id in done.unknown:
            out.print(f"{pin_id} names no pin", style="red", markup=False)
        if not done.removed and not done.unknown:
            out.print("nothing is pinned", style="dim")
    if done.unknown:
        raise typer.Exit(1)


def pins_table(listed: admin_pb2.ListPinsResponse) -> Table:
    """One row a pin, in the order of the list."""
    # Where nobody is named there is nothing to tell apart.
    names = [
        name for name in ("tenant", "cache_domain") if any(getattr(p, name) for p in listed.pins)
    ]
    table = Table()
    # `--unpin` takes the whole id: what gives way on a narrow terminal are names and texts.
    for heading in ("id", "level"):
        table.add_column(heading, no_wrap=True)
    for name in names:
        table.add_column(name.replace("_", " "))
    for heading in ("tokens", "kept", "hits", "expires in"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("begins with")
    for pin in listed.pins:
        expires = duration(pin.expires_in_ms) if pin.HasField("expires_in_ms") else "never"
        table.add_row(
            Text(pin.pin_id),
            enum_word(PIN_LEVELS, pin.level),
            *(Text(snippet(getattr(pin, name), 24)) for name in names),
            *(str(number) for number in (pin.num_tokens, pin.kept_tokens, pin.hits)),
            expires,
            Text(snippet(pin.text, 40), no_wrap=True, overflow="ellipsis"),
        )
    return table
