"""The schemas as plain data: every message, enum and rpc by name, for comparison and for keeping.

Labels are part of a field's type, as `optional` and `repeated` change what absence means.
"""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from google.protobuf.descriptor import (
    Descriptor,
    EnumDescriptor,
    FieldDescriptor,
    FileDescriptor,
    ServiceDescriptor,
)

from tests.arch.source import ROOT

_SCALARS = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in vars(FieldDescriptor).items()
    if name.startswith("TYPE_")
}


def proto_paths() -> list[str]:
    """Every schema of ours, as protoc is given it: from the root of the project."""
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / "protos").rglob("*.proto"))


def files() -> list[FileDescriptor]:
    """The descriptor of every schema, from the committed stubs."""
    stubs = [path.removesuffix(".proto").replace("/", ".") + "_pb2" for path in proto_paths()]
    return [import_module(stub).DESCRIPTOR for stub in stubs]


def messages() -> Iterator[Descriptor]:
    """Every message, nested ones (but not the entries of maps) as well."""
    waiting = [message for file in files() for message in file.message_types_by_name.values()]
    while waiting:
        message = waiting.pop(0)
        if not message.GetOptions().map_entry:
            yield message
            waiting += message.nested_types


def enums() -> Iterator[EnumDescriptor]:
    """Every enum, those inside messages as well."""
    for file in files():
        yield from file.enum_types_by_name.values()
    for message in messages():
        yield from message.enum_types


def services() -> Iterator[ServiceDescriptor]:
    """Every service."""
    for file in files():
        yield from file.services_by_name.values()


def type_of(field: FieldDescriptor) -> str:
    """The type as one would write it in the schema, with its label and its oneof."""
    kind = _SCALARS[field.type]
    if field.message_type is not None:
        kind = field.message_type.full_name
        if field.message_type.GetOptions().map_entry:
            key, value = (field.message_type.fields_by_name[part] for part in ("key", "value"))
            return f"map<{type_of(key)}, {type_of(value)}>"
    elif field.enum_type is not None:
        kind = field.enum_type.full_name
    if field.is_repeated:
        return f"repeated {kind}"
    oneof = field.containing_oneof
    if oneof is None:
        return kind
    return f"optional {kind}" if oneof.name == f"_{field.name}" else f"oneof {oneof.name} {kind}"


def snapshot() -> dict[str, Any]:
    """Everything a peer relies on."""
    return {
        "messages": {
            message.full_name: {
                str(field.number): [field.name, type_of(field)] for field in message.fields
            }
            for message in sorted(messages(), key=lambda message: message.full_name)
        },
        "enums": {
            enum.full_name: {str(value.number): value.name for value in enum.values}
            for enum in sorted(enums(), key=lambda enum: enum.full_name)
        },
        "rpcs": {
            f"{service.full_name}/{method.name}": [
                ("stream " if method.client_streaming else "") + method.input_type.full_name,
                ("stream " if method.server_streaming else "") + method.output_type.full_name,
            ]
            for service in sorted(services(), key=lambda service: service.full_name)
            for method in service.methods
        },
    }
