"""`radixd policy`: what the scheduler decides by, what it could decide by, and changing it.

Names and types come from the schema; whether a value makes sense is the server's to say.
"""

import difflib
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from google.protobuf.descriptor import FieldDescriptor
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from protos.radixd.v1 import admin_pb2, policy_pb2
from radixd.cli.client import CommandError
from radixd.cli.message_json import message_dict
from radixd.cli.options import takes
from radixd.cli.request import fill
from radixd.cli.server_options import ServerOptions
from radixd.cli.terminal import Json, out, print_json

FIELDS = policy_pb2.Policies.DESCRIPTOR.fields_by_name
BY_CLASS = "chunk_sizes"
"""The one policy with a value for each workload class: `chunk_sizes.chat=256`."""

_READERS = {
    FieldDescriptor.TYPE_DOUBLE: (float, "a number"),
    FieldDescriptor.TYPE_UINT32: (int, "an integer"),
    FieldDescriptor.TYPE_UINT64: (int, "an integer"),
    FieldDescriptor.TYPE_STRING: (str, "a name"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions(ServerOptions):
    """What the user typed."""

    changes: Annotated[
        list[str], typer.Argument(metavar="[NAME=VALUE]...", help="What to change, at once.")
    ] = field(default_factory=list)
    json: Json = False


@takes(PolicyOptions)
def policy(options: PolicyOptions) -> None:
    """Show the policies in force and those there are, or change some: waiting_order=lpm."""
    changes = read_changes(options.changes)
    with options.connect() as client:
        if options.changes:
            request = admin_pb2.SetPolicyRequest(policies=changes)
            changed = client.set_policy(request)
            _show(changed, in_force(changed.policies, changes), as_json=options.json)
        else:
            found = client.policy()
            _show(found, Group(in_force(found.policies), families(found)), as_json=options.json)


def read_changes(changes: list[str]) -> policy_pb2.Policies:
    """The changes as a message.

    Raises:
        CommandError: not NAME=VALUE, no such policy, given twice, or no value of its kind.
    """
    policies = policy_pb2.Policies()
    seen: set[str] = set()
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals:
            raise CommandError(f"{change}: NAME=VALUE was expected")
        if name in seen:
            raise CommandError(f"{name}: given twice")
        seen.add(name)
        _set(policies, name, text)
    return policies


def _set(policies: policy_pb2.Policies, name: str, text: str) -> None:
    name, dot, workload = name.partition(".")
    found = FIELDS.get(name)
    if found is None:
        near = difflib.get_close_matches(name, FIELDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else "; `radixd policy` lists them"
        raise CommandError(f"{name}: no such policy{hint}")
    if name == BY_CLASS:
        if not workload:
            raise CommandError(f"{name}: name the class, as in {name}.chat=256")
        try:
            policies.chunk_sizes[workload] = int(text)
        except (ValueError, UnicodeEncodeError):
            raise CommandError(f"{name}.{workload}: {text!r} is not a number of tokens") from None
        return
    if dot:
        raise CommandError(f"{name}.{workload}: {name} has no classes")
    reader, kind = _READERS[found.type]
    try:
        value: Any = reader(text)
    except ValueError:
        raise CommandError(f"{name}: {text!r} is not {kind}") from None
    fill(policies, **{name: value})


def in_force(
    policies: policy_pb2.Policies, changed: policy_pb2.Policies | None = None
) -> RenderableType:
    """Name and value of each policy; those that were just set are marked."""
    touched = set() if changed is None else {name for name, _ in _values(changed)}
    table = Table("policy", "in force")
    for name, value in _values(policies):
        style = "bold green" if name in touched else ""
        table.add_row(Text(name, style), Text(value, style))
    return table


def _values(policies: policy_pb2.Policies) -> list[tuple[str, str]]:
    values: list[tuple[str, str]] = []
    for found, value in policies.ListFields():
        if found.name == BY_CLASS:
            values += [(f"{BY_CLASS}.{name}", str(value[name])) for name in sorted(value)]
        else:
            values.append((found.name, f"{value:g}" if isinstance(value, float) else str(value)))
    return values


def families(found: admin_pb2.GetPolicyResponse) -> RenderableType:
    """Each family's names with their paragraphs; the one in force is marked."""
    parts: list[RenderableType] = []
    for family in found.families:
        parts += [Text(), Text(family.name, "bold")]
        now = getattr(found.policies, family.name, None)
        for option in family.options:
            mark = ("● ", "green") if option.name == now else "  "
            parts.append(Text.assemble("  ", mark, (option.name, "bold cyan")))
            parts.append(Padding(Text(" ".join(option.summary.split()), "dim"), (0, 0, 0, 6)))
    return Group(*parts)


def _show(
    answer: admin_pb2.GetPolicyResponse | admin_pb2.SetPolicyResponse,
    rendered: RenderableType,
    *,
    as_json: bool,
) -> None:
    if as_json:
        print_json(message_dict(answer))
    else:
        out.print(rendered)
