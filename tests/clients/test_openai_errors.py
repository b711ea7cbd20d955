"""Streams that end in an error, as the `openai` package meets them."""

import openai
import pytest

from protos.errors import Unavailable
from tests.clients.openai_clients import connect_async_to


async def test_a_response_that_fails_on_its_way_raises(served):
    served.scheduler.behavior.num_before_hold = 3
    async with connect_async_to(served.url) as client:
        stream = await client.responses.create(model="fake", input="x", stream=True)
        assert (await anext(stream)).type == "response.created"
        served.front.link.fail_all(Unavailable("the end is near"))
        with pytest.raises(openai.APIError) as caught:
            assert [event async for event in stream]
    assert (caught.value.message, caught.value.code) == ("the end is near", "unavailable")


async def test_so_does_a_chat(served):
    served.scheduler.behavior.num_before_hold = 3
    messages = [{"role": "user", "content": "x"}]
    async with connect_async_to(served.url) as client:
        stream = await client.chat.completions.create(model="fake", messages=messages, stream=True)
        assert (await anext(stream)).choices
        served.front.link.fail_all(Unavailable("the end is near"))
        with pytest.raises(openai.APIError) as caught:
            assert [chunk async for chunk in stream]
    assert (caught.value.message, caught.value.code) == ("the end is near", "unavailable")


async def test_a_response_that_fails_before_its_first_event_but_after_a_comment_raises(served):
    served.scheduler.behavior.num_before_hold = 0
    async with connect_async_to(served.url) as client:
        body = {"timeout_ms": 300}
        stream = await client.responses.create(
            model="fake", input="x", stream=True, extra_body=body
        )
        with pytest.raises(openai.APIError) as caught:
            assert not [event async for event in stream]
    assert caught.value.code == "deadline"
