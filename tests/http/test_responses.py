"""/v1/responses, as far as it is text."""

import pytest

from tests.http.ask import CHAT, RESPONSES, ok, refused, streamed, user
from tokenizer_svc.http.bodies_chat import ChatBody
from tokenizer_svc.http.bodies_responses import ResponseBody
from tokenizer_svc.http.response_request import response_request
from tokenizer_svc.http.to_request import chat_request

LOGPROBS = ["message.output_text.logprobs"]


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


@pytest.mark.parametrize("num_top", [None, 0, 3])
async def test_log_probabilities_are_those_of_a_chat(http, num_top):
    top = {} if num_top is None else {"top_logprobs": num_top}
    body = {"input": "hi", "max_output_tokens": 9, "include": LOGPROBS, **top}
    answer = await ok(http, RESPONSES, **body)
    chat = await ok(http, CHAT, messages=user("hi"), max_tokens=9, logprobs=True, **top)
    expected = chat["choices"][0]["logprobs"]["content"]
    assert len(expected) == 9
    assert {len(entry["top_logprobs"]) for entry in expected} == {num_top or 0}
    assert answer["output"][0]["content"][0]["logprobs"] == expected
    assert answer["top_logprobs"] == (num_top or 0)
    events = await streamed(http, RESPONSES, **body)
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [entry for event in deltas for entry in event["logprobs"]] == expected
    (done,) = [event for event in events if event["type"] == "response.output_text.done"]
    assert done["logprobs"] == expected


async def test_no_log_probabilities_that_nobody_asked_for(http):
    events = await streamed(http, RESPONSES, input="hi", max_output_tokens=4, include=[])
    assert all(not event.get("logprobs") for event in events)
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == []


async def test_the_temperature_in_force_is_said(http):
    for given, said in ((None, 1.0), (0, 0), (0.7, 0.7)):
        answer = await ok(http, RESPONSES, input="hi", max_output_tokens=2, temperature=given)
        assert answer["temperature"] == said
    drawn = {"input": "dice", "max_output_tokens": 16, "seed": 7}
    absent = (await http.post(RESPONSES, json=drawn)).json()
    assert absent["temperature"] == 1.0
    one = await ok(http, RESPONSES, **drawn, temperature=1)
    greedy = await ok(http, RESPONSES, **drawn)
    texts = [answer["output"][0]["content"][0]["text"] for answer in (absent, one, greedy)]
    assert texts[0] == texts[1] != texts[2]


async def test_fields_that_clients_send_and_that_change_nothing(http):
    body = {"input": "hi", "max_output_tokens": 5}
    plain = await ok(http, RESPONSES, **body)
    sent = {
        "include": ["reasoning.encrypted_content", "web_search_call.results"],
        "store": False,
        "truncation": "disabled",
        "parallel_tool_calls": True,
        "metadata": {"a": "b"},
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "service_tier": "auto",
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "user": "u",
        "reasoning": {"effort": None, "summary": "auto"},
        "tools": [],
        "tool_choice": "auto",
        "max_tool_calls": 3,
    }
    other = await ok(http, RESPONSES, **body, **sent)
    assert other["output"][0]["content"] == plain["output"][0]["content"]
    assert other["metadata"] == {"a": "b"}
    streamed_events = await streamed(
        http, RESPONSES, **body, **sent, stream_options={"include_obfuscation": False}
    )
    assert streamed_events[-1]["response"]["output"][0]["content"] == plain["output"][0]["content"]
    nothing = dict.fromkeys(
        [*sent, "background", "conversation", "instructions", "previous_response_id", "prompt",
         "stream", "stream_options", "temperature", "top_logprobs", "top_p"]
    )  # fmt: skip
    answer = await ok(http, RESPONSES, **body, **nothing | {"temperature": 0})
    assert answer["output"][0]["content"] == plain["output"][0]["content"]


@pytest.mark.parametrize(
    ("effort", "told"),
    [
        (None, ""),
        ("none", '{"enable_thinking":false}'),
        ("high", '{"reasoning_effort":"high"}'),
    ],
)
def test_the_effort_is_for_the_template(effort, told):
    body = ResponseBody.model_validate({"input": "hi", "reasoning": {"effort": effort}})
    assert response_request(body).chat.template_arguments == told
    chat = ChatBody.model_validate({"messages": user("hi"), "reasoning_effort": effort})
    assert chat_request(chat).chat.template_arguments == told


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
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
        ),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"text": {"format": {"type": "text", "schema": {}}}}, "text.format.schema"),
        ({"temperature": -1}, "temperature"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 21, "include": LOGPROBS}, "top_logprobs"),
        ({"top_logprobs": -1, "include": LOGPROBS}, "top_logprobs"),
        ({"include": ["everything"]}, "include[0]"),
        ({"include": "x"}, "include"),
        ({"reasoning": {"effort": "low"}}, "reasoning.effort"),
        ({"reasoning": {"effort": "none"}}, "reasoning.effort"),
        ({"reasoning": {"effort": "furious"}}, "reasoning.effort"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"truncation": "auto"}, "truncation"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": 5}}, "tool_choice"),
        ({"tool_choice": ["auto"]}, "tool_choice"),
        ({"tool_choice": {"type": "file_search", "name": "f"}}, "tool_choice.type"),
        ({"n": 2}, "n"),
    ],
)
async def test_what_is_refused_is_named(http, fields, param):
    error = await refused(http, RESPONSES, {"input": "hi", **fields})
    assert error["param"] == param
