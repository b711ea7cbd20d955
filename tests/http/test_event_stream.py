"""Events go straight to a connection whose client reads; order holds where it does not."""

import asyncio
from typing import Any

from starlette.types import Message

from tokenizer_svc.http.sse import EventStream
from tokenizer_svc.sink import Sink


class Connection:
    """What the stream sees of one: `send`, and the way past it."""

    def __init__(self, *, offers: bool = True) -> None:
        self.body = b""
        self.direct: list[bytes] = []
        self.is_open = False
        self.may_write = asyncio.Event()
        self.may_write.set()
        extensions = {"radixd.direct_write": self._write} if offers else {}
        self.scope: dict[str, Any] = {"type": "http", "extensions": extensions}

    def _write(self, data: bytes) -> bool:
        if not self.is_open or not self.may_write.is_set():
            return False
        self.direct.append(data)
        self.body += data
        return True

    async def send(self, message: Message) -> None:
        await self.may_write.wait()
        self.is_open = True
        self.body += message.get("body", b"")

    async def receive(self) -> Message:
        await asyncio.Event().wait()
        raise AssertionError


async def serve(connection: Connection, tell: Any, *, keep_alive_s: float = 60.0) -> None:
    stream = EventStream(tell, keep_alive_s=keep_alive_s, headers={})
    await stream(connection.scope, connection.receive, connection.send)


async def test_events_after_the_first_pass_the_steps_of_asgi_by():
    connection = Connection()

    async def tell(events: Sink[bytes]) -> None:
        assert not events.put(b"1")  # headers go first, which takes the stream's own task
        await events.ready()
        for data in (b"2", b"3"):
            assert events.put(data)
            assert connection.body.endswith(data)

    await serve(connection, tell)
    assert (connection.body, connection.direct) == (b"123", [b"2", b"3"])


async def test_nothing_is_no_chunk():
    """One without bytes ends a reply."""
    connection = Connection()

    async def tell(events: Sink[bytes]) -> None:
        events.put(b"1")
        await events.ready()
        assert events.put(b"")
        assert events.put(b"2")

    await serve(connection, tell)
    assert (connection.body, connection.direct) == (b"12", [b"2"])


async def test_what_waits_is_not_lost_with_who_waits():
    """Of several prompts one waits for all."""
    connection = Connection()

    async def tell(events: Sink[bytes]) -> None:
        events.put(b"1")
        await events.ready()
        connection.may_write.clear()
        events.put(b"2")
        waiting = asyncio.create_task(events.ready())
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.wait([waiting])
        events.put(b"3")
        connection.may_write.set()

    await serve(connection, tell)
    assert connection.body == b"123"


async def test_without_a_way_past_it_all_goes_through_asgi():
    connection = Connection(offers=False)

    async def tell(events: Sink[bytes]) -> None:
        for data in (b"1", b"2"):
            events.put(data)
            await events.ready()

    await serve(connection, tell)
    assert connection.body == b"12"


async def test_a_client_that_stops_reading_holds_back_the_source_and_loses_no_order():
    connection = Connection()

    async def tell(events: Sink[bytes]) -> None:
        events.put(b"1")
        await events.ready()
        connection.may_write.clear()
        assert not events.put(b"2")
        assert not events.is_ready
        waiting = asyncio.create_task(events.ready())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        connection.may_write.set()
        await waiting
        assert events.is_ready
        assert events.put(b"3")

    await serve(connection, tell)
    assert connection.body == b"123"


async def test_comments_of_a_silent_stream_do_not_stay_in_the_way():
    connection = Connection()

    async def tell(events: Sink[bytes]) -> None:
        await asyncio.sleep(0.05)
        assert connection.body.startswith(b": keep-alive\n\n")
        assert events.is_ready
        assert events.put(b"1")

    await serve(connection, tell, keep_alive_s=0.02)
    assert connection.body.endswith(b"1")
