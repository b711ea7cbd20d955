"""`radixd explain`: why one request waits, what it matched, who would be cut back, what it went
through.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from protos.radixd.v1 import admin_pb2
from radixd.cli.message_json import message_dict
from radixd.cli.options import takes
from radixd.cli.request import fill
from radixd.cli.requests import state_of
from radixd.cli.server_options import ServerOptions
from radixd.cli.terminal import Json, duration, out, print_json, snippet


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainOptions(ServerOptions):
    """What the user typed."""

    request_id: Annotated[str, typer.Argument(metavar="REQUEST_ID", help="As its client calls it.")]
    json: Json = False


@takes(ExplainOptions)
def explain(options: ExplainOptions) -> None:
    """Explain one request: why it waits, its rank, what it needs, its history."""
    request = admin_pb2.ExplainRequest()
    fill(request, request_id=options.request_id)
    with options.connect() as client:
        answer = client.explain_request(request)
    if options.json:
        print_json(message_dict(answer))
    else:
        out.print(render(answer))


def render(answer: admin_pb2.ExplainResponse) -> RenderableType:
    """The answer as people read it."""
    view = answer.request
    parts: list[RenderableType] = [
        Text.assemble((snippet(view.request_id, 128), "bold"), f"  {state_of(view)}"),
        Text(answer.summary),
        Text(),
        _facts(answer),
    ]
    if answer.victims:
        parts += [Text(), Text("cut back first, by the policy in force", "dim"), _victims(answer)]
    if answer.history:
        parts += [Text(), Text("history", "dim"), _history(answer)]
    return Group(*parts)


def _facts(answer: admin_pb2.ExplainResponse) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, text in _lines(answer):
        table.add_row(Text(name, "dim"), Text(text))
    return table


def _lines(answer: admin_pb2.ExplainResponse) -> Iterator[tuple[str, str]]:
    view = answer.request
    if answer.ending:
        yield "ended", answer.ending.lower()
    if view.tenant:
        yield "tenant", snippet(view.tenant, 64)
    of_class = f", workload {snippet(view.workload, 64)}" if view.workload else ""
    yield "priority", f"{view.priority}{of_class}"
    yield "age", _age(view)
    yield "tokens", f"{view.prompt_tokens} of prompt, {view.output_tokens} of output so far"
    cached = f"{view.cached_tokens} from the cache when admitted; " * view.HasField("cached_tokens")
    yield "computed", f"{cached}{view.computed_tokens} in place now, in {view.slots} slots"
    if view.retractions:
        yield "retracted", "once" if view.retractions == 1 else f"{view.retractions} times"
    if answer.rank:
        uncached = max(0, view.prompt_tokens + view.output_tokens - answer.matched_tokens)
        yield "matched", f"{answer.matched_tokens} tokens, {uncached} to compute"
        yield "rank", f"{answer.rank} of {answer.num_waiting} that wait"
        yield (
            "slots",
            f"{answer.needed_slots} needed, {answer.promised_slots} promised to those that run, "
            f"{answer.available_slots} available",
        )
    if answer.order_terms:
        terms = (f"{name} {answer.order_terms[name]:g}" for name in sorted(answer.order_terms))
        yield "ordered by", ", ".join(terms)


def _age(view: admin_pb2.RequestView) -> str:
    age = duration(view.age_ms)
    if view.HasField("deadline_in_ms"):
        age += f", deadline in {duration(view.deadline_in_ms)}"
    return age


def _victims(answer: admin_pb2.ExplainResponse) -> Table:
    table = Table("", "request", "score")
    for place, victim in enumerate(answer.victims, start=1):
        score = ", ".join(f"{part:g}" for part in victim.score)
        is_it = victim.request_id == answer.request.request_id
        name = Text(snippet(victim.request_id, 48), "bold" if is_it else "")
        table.add_row(str(place), name, score)
    return table


def _history(answer: admin_pb2.ExplainResponse) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right")
    for event in answer.history:
        ago = f"{duration(event.ago_ms)} ago"
        table.add_row(ago, event.event.replace("_", " "), Text(snippet(event.detail, 100)))
    return table
