"""Field case 124: one table from what went wrong to the code that a client can act on."""

import asyncio
from collections.abc import Awaitable, Callable

import grpc
import pytest

from protos.radixd.scheduler.v1 import scheduler_pb2 as internal
from protos.radixd.v1 import inference_pb2 as pb
from tests.tokenizer_svc.client import Refusal, refused, script, unary, wait_until
from tests.tokenizer_svc.conftest import Served
from tests.tokenizer_svc.fake_scheduler import MODEL

Code = grpc.StatusCode


async def bad_parameter(served: Served) -> Refusal:
    return await refused(unary(served, text="a", sampling=pb.SamplingParams(top_p=7)))


async def too_long(served: Served) -> Refusal:
    return await refused(unary(served, text="a" * (MODEL.max_length + 1)))


async def ended_with(served: Served, ending: str) -> Refusal:
    output = internal.Output(ending=internal.Ending.Value(f"ENDING_{ending}"))
    served.scheduler.behavior.answer = lambda submit: internal.Output.FromString(
        output.SerializeToString()
    )
    return await refused(unary(served, text="a"))


async def queue_full(served: Served) -> Refusal:
    return await ended_with(served, "REJECTED_QUEUE_FULL")


async def pool_too_small(served: Served) -> Refusal:
    return await ended_with(served, "REJECTED_TOO_LARGE")


async def deadline_passed(served: Served) -> Refusal:
    return await ended_with(served, "DEADLINE")


async def taken_id(served: Served) -> Refusal:
    served.scheduler.behavior.num_before_hold = 0
    first = asyncio.ensure_future(unary(served, tokens=script("a"), request_id="mine"))
    await wait_until(lambda: bool(served.scheduler.seen.running))
    got = await refused(unary(served, text="a", request_id="mine"))
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    return got


async def unknown_id(served: Served) -> Refusal:
    return await refused(served.inference.Cancel(pb.CancelRequest(request_id="nobody")))


async def cancelled(served: Served) -> Refusal:
    served.scheduler.set_worker(connected=False)
    await wait_until(lambda: not served.front.link.is_ready)
    call = asyncio.ensure_future(refused(unary(served, text="a", request_id="mine")))
    await wait_until(lambda: len(served.front.live) == 1)
    await served.inference.Cancel(pb.CancelRequest(request_id="mine"))
    return await call


async def unknown_field(served: Served) -> Refusal:
    path = "/radixd.v1.InferenceService/GenerateUnary"
    later = pb.GenerateUnaryRequest(text="a").SerializeToString() + b"\xc0\x3e\x01"  # field 1000
    return await refused(served.channel.unary_unary(path)(later, timeout=10))


async def shutting_down(served: Served) -> Refusal:
    served.front._door.close()
    return await refused(unary(served, text="a"))


@pytest.mark.parametrize(
    ("happen", "code"),
    [
        (bad_parameter, Code.INVALID_ARGUMENT),
        (too_long, Code.INVALID_ARGUMENT),
        (queue_full, Code.RESOURCE_EXHAUSTED),
        (pool_too_small, Code.RESOURCE_EXHAUSTED),
        (taken_id, Code.ALREADY_EXISTS),
        (unknown_id, Code.NOT_FOUND),
        (shutting_down, Code.UNAVAILABLE),
        (deadline_passed, Code.DEADLINE_EXCEEDED),
        (cancelled, Code.CANCELLED),
        (unknown_field, Code.UNIMPLEMENTED),
    ],
)
async def test_the_table(
    served: Served, happen: Callable[[Served], Awaitable[Refusal]], code: grpc.StatusCode
):
    got = await happen(served)
    assert got.code is code
    assert got.message
    assert got.reason
    for word in ("Error(", "Traceback", "None", "Exception", "_pb2", "self"):
        assert word not in got.message
