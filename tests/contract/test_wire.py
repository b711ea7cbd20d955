"""The codec between scheduler and worker: what goes in comes out, and nothing else gets in."""

import math
import random
import sys
from array import array
from dataclasses import fields
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos import plan, wire
from protos.errors import WireError
from protos.plan import BatchPlan, Envelope, Fault, Ping, Ready
from protos.radixd.worker.v1 import worker_pb2 as pb
from tests.contract.strategies import envelopes, messages

PICKLE = b"cbuiltins\nexec\n(S'import sys; sys.unpickled_by_the_wire = True'\ntR."
"""Runs a statement in whoever unpickles it."""


def decode_plan(**columns: Any) -> BatchPlan:
    """A plan of one row and one token, with some of its columns replaced, through the codec."""
    one = wire.pack_ids(array("i", [1]))
    body: dict[str, Any] = {
        "rows": one,
        "prefix_lens": wire.pack_ids(array("i", [0])),
        "extend_lens": one,
    }
    body |= {"samples": b"\1", "input_ids": one, "out_slots": one} | columns
    envelope = pb.Envelope(wire_version=wire.WIRE_VERSION, plan=pb.BatchPlan(**body))
    message = wire.decode(envelope.SerializeToString()).message
    assert isinstance(message, BatchPlan)
    return message


def ids(*numbers: int) -> bytes:
    """A column as it travels."""
    return wire.pack_ids(array("i", numbers))


@given(envelopes)
def test_what_goes_in_comes_out(envelope: Envelope) -> None:
    data = wire.encode(envelope)
    assert wire.decode(data) == envelope
    assert wire.encode(wire.decode(data)) == data


def test_every_message_is_covered() -> None:
    kinds = set(get_args(plan.Message))
    assert {type(message) for message in _examples()} == kinds
    assert set(wire._ENCODERS) == kinds
    bodies = {field.name for field in pb.Envelope.DESCRIPTOR.oneofs_by_name["body"].fields}
    assert set(wire._DECODERS) == bodies


def _examples() -> list[plan.Message]:
    return [
        plan.Hello(
            instance_id=1,
            model_id="m",
            model_hash="h",
            vocab_size=2,
            eos_token_ids=(),
            num_slots=1,
            max_rows=1,
            max_length=1,
            kv_dtype="float32",
            device="cpu",
            kind="fake",
        ),
        Ready(),
        decode_plan(),
        plan.BatchResult(step_id=1, token_ids=array("i")),
        Fault(step_id=1, message="m"),
        Ping(instance_id=1),
    ]


@pytest.mark.parametrize("message", _examples(), ids=lambda message: type(message).__name__)
def test_no_field_is_forgotten(message: plan.Message) -> None:
    """Each field of the value has a field of its own in the schema, under the same name."""
    body = pb.Envelope.FromString(wire.encode(Envelope(epoch=1, message=message)))
    kind = body.WhichOneof("body")
    schema = set(getattr(body, kind).DESCRIPTOR.fields_by_name)
    if kind == "result":
        # Columns of the value's `logprobs` and `prompt_logprobs`.
        schema -= {"top_ids", "top_logprobs", "prompt_top_ids", "prompt_top_logprobs"}
    assert {field.name for field in fields(message)} == schema


def test_no_field_of_a_new_row_is_forgotten() -> None:
    ours = {field.name for kind in (plan.NewRow, plan.SamplingParams) for field in fields(kind)}
    theirs = {
        "logprobs": "logprobs_plus_one",
        "prompt_logprobs": "prompt_logprobs_plus_one",
        "logit_bias": "biases",
    }
    schema = {theirs.get(name, name) for name in ours - {"sampling"}} | {"bias_ids"}
    assert schema == set(pb.NewRow.DESCRIPTOR.fields_by_name)


def test_a_plain_row_costs_nothing_for_what_it_does_not_use() -> None:
    """And reads the same as before there were penalties: absent is 1."""
    new = plan.NewRow(row=1, prefix_slots=array("i"), sampling=plan.SamplingParams(top_p=0.5))
    one = array("i", [1])
    step = BatchPlan(
        step_id=1,
        rows=one,
        prefix_lens=array("i", [0]),
        extend_lens=one,
        samples=b"\1",
        input_ids=one,
        out_slots=one,
        new_rows=(new,),
        freed_rows=array("i"),
    )
    body = pb.Envelope.FromString(wire.encode(Envelope(epoch=1, message=step))).plan.new_rows[0]
    assert [field.name for field, _ in body.ListFields()] == ["row", "top_p"]
    decoded = decode_plan(new_rows=[body]).new_rows[0].sampling
    assert (decoded.repetition_penalty, decoded.logprobs) == (1.0, -1)
    assert not decoded.needs_context


@given(st.binary(max_size=200))
def test_noise_is_refused_or_means_something(data: bytes) -> None:
    _refused_or_sound(data)


@given(envelopes, st.integers(0, 10_000))
def test_truncated_messages_are_refused_or_mean_something(envelope: Envelope, cut: int) -> None:
    data = wire.encode(envelope)
    _refused_or_sound(data[: cut % (len(data) + 1)])


@given(envelopes, st.integers(0, 10_000), st.integers(1, 255))
def test_damaged_messages_are_refused_or_mean_something(
    envelope: Envelope, at: int, flip: int
) -> None:
    data = bytearray(wire.encode(envelope))
    data[at % len(data)] ^= flip
    _refused_or_sound(bytes(data))


def _refused_or_sound(data: bytes) -> None:
    """WireError, or a value that is encoded again without complaint; no third way."""
    try:
        envelope = wire.decode(data)
    except WireError:
        return
    wire.encode(envelope)
    if isinstance(envelope.message, BatchPlan):
        body = envelope.message
        assert len(body.rows) == len(body.prefix_lens) == len(body.extend_lens)
        assert len(body.rows) == len(body.samples)
        assert len(body.input_ids) == len(body.out_slots) == sum(body.extend_lens)


def test_a_pickle_is_not_opened() -> None:
    """Field case 127: an open socket that unpickles runs what anybody sends."""
    with pytest.raises(WireError):
        wire.decode(PICKLE)
    for field in ("rows", "samples", "input_ids"):
        with pytest.raises(WireError):
            decode_plan(**{field: PICKLE})
    assert not hasattr(sys, "unpickled_by_the_wire")


def test_a_megabyte_of_noise_is_refused() -> None:
    with pytest.raises(WireError):
        wire.decode(random.Random(1).randbytes(1 << 20))


def test_too_large_is_refused_before_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_MESSAGE_BYTES", 100)
    with pytest.raises(WireError, match="101 bytes exceeds 100"):
        wire.decode(bytes(101))


@pytest.mark.parametrize("version", [0, wire.WIRE_VERSION + 1, 2**32 - 1])
def test_other_versions_are_refused(version: int) -> None:
    data = pb.Envelope(wire_version=version, ready=pb.Ready()).SerializeToString()
    with pytest.raises(WireError, match=f"version {version}, expected {wire.WIRE_VERSION}"):
        wire.decode(data)


def test_an_empty_envelope_is_refused() -> None:
    with pytest.raises(WireError, match="empty"):
        wire.decode(pb.Envelope(wire_version=wire.WIRE_VERSION).SerializeToString())
    with pytest.raises(WireError):
        wire.decode(b"")


def test_the_last_body_wins_and_is_checked() -> None:
    """Two bodies in one envelope: protobuf keeps the last, which must be sound by itself."""
    ready = pb.Envelope(wire_version=wire.WIRE_VERSION, ready=pb.Ready()).SerializeToString()
    broken = pb.Envelope(plan=pb.BatchPlan(rows=ids(1))).SerializeToString()
    with pytest.raises(WireError):
        wire.decode(ready + broken)


def limited_row(**fields: Any) -> pb.NewRow:
    """Row 1 with two tokens before it may end; sound unless fields are replaced."""
    sound = {"row": 1, "num_prompt": 1, "min_tokens": 2, "suppressed_ids": ids(3)}
    return pb.NewRow(**(sound | fields))


def penalized_row(**fields: Any) -> pb.NewRow:
    """Row 1 with a penalty and the context it needs; sound unless fields are replaced."""
    sound = {"row": 1, "num_prompt": 1, "presence_penalty": 1.0, "context_ids": ids(1)}
    return pb.NewRow(**(sound | fields))


def test_rows_with_context_and_limits_are_taken() -> None:
    (new,) = decode_plan(new_rows=[penalized_row(context_ids=ids(1, 2))]).new_rows
    assert (list(new.context_ids), new.num_prompt) == ([1, 2], 1)
    (new,) = decode_plan(new_rows=[limited_row()]).new_rows
    assert (new.suppressed_ids, new.sampling.min_tokens) == ((3,), 2)


def floats(*numbers: float) -> bytes:
    return wire.pack_floats(array("f", numbers))


@pytest.mark.parametrize(
    "columns",
    [
        {"logprobs": floats(-1, -1)},
        {"logprobs": b"\0\0"},
        {"logprobs": floats(0.5)},
        {"logprobs": floats(math.nan)},
        {"logprobs": floats(math.inf)},
        {"top_ids": ids(1)},
        {"top_ids": ids(-1, 2)},
        {"top_ids": b"\1"},
        {"top_logprobs": floats(-1)},
        {"top_logprobs": floats(-1, math.nan)},
        {"top_logprobs": floats(-1, 1)},
        {"logprobs": b""},
        {"token_ids": b""},
        {"prompt_logprobs": floats(0.5)},
        {"prompt_logprobs": floats(math.nan)},
        {"prompt_logprobs": b"\1"},
        {"prompt_top_ids": ids(1), "prompt_top_logprobs": floats(-1)},
    ],
    ids=str,
)
def test_log_probabilities_that_cannot_be_are_refused(columns: dict[str, bytes]) -> None:
    sound = {"token_ids": ids(1), "logprobs": floats(-1), "top_ids": ids(1, 2)}
    sound |= {"top_logprobs": floats(-1, -math.inf)}

    def decode(body: dict[str, bytes]) -> plan.Message:
        result = pb.BatchResult(**body)
        envelope = pb.Envelope(wire_version=wire.WIRE_VERSION, result=result)
        return wire.decode(envelope.SerializeToString()).message

    assert isinstance(decode(sound), plan.BatchResult)
    with pytest.raises(WireError):
        decode(sound | columns)


@pytest.mark.parametrize(
    "columns",
    [
        {"rows": b"\1\0\0"},
        {"rows": ids(1, 2)},
        {"rows": ids()},
        {"rows": ids(-1)},
        {"prefix_lens": ids()},
        {"prefix_lens": ids(-1)},
        {"extend_lens": ids(0), "input_ids": b"", "out_slots": b""},
        {"extend_lens": ids(-1)},
        {"extend_lens": ids(2)},
        {"extend_lens": ids(2**31 - 1)},
        {"samples": b""},
        {"samples": b"\1\1"},
        {"samples": b"\2"},
        {"input_ids": ids(1, 2)},
        {"input_ids": ids(-2)},
        {"input_ids": b""},
        {"out_slots": ids(1, 2)},
        {"out_slots": ids(-1)},
        {"out_slots": b""},
        {"next_ids": ids(1, 2)},
        {"next_ids": ids(-2)},
        {"next_ids": b"\1"},
        {"stems": b"\1"},
        {"freed_rows": b"\1"},
        {"freed_rows": ids(-1)},
        {"new_rows": [pb.NewRow(row=1, prefix_slots=b"\1")]},
        {"new_rows": [pb.NewRow(row=1, prefix_slots=ids(5))]},
        {"new_rows": [pb.NewRow(row=2)]},
        {"new_rows": [pb.NewRow(row=1), pb.NewRow(row=1)]},
        {"new_rows": [pb.NewRow(row=1, prefix_slots=ids(-5))]},
        {"new_rows": [pb.NewRow(row=1, context_ids=ids(1), num_prompt=1)]},
        {"new_rows": [pb.NewRow(row=1, suppressed_ids=ids(1))]},
        {"new_rows": [pb.NewRow(row=1, min_tokens=1)]},
        {"new_rows": [pb.NewRow(row=1, bias_ids=ids(1))]},
        {"new_rows": [pb.NewRow(row=1, biases=floats(1))]},
        {"new_rows": [pb.NewRow(row=1, bias_ids=ids(-1), biases=floats(1))]},
        {"new_rows": [pb.NewRow(row=1, bias_ids=ids(2, 2), biases=floats(1, 2))]},
        {"new_rows": [pb.NewRow(row=1, bias_ids=ids(2, 1), biases=floats(1, 2))]},
        {"new_rows": [pb.NewRow(row=1, bias_ids=ids(1), biases=floats(math.nan))]},
        {"new_rows": [pb.NewRow(row=1, bias_ids=ids(1), biases=floats(-math.inf))]},
        {"new_rows": [limited_row(suppressed_ids=ids(-1))]},
        {"new_rows": [limited_row(suppressed_ids=b"\1")]},
        {"new_rows": [limited_row(num_prompt=0)]},
        {"new_rows": [penalized_row(context_ids=b"")]},
        {"new_rows": [penalized_row(context_ids=ids(1, -1))]},
        {"new_rows": [penalized_row(context_ids=b"\1")]},
        {"new_rows": [penalized_row(num_prompt=0)]},
        {"new_rows": [penalized_row(num_prompt=2)]},
        {"samples": b"\2", "extend_lens": ids(1)},
        {"prefix_lens": ids(1), "new_rows": [penalized_row(prefix_slots=ids(5))]},
        {"remaps": [pb.Remap(row=1, slots=b"\1")]},
        {"remaps": [pb.Remap(row=2**31, slots=ids(1))]},
        {"remaps": [pb.Remap(row=1, slots=ids(-1))]},
    ],
    ids=str,
)
def test_columns_that_do_not_match_are_refused(columns: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        decode_plan(**columns)


@pytest.mark.parametrize(
    "columns",
    [
        {"num_sampled": b"\1"},
        {"num_sampled": b"\1\2"},
        {"num_sampled": b"\2\0"},
        {"num_sampled": b"\1\1\0"},
        {"phases_ns": b"\0" * 7},
    ],
    ids=str,
)
def test_results_that_do_not_add_up_are_refused(columns: dict[str, Any]) -> None:
    result = pb.BatchResult(step_id=1, token_ids=ids(5, 6), **columns)
    data = pb.Envelope(wire_version=wire.WIRE_VERSION, result=result).SerializeToString()
    with pytest.raises(WireError, match="result 1"):
        wire.decode(data)


def test_drafts_are_no_part_of_a_context() -> None:
    """A row with penalties tells all it knows; what it guesses beyond that is no more."""
    columns = {"extend_lens": ids(2), "input_ids": ids(1, 9), "out_slots": ids(1, 2)}
    assert decode_plan(samples=b"\2", new_rows=[penalized_row()], **columns).samples == b"\2"
    with pytest.raises(WireError, match="beyond its context"):
        decode_plan(samples=b"\1", new_rows=[penalized_row()], **columns)


def test_a_row_twice_is_refused() -> None:
    two = ids(1, 1)
    with pytest.raises(WireError):
        decode_plan(
            rows=two,
            prefix_lens=ids(0, 0),
            extend_lens=two,
            samples=b"\1\1",
            input_ids=two,
            out_slots=two,
        )


def test_hello_without_sizes_is_refused() -> None:
    data = pb.Envelope(wire_version=wire.WIRE_VERSION, hello=pb.Hello(vocab_size=1))
    with pytest.raises(WireError, match="hello"):
        wire.decode(data.SerializeToString())


@given(messages)
def test_values_are_checked_types(message: plan.Message) -> None:
    """Columns come out as arrays of 32-bit integers, whatever they were made from."""
    decoded = wire.decode(wire.encode(Envelope(epoch=0, message=message))).message
    for field in fields(decoded):
        value = getattr(decoded, field.name)
        assert not isinstance(value, array) or value.typecode == "i"


def test_a_decode_plan_of_256_rows_stays_small() -> None:
    """Only what changed travels: 21 bytes a row, whatever the length of its context."""
    rows = array("i", range(256))
    step = BatchPlan(
        step_id=10**9,
        rows=rows,
        prefix_lens=array("i", [100_000] * 256),
        extend_lens=array("i", [1] * 256),
        samples=b"\1" * 256,
        input_ids=array("i", [plan.TOKEN_FROM_STEP_BEFORE] * 256),
        out_slots=array("i", range(10**6, 10**6 + 256)),
        freed_rows=array("i"),
    )
    data = wire.encode(Envelope(epoch=2**64 - 1, message=step))
    assert len(data) < 6 * 1024
    assert len(data) < 256 * 21 + 100
