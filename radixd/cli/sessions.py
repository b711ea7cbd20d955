"""`radixd sessions`: conversations that are kept warm between turns, and how to close one."""

from dataclasses import dataclass
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from protos.radixd.v1 import admin_pb2
from radixd.cli.client import Client, CommandError
from radixd.cli.message_json import message_dict
from radixd.cli.options import takes
from radixd.cli.request import fill
from radixd.cli.server_options import ServerOptions
from radixd.cli.terminal import Json, duration, out, print_json, print_table, snippet


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsOptions(ServerOptions):
    """What the user typed."""

    close: Annotated[str | None, typer.Option(metavar="ID", help="Forget this session.")] = None
    cache_domain: Annotated[
        str | None, typer.Option(help="Of the session to close; else the common one.")
    ] = None
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's; an admin's key.")] = None
    json: Json = False


@takes(SessionsOptions)
def sessions(options: SessionsOptions) -> None:
    """List the sessions, or close one; what it kept stays cached like anything else."""
    if options.cache_domain is not None and options.close is None:
        raise CommandError("--cache-domain goes with --close")
    with options.connect() as client:
        if options.close is not None:
            _close(client, options)
            return
        request = admin_pb2.ListSessionsRequest()
        fill(request, tenant=options.tenant)
        listed = client.sessions(request)
    if options.json:
        print_json(message_dict(listed))
    elif not listed.sessions:
        out.print("there are no sessions", style="dim")
    else:
        print_table(sessions_table(listed))
        if listed.num_left_out:
            out.print(f"and {listed.num_left_out} more", style="dim")


def _close(client: Client, options: SessionsOptions) -> None:
    request = admin_pb2.CloseSessionRequest()
    fill(
        request,
        session=options.close,
        cache_domain=options.cache_domain,
        tenant=options.tenant,
    )
    done = client.close_session(request)
    if options.json:
        print_json(message_dict(done))
    elif done.found:
        out.print(f"{options.close} is closed", markup=False)
    else:
        out.print(f"{options.close} names no session", style="red", markup=False)
    if not done.found:
        raise typer.Exit(1)


def sessions_table(listed: admin_pb2.ListSessionsResponse) -> Table:
    """One row a session, least recently used first."""
    names = [
        name
        for name in ("tenant", "cache_domain")
        if any(getattr(session, name) for session in listed.sessions)
    ]
    table = Table()
    # `--close` takes the whole id: what gives way on a narrow terminal are other names.
    table.add_column("id", no_wrap=True)
    for name in names:
        table.add_column(name.replace("_", " "))
    for heading in ("tokens", "kept", "turns", "hits", "expires in"):
        table.add_column(heading, justify="right", no_wrap=True)
    for session in listed.sessions:
        numbers = (session.num_tokens, session.kept_tokens, session.num_turns, session.hits)
        table.add_row(
            Text(session.session),
            *(Text(snippet(getattr(session, name), 24)) for name in names),
            *map(str, numbers),
            duration(session.expires_in_ms),
        )
    return table
