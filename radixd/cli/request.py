"""Requests of the public protos from what was typed; values are judged by the server alone.

Only what cannot be put into a message at all is refused here, naming the option.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from protos.radixd.v1 import inference_pb2
from radixd.cli.client import CommandError

ROLE_SYSTEM = inference_pb2.Role.ROLE_SYSTEM
ROLE_USER = inference_pb2.Role.ROLE_USER
ROLE_ASSISTANT = inference_pb2.Role.ROLE_ASSISTANT


def fill(message: Any, **values: Any) -> None:
    """Sets the fields whose value is not None.

    Raises:
        CommandError: a value does not fit its field (an integer beyond 64 bits, broken text).
    """
    for name, value in values.items():
        if value is None:
            continue
        try:
            if isinstance(value, (list, tuple)):
                getattr(message, name).extend(value)
            else:
                setattr(message, name, value)
        except UnicodeEncodeError:
            raise CommandError(f"{name}: not valid UTF-8 text") from None
        except (ValueError, TypeError):
            raise CommandError(f"{name}: {value} is {_beyond(message, name)}") from None


_INT64_RANGE = "-9223372036854775808..9223372036854775807"
_INTEGER_RANGES = {
    FieldDescriptor.TYPE_INT32: "-2147483648..2147483647",
    FieldDescriptor.TYPE_UINT32: "0..4294967295",
    FieldDescriptor.TYPE_INT64: _INT64_RANGE,
    FieldDescriptor.TYPE_UINT64: "0..18446744073709551615",
}


def _beyond(message: Any, name: str) -> str:
    whole = _INTEGER_RANGES.get(message.DESCRIPTOR.fields_by_name[name].type)
    return f"not in {whole}" if whole else "out of range"


def chat_message(role: inference_pb2.Role, content: str) -> inference_pb2.ChatMessage:
    """One message of a conversation."""
    message = inference_pb2.ChatMessage(role=role)
    fill(message, content=content)
    return message


def parse_ids(text: str) -> list[int]:
    """Token ids, separated by commas or blanks.

    Raises:
        CommandError: something is no integer.
    """
    if not text.strip():
        return []
    ids: list[int] = []
    for part in re.split(r"\s*,\s*|\s+", text.strip()):
        try:
            ids.append(int(part))
        except ValueError:
            # Between two commas stands what was forgotten, and not nothing.
            raise CommandError(f"--ids: {part!r} is not an integer") from None
    return ids


def parse_biases(texts: Iterable[str]) -> dict[int, float]:
    """ID=BIAS pairs.

    Raises:
        CommandError: one is no such pair, or of an id beyond 64 bits.
    """
    biases: dict[int, float] = {}
    for text in texts:
        name, _, bias = text.partition("=")
        try:
            token_id, value = int(name), float(bias)
        except ValueError:
            raise CommandError(f"--logit-bias: {text!r} is not ID=BIAS") from None
        if not -(1 << 63) <= token_id < 1 << 63:
            raise CommandError(f"--logit-bias: {token_id} is not in {_INT64_RANGE}")
        biases[token_id] = value
    return biases


def read_text(path: Path, option: str) -> str:
    """The text of a file; `-` is standard input.

    Raises:
        CommandError: names the option, the file and what is wrong with it.
    """
    try:
        if str(path) == "-":
            with open(0, "rb", closefd=False) as stdin:
                return stdin.read().decode("utf-8")
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise CommandError(f"{option}: {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise CommandError(f"{option}: {path}: no UTF-8 at byte {error.start}") from None


def nonblank_lines(text: str) -> Iterable[str]:
    """Lines that hold something, without their line ends."""
    return (line for line in text.splitlines() if line.strip())
