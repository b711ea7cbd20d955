"""Random messages of protobuf: some that a server likes, some at the edges, some that are none."""

import random
from collections.abc import Callable
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, ServiceDescriptor
from google.protobuf.message import Message

from protos.radixd.v1 import admin_pb2, inference_pb2, tokenizer_pb2

MAX_DEPTH = 6

_INT64_EDGES = (0, 1, -1, 2, 15, 16, 17, 263, 264, 1024, 2**31 - 1, 2**31, 2**63 - 1, -(2**63))
_FLOAT_EDGES = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 100.0, 1e-45, 3e38, -3e38)
_NOT_FINITE = (float("inf"), float("-inf"), float("nan"))
_TEXTS = (
    *("", "a", "hello", "\x00", "\u202e\ufeff", "čaj 漢字 🙂", "e\u0301" * 40, "x" * 300),
    *(
        "{}",
        "[]",
        "null",
        '{"type":"object"}',
        '{"type":"array","items":{"$ref":"#"}}',
        "(",
        "[a-z]+",
    ),
    *('root ::= "a" root | "b"', "root ::= root", "(a|b)*c", "(a*)*" * 8, "\\d{1,4000}", "-1"),
)

# What makes a request one that is served; by the name of the field, as it means one thing only.
_LIKED: dict[str, tuple[Any, ...]] = {
    "request_id": ("one", "two", "three"),
    "text": ("hello", "a longer text of several words"),
    "content": ("hello", "and what else?"),
    "role": (1, 2, 3, 4),
    "ids": (97, 98, 99, 255),
    "max_tokens": (1, 2, 8, 40),
    "min_tokens": (0, 1, 8),
    "temperature": (0.0, 0.7, 1.5),
    "top_k": (0, 1, 40),
    "top_p": (0.5, 0.9, 1.0),
    "min_p": (0.0, 0.1),
    "seed": (0, 1, 2**62),
    "stop": ("a", "\n\n", "stop"),
    "stop_token_ids": (97, 98),
    "repetition_penalty": (1.0, 1.3),
    "presence_penalty": (0.0, 1.0, -1.0),
    "frequency_penalty": (0.0, 1.0, -1.0),
    "logprobs": (0, 1, 20),
    "prompt_logprobs": (0, 1, 20),
    "timeout_ms": (1, 5, 50, 10_000),
    "cache_domain": ("one", "two"),
    "session": ("first", "second"),
    "priority": (-1, 0, 1),
    "workload": ("chat", "code", "else"),
    "n": (1, 2, 3),
    "best_of": (3, 4),
    "stream_interval": (1, 2, 16),
    "json_schema": ('{"type":"integer"}', '{"type":"object","properties":{"a":{"type":"null"}}}'),
    "regex": ("[a-f]{3,9}", "yes|no"),
    "ebnf": ('root ::= "a" | "b" root',),
    "texts": ("yes", "no", "perhaps"),
    "parameters": ("", '{"type":"object","properties":{"x":{"type":"string"}}}'),
    "arguments": ("{}", '{"x":"y"}'),
    "name": ("find", "look_up"),
    "template_arguments": ("{}", '{"enable_thinking":true}'),
    "mode": (0, 1, 2, 3),
    "prefixes": ("a prefix", "another prefix of some length"),
    "pin": (0, 1, 2, 3),
    "ttl_ms": (1, 1000),
    "max_nodes": (1, 100),
    "max_requests": (1, 100),
    "max_sessions": (1, 100),
    "interval_ms": (100, 1000),
    "waiting_order": ("fcfs", "lpm", "cache_aware"),
    "speculation": ("on", "off"),
    "chunk_size": (16, 128),
}


def request_classes() -> dict[str, type[Message]]:
    """Every public method, as gRPC spells its path, and what it is asked."""
    services: list[ServiceDescriptor] = [
        service
        for file in (inference_pb2, admin_pb2, tokenizer_pb2)
        for service in file.DESCRIPTOR.services_by_name.values()
    ]
    return {
        f"/{service.full_name}/{method.name}": message_factory.GetMessageClass(method.input_type)
        for service in services
        for method in service.methods
    }


def random_bytes(kind: type[Message], rng: random.Random) -> bytes:
    """Bytes for a method that takes `kind`; most of them parse."""
    message = kind()
    # Of liked values alone, with a few strange ones, or strange throughout.
    _fill(message, rng, strange=rng.choice((0.0, 0.0, 0.03, 0.03, 0.3, 1.0)))
    data = message.SerializeToString()
    damage = rng.random()
    if damage < 0.06:
        return data[: rng.randrange(len(data) + 1)]
    if damage < 0.12 and data:
        at = rng.randrange(len(data))
        return data[:at] + rng.randbytes(rng.randrange(1, 9)) + data[at + 1 :]
    if damage < 0.16:
        return data + _unknown_field(rng)
    if damage < 0.19:
        return rng.randbytes(rng.randrange(300))
    if damage < 0.2:
        return data * 1000
    return data


def _fill(message: Message, rng: random.Random, *, strange: float, depth: int = 0) -> None:
    descriptor: Descriptor = message.DESCRIPTOR  # type: ignore[assignment]
    if len(descriptor.fields) == 0 or depth > MAX_DEPTH:
        return
    chosen = {rng.choice(oneof.fields) for oneof in descriptor.oneofs if rng.random() < 0.9}
    for field in descriptor.fields:
        is_one_of_many = (
            field.containing_oneof is not None and len(field.containing_oneof.fields) > 1
        )
        wanted = field in chosen if is_one_of_many else rng.random() < _share(field, strange)
        if wanted:
            _set(message, field, rng, strange=strange, depth=depth)


def _share(field: FieldDescriptor, strange: float) -> float:
    """How often a field is set: what a request cannot do without nearly always."""
    if field.name in ("messages", "role", "content", "ids", "texts", "max_tokens", "sampling"):
        return 0.95
    return 0.12 + 0.4 * strange


def _set(
    message: Message, field: FieldDescriptor, rng: random.Random, *, strange: float, depth: int
) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entries, (key, value) = getattr(message, field.name), field.message_type.fields
        for _ in range(rng.randrange(4)):
            entries[_value(key, rng, strange)] = _value(value, rng, strange)
        return
    most = rng.choice((1, 3, 1500 if strange == 1.0 and depth < 3 else 8))
    if field.message_type is not None and field.is_repeated:
        for _ in range(min(rng.randint(1, most), 40)):
            _fill(getattr(message, field.name).add(), rng, strange=strange, depth=depth + 1)
    elif field.message_type is not None:
        part = getattr(message, field.name)
        part.SetInParent()
        _fill(part, rng, strange=strange, depth=depth + 1)
    elif field.is_repeated:
        found = [_value(field, rng, strange) for _ in range(rng.randint(1, most))]
        getattr(message, field.name).extend(found)
    else:
        setattr(message, field.name, _value(field, rng, strange))


def _value(field: FieldDescriptor, rng: random.Random, strange: float) -> Any:
    liked = _LIKED.get(field.name)
    if liked is not None and rng.random() >= strange:
        return rng.choice(liked)
    return _STRANGE[field.cpp_type](rng, field)


def _integer(least: int, most: int) -> Callable[[random.Random, FieldDescriptor], int]:
    def draw(rng: random.Random, _: FieldDescriptor) -> int:
        value = rng.choice(_INT64_EDGES) if rng.random() < 0.7 else rng.randint(least, most)
        return max(least, min(most, value))

    return draw


def _float(rng: random.Random, _: FieldDescriptor) -> float:
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(_FLOAT_EDGES)
    return rng.choice(_NOT_FINITE) if kind < 0.6 else rng.uniform(-5, 5)


def _text(rng: random.Random, _: FieldDescriptor) -> str:
    if rng.random() < 0.7:
        return rng.choice(_TEXTS)
    points = (
        rng.choice((rng.randrange(128), rng.randrange(0xD800))) for _ in range(rng.randrange(40))
    )
    return "".join(map(chr, points))


_STRANGE: dict[int, Callable[[random.Random, FieldDescriptor], Any]] = {
    FieldDescriptor.CPPTYPE_INT32: _integer(-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: _integer(-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: _integer(0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: _integer(0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_FLOAT: _float,
    FieldDescriptor.CPPTYPE_DOUBLE: _float,
    FieldDescriptor.CPPTYPE_BOOL: lambda rng, _: rng.random() < 0.5,
    FieldDescriptor.CPPTYPE_ENUM: _integer(-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_STRING: _text,
}


def _unknown_field(rng: random.Random) -> bytes:
    """A field of a later schema: a number, or bytes with their length."""
    number = rng.choice((19, 33, 100, 5000))
    tag = number << 3 | 2
    head = bytes((tag & 0x7F | 0x80, tag >> 7 & 0x7F | 0x80, tag >> 14))
    return head + b"\x02hi"
