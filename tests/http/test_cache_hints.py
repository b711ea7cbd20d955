"""cache_control and prewarm: the ways in which clients of others say what to keep warm."""

import asyncio

import pytest

from protos.radixd.v1 import admin_pb2
from tests.http.ask import CHAT, PLAIN, ok, refused, streamed, user

MARK = {"cache_control": {"type": "ephemeral"}}


async def pins(grpc_client, number):
    """The pins, once there are so many; removes them."""
    async with asyncio.timeout(5):
        while True:
            found = (await grpc_client.admin.ListPins(admin_pb2.ListPinsRequest())).pins
            if len(found) == number:
                break
            await asyncio.sleep(0.02)
    await grpc_client.admin.Unpin(admin_pb2.UnpinRequest(all=True))
    return found


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "first",
    [
        {"role": "system", "content": "the rules of the house", **MARK},
        {"role": "system", "content": [{"type": "text", "text": "the rules of the house", **MARK}]},
    ],
)
async def test_a_mark_pins_the_prompt_up_to_it(http, grpc_client, first, stream):
    body = {"messages": [first, *user("hi")], "max_tokens": 2}
    if stream:
        await streamed(http, CHAT, **body)
    else:
        await ok(http, CHAT, **body)
    (pin,) = await pins(grpc_client, 1)
    assert pin.level == admin_pb2.PIN_LEVEL_SOFT
    assert 290_000 < pin.expires_in_ms <= 300_000
    head = await ok(http, "/tokenize", messages=[first], add_generation_prompt=False)
    assert pin.num_tokens == head["count"]
    assert "the rules" in pin.text


async def test_the_time_to_live_is_the_mark_s(http, grpc_client):
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    turns = [{"role": "system", "content": "long rules", **MARK}, *user("one")]
    turns[1] |= mark
    await ok(http, CHAT, messages=turns, max_tokens=2)
    found = await pins(grpc_client, 2)
    assert sorted(pin.expires_in_ms > 300_000 for pin in found) == [False, True]


async def test_marks_that_are_wrong_are_named(http):
    turns = [{"role": "user", "content": "x", **MARK}] * 5
    error = await refused(http, CHAT, {"messages": turns})
    assert error["param"] == "messages[4].cache_control"
    turns = [{"role": "user", "content": "x", "cache_control": {"type": "for ever"}}]
    error = await refused(http, CHAT, {"messages": turns})
    assert error["param"] == "messages[0].cache_control.type"


async def test_prewarm_computes_and_says_nothing(http, grpc_client):
    body = {"messages": user("to be asked often, and therefore warm")}
    warm = await ok(http, CHAT, **body, prewarm=True)
    num_tokens = warm["usage"]["prompt_tokens"]
    assert warm["choices"][0]["message"]["content"] == ""
    assert warm["usage"]["completion_tokens"] == 0
    assert num_tokens > 0
    again = await ok(http, CHAT, **body, prewarm=True)
    assert (
        again["usage"]["prompt_tokens_details"]["cached_tokens"] == warm["usage"]["prompt_tokens"]
    )
    answer = await ok(http, CHAT, **body, max_tokens=1)
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= num_tokens
    plain = await ok(http, PLAIN, prompt=["warm one", "warm two"], prewarm=True)
    assert [choice["text"] for choice in plain["choices"]] == ["", ""]
    assert plain["usage"]["prompt_tokens"] == 16
    error = await refused(http, PLAIN, {"prompt": "x", "prewarm": True, "stream": True})
    assert error["param"] == "prewarm"
    error = await refused(http, PLAIN, {"prompt": "x" * 3000, "prewarm": True})
    assert error["param"] == "prompt"
    stats = await grpc_client.stats()
    assert stats.tokens.preheated > 0
