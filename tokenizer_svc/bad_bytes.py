"""Finds the string field of a message whose bytes are not UTF-8, so that an error can name it.

protobuf's parser only says that there is one.  This walks the wire format beside the schema; it
is run on messages that failed to parse, and builds nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from google.protobuf.descriptor import Descriptor, FieldDescriptor

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT_BYTES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nested:
    """A message inside the one that is walked."""

    data: memoryview
    schema: Descriptor
    path: str
    """What comes before its fields' names: empty, or ending with a dot."""


def field_with_bad_utf8(data: bytes, schema: Descriptor) -> str | None:
    """The path of the first such field, like `chat.messages[0].content`; None: there is none.

    Bytes that are no message at all are walked as far as they can be.
    """
    waiting = [_Nested(data=memoryview(data), schema=schema, path="")]
    while waiting:
        message = waiting.pop()
        inner: list[_Nested] = []
        num_seen: dict[int, int] = {}
        for number, value in _length_delimited(message.data):
            field = message.schema.fields_by_number.get(number)
            if field is None:
                continue
            path = message.path + field.name
            if field.is_repeated:
                path += f"[{num_seen.get(number, 0)}]"
                num_seen[number] = num_seen.get(number, 0) + 1
            if field.type == FieldDescriptor.TYPE_STRING and not _is_utf8(value):
                return path
            if field.type == FieldDescriptor.TYPE_MESSAGE and field.message_type is not None:
                inner.append(_Nested(data=value, schema=field.message_type, path=f"{path}."))
        waiting.extend(reversed(inner))
    return None


def _is_utf8(value: memoryview) -> bool:
    try:
        str(value, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _length_delimited(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Number and bytes of each field that has bytes; ends where the data stops making sense."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        kind = tag & 7
        if kind == _VARINT:
            _, position = _varint(data, position)
        elif kind in _FIXED_SIZES:
            position += _FIXED_SIZES[kind]
        elif kind == _BYTES:
            length, position = _varint(data, position)
            if length > len(data) - position:
                return
            yield tag >> 3, data[position : position + length]
            position += length
        else:
            return


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """The number and the position after it; the end of the data when it is cut short."""
    number = 0
    for n in range(_MAX_VARINT_BYTES):
        if position + n >= len(data):
            break
        byte = data[position + n]
        number |= (byte & 0x7F) << (7 * n)
        if byte < 0x80:
            return number, position + n + 1
    return 0, len(data)
