"""What is long to say is said aside: in order, and with nothing else said meanwhile."""

import asyncio

import pytest

from tokenizer_svc.said_aside import SaidAside
from tokenizer_svc.sink import Collected


async def test_order_holds_and_nothing_is_taken_meanwhile():
    told: Collected[str] = Collected()
    go_on = asyncio.Event()

    async def aside(work):
        await go_on.wait()
        return work()

    sink = SaidAside(
        str, told, is_long=lambda value: value > 9, aside=aside, say_long=lambda value: f"<{value}>"
    )
    assert sink.put(1)
    assert not sink.put(10)
    assert not sink.is_ready
    # Several may wait: choices of one request, prompts of another.
    waiting = [asyncio.create_task(sink.ready()) for _ in range(2)]
    await asyncio.sleep(0.01)
    assert told.values == ["1"]
    go_on.set()
    await asyncio.gather(*waiting)
    assert sink.is_ready
    assert sink.put(2)
    assert told.values == ["1", "<10>", "2"]


async def test_a_fault_reaches_who_waits():
    async def aside(work):
        return work()

    def fail(value: int) -> str:
        raise ZeroDivisionError

    told: Collected[str] = Collected()
    sink = SaidAside(fail, told, is_long=bool, aside=aside)
    sink.put(1)
    with pytest.raises(ZeroDivisionError):
        await sink.ready()
