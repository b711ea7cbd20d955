"""Why a request is where it is: Explain and ListRequests on a server with a single row."""

import asyncio
import contextlib
import json

import grpc
import pytest

from protos.radixd.v1 import admin_pb2, inference_pb2
from radixd.cli.app import main
from tests.system.ask import Running, cached, explain, ids, refused, request, set_policy, until
from tests.system.stack import FAKE, launched


@pytest.fixture(scope="module")
def stack():
    with launched(
        *("--fake-worker", "--fake-step-ms", "1", "--max-running", "1", "--kv-slots", "8192"),
        *("--chunk-sizes", "tiny=16,code=64"),
    ) as running:
        yield running


@contextlib.asynccontextmanager
async def taken_row(client, request_id, max_tokens=7000):
    """The one row is taken by a stream for as long as the block runs."""
    prompt = ids(20, request_id)
    holder = Running(client, request(prompt, max_tokens, request_id=request_id))
    await holder.began(3)
    try:
        yield holder
    finally:
        holder.leave()
        await holder


async def listed(client, **limits):
    return await client.admin.ListRequests(admin_pb2.ListRequestsRequest(**limits), timeout=10)


async def queue_up(client, *messages):
    """Streams that wait, in this order; steps of a running one have looked at them."""
    streams = []
    for message in messages:
        streams.append(Running(client, message))

        async def waits(request_id=message.request_id):
            return request_id in [view.request_id for view in (await listed(client)).requests]

        await until(waits, f"{message.request_id} in the queue")
    num_steps = (await client.stats()).num_steps

    async def looked_at():
        # Two may have been planned before the last one came.
        return (await client.stats()).num_steps >= num_steps + 3

    await until(looked_at, "steps since then")
    return streams


async def cancel(client, request_id):
    await client.inference.Cancel(inference_pb2.CancelRequest(request_id=request_id), timeout=10)


async def test_waiting_running_and_ended_by_the_clients_id(client):
    shared = ids(30, "shared")
    await cached(client, shared)
    async with taken_row(client, "holder"):
        first = request([*shared, *ids(10, 1)], 5, request_id="first", priority=7, workload="code")
        second = request(ids(12, 2), 5, request_id="second", timeout_ms=40_000)
        streams = await queue_up(client, first, second)

        waiting = await explain(client, "first")
        view = waiting.request
        assert view.state == admin_pb2.REQUEST_STATE_WAITING
        assert view.waiting_reason == admin_pb2.WAITING_REASON_NO_ROW
        assert (view.request_id, view.priority, view.workload) == ("first", 7, "code")
        assert (view.prompt_tokens, view.output_tokens, view.slots) == (40, 0, 0)
        assert not view.HasField("cached_tokens")
        assert 40_000 < view.deadline_in_ms <= 50_000, "that of the call itself"
        assert (waiting.rank, waiting.num_waiting, waiting.matched_tokens) == (1, 2, 30)
        assert waiting.order_terms["cached_tokens"] == 30
        assert waiting.needed_slots >= waiting.promised_slots + 10
        assert 0 < waiting.available_slots < 8192
        assert [victim.request_id for victim in waiting.victims] == ["holder"]
        assert [event.event for event in waiting.history] == ["submitted"]
        assert "place 1 of 2" in waiting.summary

        behind = await explain(client, "second")
        assert behind.request.waiting_reason == admin_pb2.WAITING_REASON_BEHIND_OTHERS
        assert (behind.rank, behind.num_waiting) == (2, 2)
        assert 0 < behind.request.deadline_in_ms <= 40_000
        by_reason = (await client.stats()).waiting_by_reason
        assert (by_reason["NO_ROW"], by_reason["BEHIND_OTHERS"]) == (1, 1)
        assert sum(by_reason.values()) == 2

        running = await explain(client, "holder")
        assert running.request.state == admin_pb2.REQUEST_STATE_DECODE
        assert (running.rank, running.request.waiting_reason) == (0, 0)
        assert running.request.output_tokens >= 3
        assert running.request.slots >= 22
        assert [event.event for event in running.history] == ["submitted", "admitted"]
        assert "of at most 7000 tokens" in running.summary
        await cancel(client, "holder")
    await asyncio.gather(*streams)

    done, cut = await explain(client, "first"), await explain(client, "holder")
    assert (done.request.state, done.ending) == (admin_pb2.REQUEST_STATE_ENDED, "LENGTH")
    assert (done.request.output_tokens, done.request.cached_tokens) == (5, 30)
    assert [event.event for event in done.history] == ["submitted", "admitted", "ended"]
    assert cut.ending == "CANCELLED"
    assert cut.request.request_id == "holder"


@pytest.mark.parametrize("request_id", ["never-was", "first-of-nobody"])
async def test_an_unknown_id_is_not_found(client, request_id):
    with refused(grpc.StatusCode.NOT_FOUND, request_id):
        await explain(client, request_id)


async def test_live_requests_are_listed_with_those_that_run_first(client):
    async with taken_row(client, "holder"):
        waiting = [request(ids(9, n), 2, request_id=f"w{n}") for n in range(3)]
        streams = await queue_up(client, *waiting)
        everybody = await listed(client)
        assert [view.request_id for view in everybody.requests] == ["holder", "w0", "w1", "w2"]
        states = [view.state for view in everybody.requests]
        assert states == [admin_pb2.REQUEST_STATE_DECODE, *[admin_pb2.REQUEST_STATE_WAITING] * 3]
        assert everybody.num_left_out == 0
        few = await listed(client, max_requests=2)
        assert [view.request_id for view in few.requests] == ["holder", "w0"]
        assert few.num_left_out == 2
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "max_requests"):
            await listed(client, max_requests=0)
    await asyncio.gather(*streams)
    assert not (await listed(client)).requests


async def test_priority_reaches_the_order_that_looks_at_it(client):
    for order, expected in (("fcfs", [0, 1, 2]), ("priority", [1, 2, 0])):
        await set_policy(client, waiting_order=order)
        ended = []
        async with taken_row(client, f"holder-{order}"):
            waiting = [
                request(ids(8, f"{order}{n}"), 2, request_id=f"{order}-{n}", priority=priority)
                for n, priority in enumerate((-5, 9, 0))
            ]
            streams = await queue_up(client, *waiting)

            notes = [
                asyncio.create_task(note_end(stream, ended, n)) for n, stream in enumerate(streams)
            ]
        await asyncio.gather(*notes)
        assert ended == expected, order
    await set_policy(client, waiting_order="adaptive")


async def note_end(stream, ended, n):
    await stream
    ended.append(n)


async def steps_for(client, seed, workload):
    await client.idle()
    before = (await client.stats()).num_steps
    await cached(client, ids(160, seed), workload=workload)
    return (await client.stats()).num_steps - before


async def test_the_workload_sets_the_chunk(client):
    default = await steps_for(client, "default", "")  # two of them for the prompt, of 128 tokens
    assert await steps_for(client, "tiny", "tiny") - default == 160 // 16 - 2
    assert await steps_for(client, "code", "code") - default == 3 - 2
    assert await steps_for(client, "unknown class", "nobody's") == default
    await set_policy(client, chunk_sizes={"tiny": 40})
    assert await steps_for(client, "tiny again", "tiny") - default == 160 // 40 - 2


async def test_the_commands_say_the_same(client, stack, capsys):
    async def say(*argv):
        code = await asyncio.to_thread(main, [*argv, "--json", "--target", stack.address])
        assert code == 0
        return json.loads(capsys.readouterr().out)

    async with taken_row(client, "holder"):
        streams = await queue_up(client, request(ids(9, "cli"), 2, request_id="asked"))
        explained = await say("explain", "asked")
        assert (explained["rank"], explained["request"]["request_id"]) == (1, "asked")
        named = [view["request_id"] for view in (await say("requests"))["requests"]]
        assert named == ["holder", "asked"]
    await asyncio.gather(*streams)


async def test_a_request_between_others_keeps_its_tokens(client):
    prompt = ids(25, "kept")
    async with taken_row(client, "holder"):
        (stream,) = await queue_up(client, request(prompt, 30, request_id="kept"))
    pieces = await stream
    assert [i for piece in pieces for i in piece.token_ids] == FAKE.generate(prompt, 30)
