"""The only codec between scheduler and worker: `Envelope` to bytes and back.

Columns travel as little-endian int32 or float32.  Decoding checks sizes and shapes, so that what
comes out may be trusted; anything else raises WireError.  Nothing is ever unpickled.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from protos.columns import all_natural, pack_floats, pack_ids, unpack_floats, unpack_ids
from protos.errors import WireError
from protos.new_row_wire import decode_new_row, encode_new_row
from protos.plan import (
    NOT_SCORED,
    STEM_FIELDS,
    TOKEN_FROM_STEP_BEFORE,
    BatchPlan,
    BatchResult,
    Envelope,
    Fault,
    Hello,
    LogprobColumns,
    Message,
    Ping,
    Ready,
    Remap,
    RowFault,
)
from protos.radixd.worker.v1 import worker_pb2 as pb

__all__ = [
    "MAX_MESSAGE_BYTES",
    "WIRE_VERSION",
    "check_logprobs",
    "decode",
    "encode",
    "pack_floats",
    "pack_ids",
    "unpack_floats",
    "unpack_ids",
]

WIRE_VERSION = 1
MAX_MESSAGE_BYTES = 64 << 20


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
    out.hello.kv_bytes_per_slot = hello.kv_bytes_per_slot
    out.hello.weights = hello.weights
    out.hello.least_stem_tokens = hello.least_stem_tokens


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
        kv_bytes_per_slot=hello.kv_bytes_per_slot,
        weights=hello.weights,
        least_stem_tokens=hello.least_stem_tokens,
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
    body.next_ids = pack_ids(plan.next_ids)
    body.stems = pack_ids(plan.stems)
    for new in plan.new_rows:
        encode_new_row(new, body.new_rows.add())
    for remap in plan.remaps:
        body.remaps.add(row=remap.row, start=remap.start, slots=pack_ids(remap.slots))


def _decode_plan(body: pb.BatchPlan) -> BatchPlan:
    new_rows = tuple(decode_new_row(new) for new in body.new_rows) if body.new_rows else ()
    plan = BatchPlan(
        step_id=body.step_id,
        rows=unpack_ids(body.rows),
        prefix_lens=unpack_ids(body.prefix_lens),
        extend_lens=unpack_ids(body.extend_lens),
        samples=body.samples,
        input_ids=unpack_ids(body.input_ids),
        out_slots=unpack_ids(body.out_slots),
        new_rows=new_rows,
        remaps=tuple(
            Remap(row=remap.row, start=remap.start, slots=unpack_ids(remap.slots))
            for remap in body.remaps
        ),
        freed_rows=unpack_ids(body.freed_rows),
        next_ids=unpack_ids(body.next_ids),
        stems=unpack_ids(body.stems),
    )
    _check_columns(plan)
    if not all(
        map(all_natural, (body.rows, body.prefix_lens, body.out_slots, body.freed_rows))
    ) or not all(all_natural(remap.slots) for remap in body.remaps):
        raise WireError(f"plan {plan.step_id}: negative row, length or slot")
    if any(max(remap.row, remap.start) >= 1 << 31 for remap in plan.remaps):
        raise WireError(f"plan {plan.step_id}: remap out of range")
    if new_rows:
        _check_new_rows(plan)
    if plan.stems:
        _check_stems(plan)
    return plan


def _check_columns(plan: BatchPlan) -> None:
    """Columns fit each other and what is no row, length or slot is in its range; the worker's own
    sizes (rows, slots, vocabulary) are the worker's to check."""
    num_rows = len(plan.rows)
    if not num_rows == len(plan.prefix_lens) == len(plan.extend_lens) == len(plan.samples):
        raise WireError(f"plan {plan.step_id}: columns per row differ in length")
    if min(plan.extend_lens, default=1) < 1 or _samples_too_often(plan):
        raise WireError(f"plan {plan.step_id}: lengths or samples out of range")
    num_tokens = sum(plan.extend_lens)
    if len(plan.input_ids) != num_tokens or len(plan.out_slots) != num_tokens:
        raise WireError(f"plan {plan.step_id}: columns per token do not match extend_lens")
    if len(plan.next_ids) not in (0, num_tokens):
        raise WireError(f"plan {plan.step_id}: next_ids are not of the inputs")
    lowest = min(plan.input_ids, default=0), min(plan.next_ids, default=0)
    if lowest[0] < TOKEN_FROM_STEP_BEFORE or lowest[1] < NOT_SCORED:
        raise WireError(f"plan {plan.step_id}: negative token id")
    if len(set(plan.rows)) != num_rows:
        raise WireError(f"plan {plan.step_id}: a row appears twice")


def _check_stems(plan: BatchPlan) -> None:
    """Stems are of entries that there are, and begin before they end; whether their entries share
    any slots is for the worker to say, who knows the slots."""
    firsts, counts, begins, ends = (plan.stems[at::STEM_FIELDS] for at in range(STEM_FIELDS))
    if len(firsts) != len(ends) or min(plan.stems) < 0 or min(counts) < 2:
        raise WireError(f"plan {plan.step_id}: stems out of range")
    if max(map(int.__add__, firsts, counts)) > len(plan.rows):
        raise WireError(f"plan {plan.step_id}: stems of more rows than there are")
    if not all(map(int.__lt__, begins, ends)):
        raise WireError(f"plan {plan.step_id}: a stem of no tokens")


def _samples_too_often(plan: BatchPlan) -> bool:
    """Whether a row samples after more inputs than it has."""
    if not plan.samples.translate(None, b"\0\1"):
        return False  # as in nearly every plan: no drafts
    return any(map(int.__gt__, plan.samples, plan.extend_lens))


def _check_new_rows(plan: BatchPlan) -> None:
    # Drafts are no known tokens: their row computes beyond its context.
    known_lens = [
        extend_len - max(0, num_samples - 1)
        for extend_len, num_samples in zip(plan.extend_lens, plan.samples, strict=True)
    ]
    extents = dict(zip(plan.rows, zip(plan.prefix_lens, known_lens, strict=True), strict=True))
    for new in plan.new_rows:
        # Popped, so that a row announced twice is missing the second time.
        prefix_len, known_len = extents.pop(new.row, (-1, 0))
        if prefix_len != len(new.prefix_slots):
            raise WireError(f"plan {plan.step_id}: new rows do not match rows and prefix_lens")
        if new.sampling.needs_context and len(new.context_ids) < prefix_len + known_len:
            raise WireError(f"plan {plan.step_id}: row {new.row} computes beyond its context")


def _encode_result(result: BatchResult, out: pb.Envelope) -> None:
    body = out.result
    body.step_id = result.step_id
    body.token_ids = pack_ids(result.token_ids)
    body.forward_ns = result.forward_ns
    body.peak_rss_bytes = result.peak_rss_bytes
    columns = result.logprobs
    if columns is not None:
        assert columns.chosen, "None where no row asked"
        body.logprobs = pack_floats(columns.chosen)
        body.top_ids = pack_ids(columns.top_ids)
        body.top_logprobs = pack_floats(columns.top_logprobs)
    columns = result.prompt_logprobs
    if columns is not None:
        assert columns.chosen, "None where no row asked"
        body.prompt_logprobs = pack_floats(columns.chosen)
        body.prompt_top_ids = pack_ids(columns.top_ids)
        body.prompt_top_logprobs = pack_floats(columns.top_logprobs)
    body.num_sampled = result.num_sampled
    body.phases_ns = struct.pack(f"<{len(result.phases_ns)}Q", *result.phases_ns)
    for fault in result.row_faults:
        body.row_faults.add(row=fault.row, message=fault.message)


def _decode_result(body: pb.BatchResult) -> BatchResult:
    if len(body.phases_ns) % 8:
        raise WireError(f"result {body.step_id}: phases are no whole number of 64-bit integers")
    result = BatchResult(
        step_id=body.step_id,
        token_ids=unpack_ids(body.token_ids),
        forward_ns=body.forward_ns,
        peak_rss_bytes=body.peak_rss_bytes,
        logprobs=_decode_logprobs(body.logprobs, body.top_ids, body.top_logprobs),
        prompt_logprobs=_decode_logprobs(
            body.prompt_logprobs, body.prompt_top_ids, body.prompt_top_logprobs
        ),
        num_sampled=body.num_sampled,
        phases_ns=struct.unpack(f"<{len(body.phases_ns) // 8}Q", body.phases_ns),
        row_faults=tuple(RowFault(row=at.row, message=at.message) for at in body.row_faults),
    )
    counts = result.num_sampled
    if counts and (not all(counts) or sum(counts) != len(result.token_ids)):
        raise WireError(f"result {body.step_id}: rows sampled other tokens than there are")
    if result.logprobs is not None and len(result.logprobs.chosen) > len(result.token_ids):
        raise WireError(f"result {body.step_id}: more log probabilities than tokens")
    return result


def _decode_logprobs(chosen: bytes, top_ids: bytes, top: bytes) -> LogprobColumns | None:
    if not (chosen or top_ids or top):
        return None
    columns = LogprobColumns(
        chosen=unpack_floats(chosen),
        top_ids=unpack_ids(top_ids),
        top_logprobs=unpack_floats(top),
    )
    check_logprobs(columns)
    if not columns.chosen:
        raise WireError("alternatives without a token")
    return columns


def check_logprobs(columns: LogprobColumns) -> None:
    """Columns of alternatives fit each other, and each number is in its range.

    A log probability is at most 0, and -inf for what cannot be sampled.

    Raises:
        WireError: they do not.
    """
    if len(columns.top_ids) != len(columns.top_logprobs):
        raise WireError("columns of alternatives differ in length")
    if min(columns.top_ids, default=0) < 0:
        raise WireError("negative token id among the alternatives")
    # NaN is not <= 0.
    if not all(
        value <= 0.0 for column in (columns.chosen, columns.top_logprobs) for value in column
    ):
        raise WireError("a log probability is above 0 or no number")


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
