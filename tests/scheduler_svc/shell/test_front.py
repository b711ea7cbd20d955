"""A front's outbox: order, coalescing, the limit."""

import asyncio
from array import array

from protos.plan import LogprobColumns
from radixd.chassis.grpc_server import MAX_MESSAGE_BYTES
from scheduler_svc.core.messages import Output
from scheduler_svc.front import (
    MAX_OUTPUTS_PER_MESSAGE,
    MAX_PENDING_OUTPUTS,
    MAX_PENDING_SCORE_BYTES,
    MAX_SCORE_BYTES_PER_MESSAGE,
    Front,
)
from tests.scheduler_svc.shell.scripted import a_hello


def outputs(*numbers: int) -> list[Output]:
    return [Output(request_id=str(number), token_ids=array("i", [number])) for number in numbers]


async def test_the_first_news_is_who_computes():
    front = Front(1, None)
    front.tell_outputs(outputs(1))
    assert not (await front.next_message()).worker_state.connected
    assert (await front.next_message()).outputs.outputs[0].request_id == "1"


async def test_what_piles_up_goes_out_as_one_message_in_order():
    front = Front(1, a_hello())
    for number in range(5):
        front.tell_outputs(outputs(number, number + 100))
    await front.next_message()
    message = await front.next_message()
    ids = [output.request_id for output in message.outputs.outputs]
    assert ids == ["0", "100", "1", "101", "2", "102", "3", "103", "4", "104"]


async def test_a_message_is_bounded():
    front = Front(1, None)
    front.tell_outputs(outputs(*range(MAX_OUTPUTS_PER_MESSAGE + 1)))
    await front.next_message()
    assert len((await front.next_message()).outputs.outputs) == MAX_OUTPUTS_PER_MESSAGE
    assert len((await front.next_message()).outputs.outputs) == 1


def scores(num_tokens: int, num_top: int = 20) -> Output:
    columns = LogprobColumns(
        chosen=array("f", [-1.0]) * num_tokens,
        top_ids=array("i", [1]) * num_tokens * num_top,
        top_logprobs=array("f", [-1.0]) * num_tokens * num_top,
    )
    return Output(request_id="s", token_ids=array("i"), prompt_logprobs=columns)


async def test_scores_that_pile_up_go_out_in_messages_that_a_front_takes():
    """As many as a step scores, with all alternatives there may be, for a thousand steps."""
    front, one = Front(1, None), scores(256)
    for number in range(1000):
        front.tell_outputs([one, *outputs(number)])
    await front.next_message()
    found, sizes = [], []
    while len(found) < 2000:
        message = await front.next_message()
        found += [output.request_id for output in message.outputs.outputs]
        sizes.append(message.ByteSize())
    assert found == [name for number in range(1000) for name in ("s", str(number))]
    assert 2 < len(sizes) < 10
    assert max(sizes) < MAX_MESSAGE_BYTES / 2
    assert min(sizes[:-1]) > MAX_SCORE_BYTES_PER_MESSAGE
    front.tell_outputs(outputs(*range(MAX_OUTPUTS_PER_MESSAGE)))
    assert len((await front.next_message()).outputs.outputs) == MAX_OUTPUTS_PER_MESSAGE


async def test_a_front_that_does_not_read_scores_is_too_slow():
    front, one = Front(1, None), scores(256)
    size = 4 * len(one.prompt_logprobs.chosen) * 41
    for _ in range(MAX_PENDING_SCORE_BYTES // size):
        front.tell_outputs([one])
    assert not front.is_too_slow
    front.tell_outputs([one])
    assert front.is_too_slow


async def test_only_the_latest_worker_is_told():
    front = Front(1, None)
    front.tell_worker(a_hello())
    front.tell_worker(None)
    front.tell_worker(a_hello(model_id="second"))
    assert (await front.next_message()).worker_state.model.model_id == "second"
    waiting = asyncio.create_task(front.next_message())
    await asyncio.sleep(0)
    assert not waiting.done()
    front.tell_worker(None)
    assert not (await waiting).worker_state.connected


async def test_a_front_that_does_not_read_is_too_slow_and_keeps_nothing():
    front = Front(1, None)
    chunk = outputs(*range(10_000))
    for _ in range(MAX_PENDING_OUTPUTS // len(chunk)):
        front.tell_outputs(chunk)
    assert not front.is_too_slow
    front.tell_outputs(chunk)
    assert front.is_too_slow
    assert front.over.is_set()
    front.tell_outputs(chunk)
    assert front._outputs == []
