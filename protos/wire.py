"""The only codec between scheduler and worker: `Envelope` to bytes and back.

Columns travel as little-endian int32.  Decoding checks sizes and shapes, so that what comes out
may be trusted; anything else raises WireError.  Nothing is ever unpickled.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from protos.errors import WireError
from protos.plan import (
    TOKEN_FROM_STEP_BEFORE,
    BatchPlan,
    BatchResult,
    Envelope,
    Fault,
    Hello,
    Message,
    NewRow,
    Ping,
    Ready,
    Remap,
    SamplingParams,
)
from protos.radixd.worker.v1 import worker_pb2 as pb

WIRE_VERSION = 1
MAX_MESSAGE_BYTES = 64 << 20

_SWAP = sys.byteorder == "big"


def pack_ids(ids: array[int]) -> bytes:
    """Column of 32-bit integers to little-endian bytes."""
    if _SWAP:
        ids = ids[:]
        ids.byteswap()
    return ids.tobytes()


def unpack_ids(column: bytes, *, typecode: str = "i") -> array[int]:
    """Little-endian bytes to a column of 32-bit integers ("i" signed, "I" unsigned)."""
    if len(column) % 4:
        raise WireError(f"column of {len(column)} bytes is not a whole number of 32-bit integers")
    ids = array(typecode, column)
    if _SWAP:
        ids.byteswap()
    return ids


def encode(envelope: Envelope) -> bytes:
    """Bytes of an envelope; at most MAX_MESSAGE_BYTES."""
    out = pb.Envelope(wire_version=WIRE_VERSION, epoch=envelope.epoch)
    _ENCODERS[type(envelope.message)](envelope.message, out)
    data: bytes = out.SerializeToString()
    assert len(data) <= MAX_MESSAGE_BYTES, len(data)
    return data


def decode(data: bytes) -> Envelope:
    """The envelope in these bytes.

    Raises:
        WireError: too large, malformed, of another version, or with columns that do not fit.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        raise WireError(f"message of {len(data)} bytes exceeds {MAX_MESSAGE_BYTES}")
    try:
        envelope = pb.Envelope.FromString(data)
    except DecodeError as error:
        raise WireError(f"not an envelope: {error}") from None
    if envelope.wire_version != WIRE_VERSION:
        raise WireError(f"wire version {envelope.wire_version}, expected {WIRE_VERSION}")
    kind = envelope.WhichOneof("body")
    if kind is None:
        raise WireError("empty envelope")
    return Envelope(epoch=envelope.epoch, message=_DECODERS[kind](getattr(envelope, kind)))


def _encode_hello(hello: Hello, out: pb.Envelope) -> None:
    out.hello.instance_id = hello.instance_id
    out.hello.model_id = hello.model_id
    out.hello.model_hash = hello.model_hash
    out.hello.vocab_size = hello.vocab_size
    out.hello.eos_token_ids.extend(hello.eos_token_ids)
    out.hello.num_slots = hello.num_slots
    out.hello.max_rows = hello.max_rows
    out.hello.max_length = hello.max_length
    out.hello.kv_dtype = hello.kv_dtype
    out.hello.device = hello.device
    out.hello.kind = hello.kind


def _decode_hello(hello: pb.Hello) -> Hello:
    if not (hello.vocab_size and hello.num_slots and hello.max_rows and hello.max_length):
        raise WireError("hello without vocabulary, slots, rows or length")
    return Hello(
        instance_id=hello.instance_id,
        model_id=hello.model_id,
        model_hash=hello.model_hash,
        vocab_size=hello.vocab_size,
        eos_token_ids=tuple(hello.eos_token_ids),
        num_slots=hello.num_slots,
        max_rows=hello.max_rows,
        max_length=hello.max_length,
        kv_dtype=hello.kv_dtype,
        device=hello.device,
        kind=hello.kind,
    )


def _encode_plan(plan: BatchPlan, out: pb.Envelope) -> None:
    body = out.plan
    body.step_id = plan.step_id
    body.rows = pack_ids(plan.rows)
    body.prefix_lens = pack_ids(plan.prefix_lens)
    body.extend_lens = pack_ids(plan.extend_lens)
    body.samples = plan.samples
    body.input_ids = pack_ids(plan.input_ids)
    body.out_slots = pack_ids(plan.out_slots)
    body.freed_rows = pack_ids(plan.freed_rows)
    for new in plan.new_rows:
        body.new_rows.add(
            row=new.row,
            prefix_slots=pack_ids(new.prefix_slots),
            temperature=new.sampling.temperature,
            top_k=new.sampling.top_k,
            top_p=new.sampling.top_p,
            min_p=new.sampling.min_p,
            seed=new.sampling.seed,
        )
    for remap in plan.remaps:
        body.remaps.add(row=remap.row, start=remap.start, slots=pack_ids(remap.slots))


def _decode_plan(body: pb.BatchPlan) -> BatchPlan:
    plan = BatchPlan(
        step_id=body.step_id,
        rows=unpack_ids(body.rows),
        prefix_lens=unpack_ids(body.prefix_lens),
        extend_lens=unpack_ids(body.extend_lens),
        samples=body.samples,
        input_ids=unpack_ids(body.input_ids),
        out_slots=unpack_ids(body.out_slots),
        new_rows=tuple(_decode_new_row(new) for new in body.new_rows),
        remaps=tuple(
            Remap(row=remap.row, start=remap.start, slots=unpack_ids(remap.slots))
            for remap in body.remaps
        ),
        freed_rows=unpack_ids(body.freed_rows),
    )
    _check_plan(plan)
    return plan


def _check_plan(plan: BatchPlan) -> None:
    """Columns fit each other and each number is in its range; the worker's own sizes (rows, slots,
    vocabulary) are the worker's to check."""
    per_row = (plan.prefix_lens, plan.extend_lens, plan.samples)
    if any(len(column) != len(plan.rows) for column in per_row):
        raise WireError(f"plan {plan.step_id}: columns per row differ in length")
    if min(plan.extend_lens, default=1) < 1 or max(plan.samples, default=0) > 1:
        raise WireError(f"plan {plan.step_id}: lengths or samples out of range")
    num_tokens = sum(plan.extend_lens)
    if len(plan.input_ids) != num_tokens or len(plan.out_slots) != num_tokens:
        raise WireError(f"plan {plan.step_id}: columns per token do not match extend_lens")
    if min(plan.input_ids, default=0) < TOKEN_FROM_STEP_BEFORE:
        raise WireError(f"plan {plan.step_id}: negative token id")
    never_negative = [plan.rows, plan.prefix_lens, plan.out_slots, plan.freed_rows]
    never_negative += [new.prefix_slots for new in plan.new_rows]
    never_negative += [remap.slots for remap in plan.remaps]
    if any(min(column, default=0) < 0 for column in never_negative):
        raise WireError(f"plan {plan.step_id}: negative row, length or slot")
    if any(max(remap.row, remap.start) >= 1 << 31 for remap in plan.remaps):
        raise WireError(f"plan {plan.step_id}: remap out of range")
    prefix_lens = dict(zip(plan.rows, plan.prefix_lens, strict=True))
    if len(prefix_lens) != len(plan.rows):
        raise WireError(f"plan {plan.step_id}: a row appears twice")
    # Popped, so that a row announced twice is missing the second time.
    if any(prefix_lens.pop(new.row, -1) != len(new.prefix_slots) for new in plan.new_rows):
        raise WireError(f"plan {plan.step_id}: new rows do not match rows and prefix_lens")


def _decode_new_row(new: pb.NewRow) -> NewRow:
    return NewRow(
        row=new.row,
        prefix_slots=unpack_ids(new.prefix_slots),
        sampling=SamplingParams(
            temperature=new.temperature,
            top_k=new.top_k,
            top_p=new.top_p,
            min_p=new.min_p,
            seed=new.seed,
        ),
    )


def _encode_result(result: BatchResult, out: pb.Envelope) -> None:
    out.result.step_id = result.step_id
    out.result.token_ids = pack_ids(result.token_ids)
    out.result.forward_ns = result.forward_ns
    out.result.peak_rss_bytes = result.peak_rss_bytes


def _decode_result(body: pb.BatchResult) -> BatchResult:
    return BatchResult(
        step_id=body.step_id,
        token_ids=unpack_ids(body.token_ids),
        forward_ns=body.forward_ns,
        peak_rss_bytes=body.peak_rss_bytes,
    )


def _encode_fault(fault: Fault, out: pb.Envelope) -> None:
    out.fault.step_id = fault.step_id
    out.fault.message = fault.message


def _encode_ping(ping: Ping, out: pb.Envelope) -> None:
    out.ping.instance_id = ping.instance_id


def _encode_ready(ready: Ready, out: pb.Envelope) -> None:
    out.ready.SetInParent()


_ENCODERS: dict[type[Message], Callable[[Any, pb.Envelope], None]] = {
    Hello: _encode_hello,
    Ready: _encode_ready,
    BatchPlan: _encode_plan,
    BatchResult: _encode_result,
    Fault: _encode_fault,
    Ping: _encode_ping,
}
_DECODERS: dict[str, Callable[[Any], Message]] = {
    "hello": _decode_hello,
    "ready": lambda body: Ready(),
    "plan": _decode_plan,
    "result": _decode_result,
    "fault": lambda body: Fault(step_id=body.step_id, message=body.message),
    "ping": lambda body: Ping(instance_id=body.instance_id),
}
