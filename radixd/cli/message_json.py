"""Messages of the public protos as JSON for programs: names of fields as in the schema.

Every field is there, zero or not, except optional ones that are not set; enums are lower-case
words.  Not here: which messages a command prints.
"""

from typing import Any

from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.message import Message


def message_dict(message: Message) -> dict[str, Any]:
    """The message and what is in it, ready for `json.dumps`."""
    value: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and field.message_type is None and not message.HasField(field.name):
            continue
        value[field.name] = _field_value(field, getattr(message, field.name))
    return value


def enum_word(enum: EnumDescriptor, number: int) -> str:
    """`no_slots` for WAITING_REASON_NO_SLOTS, "" for unspecified; newer numbers stay numbers."""
    found = enum.values_by_number.get(number)
    if found is None:
        return str(number)
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return "" if number == 0 else found.name.removeprefix(prefix).lower()


def _field_value(field: Any, value: Any) -> Any:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        of = kind.fields_by_name["value"]
        return {key: _single(of, value[key]) for key in sorted(value)}
    if field.is_repeated:
        return [_single(field, item) for item in value]
    return _single(field, value)


def _single(field: Any, value: Any) -> Any:
    if isinstance(value, Message):
        return message_dict(value)
    return enum_word(field.enum_type, value) if field.enum_type is not None else value
