"""Bytes that are no message of ours: refused by name, and the connection lives on."""

import asyncio
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.errors import InvalidRequest, Unsupported
from protos.radixd.v1 import admin_pb2
from protos.radixd.v1 import inference_pb2 as pb
from tests.tokenizer_svc.client import refused, script, unary
from tests.tokenizer_svc.conftest import Served
from tokenizer_svc.door import parse

MARK = b"MARK"


def parsed_or_refused(data: bytes) -> str:
    """The name of the message or of the field; any other exception is a failure."""
    try:
        return type(parse(data, pb.GenerateRequest)).__name__
    except InvalidRequest as error:
        return error.field
    except Unsupported as error:
        return str(error)


def broken(message: Any) -> bytes:
    """The message's bytes with its mark replaced by bytes that are not UTF-8."""
    data: bytes = message.SerializeToString()
    assert data.count(MARK) == 1
    return data.replace(MARK, b"\xed\xa0\x80\xff")


CASES = [
    (pb.GenerateRequest(text="MARK"), "text"),
    (pb.GenerateRequest(request_id="MARK", text="a"), "request_id"),
    (
        pb.GenerateRequest(sampling=pb.SamplingParams(temperature=1, stop=["ok", "MARK"])),
        "sampling.stop[1]",
    ),
    (
        pb.GenerateRequest(
            chat=pb.ChatPrompt(
                messages=[
                    pb.ChatMessage(role=pb.ROLE_USER, content="fine"),
                    pb.ChatMessage(role=pb.ROLE_USER, content="MARK"),
                ]
            )
        ),
        "chat.messages[1].content",
    ),
    (admin_pb2.PreheatRequest(prefixes=["a", "b", "xMARK"]), "prefixes[2]"),
    (pb.CancelRequest(request_id="MARK"), "request_id"),
]


@pytest.mark.parametrize(("message", "field"), CASES)
def test_the_field_with_bad_utf8_is_named(message: Any, field: str):
    with pytest.raises(InvalidRequest) as caught:
        parse(broken(message), type(message))
    assert caught.value.field == field


@given(data=st.binary(max_size=200))
def test_any_bytes_parse_or_are_refused(data: bytes):
    assert parsed_or_refused(data)


@given(data=st.binary(max_size=80), cut=st.integers(0, 60), insert=st.binary(max_size=8))
def test_damaged_messages_parse_or_are_refused(data: bytes, cut: int, insert: bytes):
    whole = pb.GenerateRequest(
        text="héllo", request_id="r", sampling=pb.SamplingParams(stop=["a", "漢"], seed=3)
    ).SerializeToString()
    for damaged in (whole[:cut] + insert + whole[cut:], whole[:cut], data + whole):
        assert parsed_or_refused(damaged)


# field case 91
@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"\x12\x01a" + b"\xa8\x06\x01", "field 101 of radixd.v1.GenerateRequest"),
        (b"\x12\x01a" + b"\x2a\x03\xa8\x06\x01", "field 101 of radixd.v1.SamplingParams"),
        (b"\x1a\x05\x0a\x03\xa8\x06\x01", "field 101 of radixd.v1.ChatMessage"),
    ],
)
def test_fields_of_a_later_schema_are_not_ignored(data: bytes, name: str):
    with pytest.raises(Unsupported, match=name):
        parse(data, pb.GenerateRequest)


# field case 78
@pytest.mark.parametrize("method", ["Generate", "GenerateUnary"])
async def test_bad_utf8_over_the_wire(served: Served, method: str):
    path = f"/radixd.v1.InferenceService/{method}"
    for data, field in (
        (broken(pb.GenerateRequest(text="MARK")), "text"),
        (b"\x0a\xff\xff", "request"),
        (b"\xff" * 1000, "request"),
    ):
        if method == "Generate":
            stream = served.channel.unary_stream(path)(data, timeout=10)
            got = await refused(stream.read())
        else:
            got = await refused(served.channel.unary_unary(path)(data, timeout=10))
        assert (got.code, got.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)
    assert (await unary(served, tokens=script("ok"))).text == "ok"


# field case 126
@pytest.mark.parametrize(
    "noise", [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", bytes(range(256)) * 4, b"PRI * HTTP/2.0\r\n"]
)
async def test_noise_on_the_port_is_closed_and_harms_nobody(served: Served, noise: bytes):
    reader, writer = await asyncio.open_connection("127.0.0.1", served.front.port)
    writer.write(noise)
    writer.write_eof()
    await asyncio.wait_for(reader.read(), 10)
    writer.close()
    assert (await unary(served, tokens=script("ok"))).text == "ok"
