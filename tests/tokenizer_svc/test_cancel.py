"""Group F of the field cases, as far as the front is concerned: leaving, cancelling, equal ids."""

import asyncio
import random

import grpc
import pytest

from protos.radixd.scheduler.v1 import scheduler_pb2 as internal
from protos.radixd.v1 import inference_pb2 as pb
from tests.tokenizer_svc.client import refused, script, stream, unary, wait_until
from tests.tokenizer_svc.conftest import Serve, Served

MANY = pb.SamplingParams(max_tokens=2000)


async def cancel(served: Served, request_id: str) -> None:
    await served.inference.Cancel(pb.CancelRequest(request_id=request_id), timeout=10)


# field case 52
async def test_clients_that_leave_are_cancelled_at_once(served: Served):
    served.scheduler.behavior.step_s = 0.005

    async def leave_after_five(n: int) -> None:
        call = served.inference.Generate(pb.GenerateRequest(text=f"{n}", sampling=MANY))
        num_tokens = 0
        while num_tokens < 5:
            num_tokens += len((await call.read()).token_ids)
        call.cancel()

    await asyncio.gather(*(leave_after_five(n) for n in range(50)))
    await wait_until(lambda: not served.scheduler.seen.running)
    await served.idle()
    assert len(served.scheduler.seen.cancels) == 50
    assert served.scheduler.seen.running == set()


# field case 52
async def test_closing_the_channel_is_leaving(served: Served):
    served.scheduler.behavior.step_s = 0.005
    async with grpc.aio.insecure_channel(served.address) as channel:
        generate = channel.unary_stream(
            "/radixd.v1.InferenceService/Generate",
            request_serializer=pb.GenerateRequest.SerializeToString,
            response_deserializer=pb.GenerateResponse.FromString,
        )
        call = generate(pb.GenerateRequest(text="a", sampling=MANY))
        assert (await call.read()).text
    await wait_until(lambda: not served.scheduler.seen.running)
    await served.idle()
    assert len(served.scheduler.seen.cancels) == 1


# field case 53
async def test_impatient_clients_harm_nobody(served: Served):
    served.scheduler.behavior.step_s = 0.01
    patient = [
        asyncio.create_task(unary(served, tokens=script(f"answer number {n}"))) for n in range(3)
    ]

    async def impatient(n: int) -> grpc.StatusCode:
        try:
            await served.inference.GenerateUnary(
                pb.GenerateUnaryRequest(text=f"{n}", sampling=MANY), timeout=0.05
            )
        except grpc.aio.AioRpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    codes = await asyncio.gather(*(impatient(n) for n in range(30)))
    assert set(codes) <= {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.OK}
    assert [(await task).text for task in patient] == [f"answer number {n}" for n in range(3)]
    await served.idle()
    await wait_until(lambda: not served.scheduler.seen.running)


# field case 54
async def test_a_unary_call_that_is_left_is_cancelled(served: Served):
    served.scheduler.behavior.num_before_hold = 0
    call = served.inference.GenerateUnary(pb.GenerateUnaryRequest(text="a", sampling=MANY))
    await wait_until(lambda: bool(served.scheduler.seen.running))
    call.cancel()
    await wait_until(lambda: not served.scheduler.seen.running)
    await served.idle()


# field case 56
async def test_cancelling_what_waits_ends_it_at_once(served: Served):
    served.scheduler.behavior.num_before_hold = 0
    call = asyncio.create_task(unary(served, text="a", request_id="b"))
    await wait_until(lambda: bool(served.scheduler.seen.running))
    async with asyncio.timeout(10):
        await cancel(served, "b")
        reply = await call
    assert reply.finish_reason == pb.FINISH_REASON_CANCELLED
    assert (reply.text, reply.usage.completion_tokens, reply.usage.prompt_tokens) == ("", 0, 1)
    served.scheduler.behavior.num_before_hold = None
    assert (await unary(served, tokens=script("ok"), request_id="b")).text == "ok"


# field case 57
async def test_a_cancelled_stream_ends_with_what_there_was(served: Served):
    served.scheduler.behavior.num_before_hold = 4
    call = served.inference.Generate(
        pb.GenerateRequest(tokens=script("🙂 and more"), request_id="x")
    )
    replies = aiter(call)
    first = await anext(replies)
    assert first.text == "🙂"
    # A cancelled attempt that still talks must not reach the next request with its id.
    served.scheduler.behavior.honors_cancel = False
    await cancel(served, "x")
    messages = [message async for message in replies]
    assert messages[-1].finish_reason == pb.FINISH_REASON_CANCELLED
    assert sum(len(m.token_ids) for m in [first, *messages]) == 4
    await served.idle()
    served.scheduler.behavior.num_before_hold = None
    again = await stream(served, tokens=script("second"), request_id="x")
    assert again.text == "second"


# field case 58
async def test_cancel_at_the_moment_of_completion(served: Served):
    served.scheduler.behavior.step_s = 0.002
    rng = random.Random(0)
    endings: list[int] = []
    codes: set[grpc.StatusCode] = set()

    async def one(n: int) -> None:
        call = served.inference.Generate(
            pb.GenerateRequest(tokens=script("abcd"), request_id=f"r{n}"), timeout=30
        )

        async def cancel_twice() -> None:
            await asyncio.sleep(rng.uniform(0, 0.03))
            for _ in "ab":
                try:
                    await cancel(served, f"r{n}")
                except grpc.aio.AioRpcError as error:
                    codes.add(error.code())

        canceller = asyncio.create_task(cancel_twice())
        try:
            reasons = [m.finish_reason async for m in call]
            assert [bool(reason) for reason in reasons].count(True) == 1
            assert reasons[-1] in (pb.FINISH_REASON_STOP, pb.FINISH_REASON_CANCELLED)
            endings.append(reasons[-1])
        except grpc.aio.AioRpcError as error:
            codes.add(error.code())
            endings.append(pb.FINISH_REASON_CANCELLED)
        await canceller

    for start in range(0, 400, 50):
        await asyncio.gather(*(one(n) for n in range(start, start + 50)))
    assert len(endings) == 400
    # Cancelled before it could start; cancelled once it was over.
    assert codes <= {grpc.StatusCode.CANCELLED, grpc.StatusCode.NOT_FOUND}
    await served.idle()
    assert (await unary(served, tokens=script("ok"))).text == "ok"


# field case 59
async def test_two_live_requests_with_one_id(served: Served):
    served.scheduler.behavior.num_before_hold = 2
    first = asyncio.create_task(unary(served, tokens=script("first"), request_id="x"))
    await wait_until(lambda: bool(served.scheduler.seen.running))
    got = await refused(unary(served, text="a", request_id="x"))
    assert (got.code, got.reason) == (grpc.StatusCode.ALREADY_EXISTS, "DUPLICATE_REQUEST_ID")
    served.scheduler.behavior.num_before_hold = None
    assert (await first).text == "first"
    assert (await unary(served, tokens=script("again"), request_id="x")).text == "again"


# field case 60
async def test_an_id_that_is_used_again_starts_from_nothing(served: Served):
    half = "🙂".encode()[:3]
    for output, text in ((half, "\ufffd"), (b"clean", "clean"), (half, "\ufffd")):
        stops = pb.SamplingParams(stop=["zzz"])
        streamed = await stream(served, tokens=script(output), request_id="x", sampling=stops)
        assert streamed.text == text
    served.scheduler.behavior.answer = lambda submit: internal.Output(
        ending=internal.ENDING_FAILED, message="the pool fell over"
    )
    got = await refused(unary(served, text="a", request_id="x"))
    assert (got.code, got.message) == (grpc.StatusCode.INTERNAL, "the pool fell over")
    served.scheduler.behavior.answer = lambda submit: None
    assert (await unary(served, tokens=script("clean"), request_id="x")).text == "clean"


async def test_cancel_of_an_unknown_id(served: Served):
    got = await refused(served.inference.Cancel(pb.CancelRequest(request_id="nobody")))
    assert (got.code, got.reason) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_REQUEST_ID")


# field cases 62, 74
async def test_many_streams_at_once(served: Served):
    served.scheduler.behavior.step_s = 0.01
    streams = await asyncio.gather(
        *(stream(served, tokens=script(f"stream number {n:04}")) for n in range(300))
    )
    assert [s.text for s in streams] == [f"stream number {n:04}" for n in range(300)]


@pytest.mark.slow
async def test_a_thousand_streams(serve: Serve):
    served = await serve()
    served.scheduler.behavior.step_s = 0.05
    streams = await asyncio.gather(*(stream(served, tokens=script(f"{n:04}")) for n in range(1000)))
    assert [s.text for s in streams] == [f"{n:04}" for n in range(1000)]
    await served.idle()


async def test_a_slow_reader_blocks_nobody(served: Served):
    served.scheduler.behavior.tokens_per_step = 8
    slow = served.inference.Generate(pb.GenerateRequest(text="slow", sampling=MANY))
    replies = aiter(slow)
    num_tokens = len((await anext(replies)).token_ids)
    others = await asyncio.gather(*(stream(served, tokens=script(f"other {n}")) for n in range(20)))
    assert [s.text for s in others] == [f"other {n}" for n in range(20)]
    async for message in replies:
        num_tokens += len(message.token_ids)
    assert num_tokens > 1900
