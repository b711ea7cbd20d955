"""`radixd requests`: the live requests; those that run come first, those that wait say why."""

from dataclasses import dataclass
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from protos.radixd.v1 import admin_pb2
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

STATES = admin_pb2.RequestState.DESCRIPTOR
REASONS = admin_pb2.WaitingReason.DESCRIPTOR


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestsOptions(ServerOptions):
    """What the user typed."""

    max_requests: Annotated[int | None, typer.Option(help="Most requests shown.")] = None
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None
    json: Json = False


@takes(RequestsOptions)
def requests(options: RequestsOptions) -> None:
    """List the live requests; `radixd explain ID` says more about one."""
    request = admin_pb2.ListRequestsRequest()
    fill(request, max_requests=options.max_requests, tenant=options.tenant)
    with options.connect() as client:
        listed = client.requests(request)
    if options.json:
        print_json(message_dict(listed))
        return
    if not listed.requests:
        out.print("no request is live", style="dim")
        return
    print_table(requests_table(listed))
    if listed.num_left_out:
        out.print(f"{listed.num_left_out} more; --max-requests shows them", style="dim")


def state_of(view: admin_pb2.RequestView) -> str:
    """`decode`, or `waiting: no slots`."""
    state = enum_word(STATES, view.state).replace("_", " ")
    reason = enum_word(REASONS, view.waiting_reason).replace("_", " ")
    return f"{state}: {reason}" if reason else state


def requests_table(listed: admin_pb2.ListRequestsResponse) -> Table:
    """One row a request, in the order of the list."""
    # Where nobody is named there is nothing to tell apart.
    has_tenants = any(view.tenant for view in listed.requests)
    table = Table()
    # `radixd explain` takes the whole id: on a narrow terminal it goes on in the next line.
    table.add_column("id", overflow="fold", min_width=16)
    for heading in ("tenant",) * has_tenants + ("state",):
        table.add_column(heading)
    for heading in ("prompt", "cached", "output", "slots", "retracted", "age"):
        table.add_column(heading, justify="right")
    for view in listed.requests:
        cached = str(view.cached_tokens) if view.HasField("cached_tokens") else "-"
        table.add_row(
            Text(snippet(view.request_id, 128)),
            *(Text(snippet(view.tenant, 24)),) * has_tenants,
            state_of(view),
            str(view.prompt_tokens),
            cached,
            *(str(number) for number in (view.output_tokens, view.slots, view.retractions)),
            duration(view.age_ms),
        )
    return table
