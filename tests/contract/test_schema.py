"""Field numbers never change their meaning, and the schemas keep to the naming rules.

`schema.json` is the memory.  `--update` adds what is new to it and refuses to change what is
there; a number that is given up must be `reserved` in the schema, with its name.
"""

import json
import re
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto

from protos import errors
from protos.radixd.scheduler.v1 import scheduler_pb2
from scheduler_svc.core.messages import Ending
from tests.contract import schema

KEPT = Path(__file__).with_name("schema.json")
PUBLIC = "radixd.v1."


def reserved() -> dict[str, set[str]]:
    """Numbers and names that are given up for good, by message or enum."""
    found = {}
    for kind in (*schema.messages(), *schema.enums()):
        proto = DescriptorProto() if isinstance(kind, Descriptor) else EnumDescriptorProto()
        kind.CopyToProto(proto)
        past_end = 0 if isinstance(proto, EnumDescriptorProto) else -1
        numbers = {
            str(number)
            for span in proto.reserved_range
            for number in range(span.start, span.end + past_end + 1)
        }
        found[kind.full_name] = numbers | set(proto.reserved_name)
    return found


def changed(kept: dict[str, Any], now: dict[str, Any], gone: dict[str, set[str]]) -> list[str]:
    """What in `now` would mislead a peer that was built from `kept`."""
    found = []
    for kind in ("messages", "enums"):
        for name, numbers in kept[kind].items():
            if name not in now[kind]:
                found.append(f"{name} is gone")
                continue
            for number, meaning in numbers.items():
                today = now[kind][name].get(number)
                label = meaning if kind == "enums" else meaning[0]
                if today is None and not {number, label} <= gone.get(name, set()):
                    found.append(f"{name}: {number} ({label}) is gone but not reserved")
                elif today is not None and today != meaning:
                    found.append(f"{name}: {number} was {meaning}, is {today}")
    found += [
        f"{name} was {types}, is {now['rpcs'].get(name)}"
        for name, types in kept["rpcs"].items()
        if now["rpcs"].get(name) != types
    ]
    return found


def test_numbers_never_change_their_meaning(pytestconfig: pytest.Config) -> None:
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    now = schema.snapshot()
    complaints = changed(kept, now, reserved())
    assert not complaints, "\n" + "\n".join(complaints)
    if pytestconfig.getoption("--update"):
        KEPT.write_text(json.dumps(_merged(kept, now), indent=1) + "\n", encoding="utf-8")
        kept = json.loads(KEPT.read_text(encoding="utf-8"))
    assert _merged(kept, now) == kept, "new in the schemas: run pytest tests/contract --update"


def _merged(kept: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Kept and new together; numbers that are reserved now stay remembered."""
    merged: dict[str, Any] = {"rpcs": kept["rpcs"] | now["rpcs"]}
    for kind in ("messages", "enums"):
        names = sorted(kept[kind].keys() | now[kind].keys())
        merged[kind] = {name: kept[kind].get(name, {}) | now[kind].get(name, {}) for name in names}
    return merged


def test_a_change_of_meaning_is_noticed() -> None:
    kept = {"messages": {"m": {"1": ["a", "int32"]}}, "enums": {"e": {"1": "E_A"}}, "rpcs": {}}

    def now(**parts: Any) -> dict[str, Any]:
        return kept | parts

    assert not changed(kept, now(), {})
    assert changed(kept, now(messages={"m": {"1": ["a", "optional int32"]}}), {})
    assert changed(kept, now(messages={"m": {"1": ["b", "int32"]}}), {})
    assert changed(kept, now(messages={"m": {}}), {"m": {"1"}})
    assert not changed(kept, now(messages={"m": {}}), {"m": {"1", "a"}})
    assert changed(kept, now(messages={}), {})
    assert changed(kept, now(enums={"e": {"1": "E_B"}}), {})
    assert changed(kept | {"rpcs": {"s/R": ["a", "b"]}}, now(), {})


def test_enum_zero_is_unspecified() -> None:
    enums = list(schema.enums())
    assert enums
    for enum in enums:
        prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", enum.name).upper()
        assert enum.values_by_number[0].name == f"{prefix}_UNSPECIFIED"
        assert all(value.name.startswith(f"{prefix}_") for value in enum.values), enum.full_name


def test_each_rpc_has_its_own_request_and_response() -> None:
    rpcs = [method for service in schema.services() for method in service.methods]
    assert rpcs
    for rpc in rpcs:
        assert rpc.input_type.name == f"{rpc.name}Request", rpc.full_name
        assert rpc.output_type.name == f"{rpc.name}Response", rpc.full_name
    for service in schema.services():
        # The scheduler may answer in the words of the public package, but each once.
        used = [kind.full_name for m in service.methods for kind in (m.input_type, m.output_type)]
        assert len(used) == len(set(used)), f"two rpcs of {service.full_name} share a message"


def test_public_zeros_that_mean_something_are_optional() -> None:
    """Absent and zero must differ wherever a caller may mean zero."""
    public = schema.snapshot()["messages"]
    for name in ("SamplingParams", "GenerateRequest", "GenerateUnaryRequest"):
        for field, kind in public[PUBLIC + name].values():
            scalar = kind.split()[-1].islower() and "." not in kind and not kind.startswith("map<")
            assert not scalar or kind.split()[0] in {"optional", "repeated", "oneof"}, (name, field)


def test_unary_and_stream_are_field_for_field_the_same() -> None:
    public = schema.snapshot()["messages"]
    assert public[f"{PUBLIC}GenerateRequest"] == public[f"{PUBLIC}GenerateUnaryRequest"]
    stream, unary = public[f"{PUBLIC}GenerateResponse"], public[f"{PUBLIC}GenerateUnaryResponse"]
    # A message of the stream is about one choice, the unary one has them all.
    assert (stream.pop("11"), unary.pop("11")) == (
        ["choice", "uint32"],
        ["choices", "repeated radixd.v1.Choice"],
    )
    assert stream == unary


def test_endings_are_those_of_the_schema() -> None:
    ours = {ending.value: f"ENDING_{ending.name}" for ending in Ending}
    theirs = {value.number: value.name for value in scheduler_pb2.Ending.DESCRIPTOR.values}
    assert theirs == {0: "ENDING_UNSPECIFIED"} | ours


def subclasses() -> list[type[errors.RadixdError]]:
    """Every error of the tree, without its root."""
    waiting, found = [errors.RadixdError], []
    while waiting:
        below = [
            kind for kind in waiting.pop().__subclasses__() if kind.__module__ == "protos.errors"
        ]
        found += below
        waiting += below
    return found


@pytest.mark.parametrize("kind", subclasses(), ids=lambda kind: kind.__name__)
def test_every_error_is_drawn_in_the_tree(kind: type[errors.RadixdError]) -> None:
    (line,) = re.findall(rf"^ *[├└]── {kind.__name__} +(\S+)", errors.__doc__ or "", re.M)
    if line.startswith("("):  # never reaches a client
        assert kind.code is errors.StatusCode.INTERNAL
    else:
        assert kind.code.name == line
    assert kind.__doc__
    assert re.fullmatch(r"[A-Z][A-Z0-9_]+", kind.reason)


def test_the_tree_draws_nothing_else() -> None:
    drawn = re.findall(r"^ *[├└]── (\w+)", errors.__doc__ or "", re.M)
    assert sorted(drawn) == sorted(kind.__name__ for kind in subclasses())


def test_status_codes_are_those_of_grpc() -> None:
    numbers = {code.name: code.value[0] for code in grpc.StatusCode}
    assert {code.name: code.value for code in errors.StatusCode}.items() <= numbers.items()
