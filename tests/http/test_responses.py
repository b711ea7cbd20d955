"""/v1/responses, as far as it is text."""

import pytest

from tests.http.ask import CHAT, RESPONSES, ok, refused, streamed, user


async def test_a_whole_response(http):
    answer = await ok(http, RESPONSES, model="fake", input="hi", max_output_tokens=9)
    chat = await ok(http, CHAT, messages=user("hi"), max_tokens=9)
    assert answer["object"] == "response"
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    (message,) = answer["output"]
    (part,) = message["content"]
    assert part["type"] == "output_text"
    assert part["text"] == chat["choices"][0]["message"]["content"]
    assert answer["usage"]["output_tokens"] == 9
    assert answer["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
    assert answer["store"] is False


async def test_a_stream_of_named_events(http):
    body = {"input": "hi", "max_output_tokens": 20, "request_id": "r"}
    answer = await ok(http, RESPONSES, **body)
    events = await streamed(http, RESPONSES, **body)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    names = [event["type"] for event in events]
    assert names[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert names[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == answer["output"][0]["content"][0]["text"]
    assert events[-1]["response"]["output"] == answer["output"]


async def test_instructions_and_items_make_a_conversation(http):
    answer = await ok(
        http,
        RESPONSES,
        instructions="be brief",
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "message", "role": "assistant", "content": "yes?"},
            {"role": "user", "content": "go"},
        ],
        max_output_tokens=5,
    )
    chat = await ok(
        http,
        CHAT,
        messages=[
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "yes?"},
            {"role": "user", "content": "go"},
        ],
        max_tokens=5,
    )
    text = answer["output"][0]["content"][0]["text"]
    assert text == chat["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"background": 0}, "background"),
        ({"input": []}, "input"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
         "input[0].content[0].type"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"temperature": -1}, "temperature"),
        ({"n": 2}, "n"),
    ],
)  # fmt: skip
async def test_what_is_refused_is_named(http, fields, param):
    error = await refused(http, RESPONSES, {"input": "hi", **fields})
    assert error["param"] == param
