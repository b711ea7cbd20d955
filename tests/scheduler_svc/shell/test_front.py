"""A front's outbox: order, coalescing, the limit."""

import asyncio
from array import array

from scheduler_svc.core.messages import Output
from scheduler_svc.front import MAX_OUTPUTS_PER_MESSAGE, MAX_PENDING_OUTPUTS, Front
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
