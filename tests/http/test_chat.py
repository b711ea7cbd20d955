"""/v1/chat/completions: what OpenAI's clients read, whole and streamed alike."""

from urllib.parse import quote

import pytest

from tests.http.ask import CHAT, PLAIN, choices_of, joined, ok, refused, streamed, user
from tokenizer_svc.http.bodies_chat import ChatBody


async def test_a_whole_answer(http):
    answer = await ok(http, CHAT, model="fake", messages=user("hi"), max_tokens=12, seed=7)
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == "fake"
    assert answer["seed"] == 7
    (choice,) = answer["choices"]
    assert choice["index"] == 0
    assert choice["finish_reason"] == "length"
    assert choice["message"]["role"] == "assistant"
    assert len(choice["message"]["content"]) > 0
    usage = answer["usage"]
    assert usage["completion_tokens"] == 12
    assert usage["total_tokens"] == usage["prompt_tokens"] + 12
    assert usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 3, "temperature": 1.0},
        {"stop": "a"},
        {"stop": ["e", "zzz"]},
        {"stream_interval": 8},
        {"logprobs": True, "top_logprobs": 2},
        {"min_tokens": 5, "ignore_eos": True},
        {"logit_bias": {"97": 100}},
    ],
)
async def test_a_stream_says_what_the_whole_answer_says(http, fields):  # field case 147
    body = {"messages": user("tell me"), "max_tokens": 40, "seed": 5, **fields}
    answer = await ok(http, CHAT, **body)
    events = await streamed(http, CHAT, **body, stream_options={"include_usage": True})
    *chunks, last = events
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == answer["usage"]["completion_tokens"]
    assert all(chunk["usage"] is None for chunk in chunks)
    assert {chunk["object"] for chunk in events} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in events}) == 1
    for choice in answer["choices"]:
        text, end = joined(chunks, choice["index"])
        assert text == choice["message"]["content"]
        assert end["finish_reason"] == choice["finish_reason"]
        assert end["stop_reason"] == choice["stop_reason"]
        mine = [c for c in choices_of(chunks) if c["index"] == choice["index"]]
        assert mine[0]["delta"]["role"] == "assistant"
        if "logprobs" in fields:
            entries = [entry for c in mine for entry in c["logprobs"]["content"]]
            assert entries == choice["logprobs"]["content"]
            assert len(entries) == 40
            assert {len(entry["top_logprobs"]) for entry in entries} == {2}


async def test_no_usage_in_a_stream_that_does_not_ask_for_it(http):
    events = await streamed(http, CHAT, messages=user("hi"), max_tokens=3)
    assert all("usage" not in event for event in events)


async def test_a_stop_text_is_reported(http):
    body = {"messages": user("tell me"), "max_tokens": 40}
    text = (await ok(http, CHAT, **body))["choices"][0]["message"]["content"]
    stop = text[5:8]
    (choice,) = (await ok(http, CHAT, **body, stop=[stop]))["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == stop
    assert choice["message"]["content"] == text[: text.index(stop)]


async def test_the_same_seed_gives_the_same_text_and_is_returned(http):
    body = {"messages": user("dice"), "max_tokens": 16, "temperature": 1.0}
    first = await ok(http, CHAT, **body)
    again = await ok(http, CHAT, **body, seed=first["seed"])
    other = await ok(http, CHAT, **body)
    assert again["choices"] == first["choices"]
    assert other["choices"] != first["choices"]
    assert first["seed"] < 1 << 53, "clients keep numbers in 53 bits"


@pytest.mark.parametrize("path", [CHAT, PLAIN])
async def test_several_answers_differ_where_no_temperature_is_given(http, path):
    prompt = {"messages": user("dice")} if path == CHAT else {"prompt": "dice"}
    body = prompt | {"max_tokens": 16, "ignore_eos": True, "seed": 7, "n": 4}
    drawn = await ok(http, path, **body, temperature=1.0)
    assert len({str(choice | {"index": 0}) for choice in drawn["choices"]}) == 4
    absent = await http.post(path, json=body)
    assert absent.json()["choices"] == drawn["choices"]
    assert (await ok(http, path, **body, temperature=None))["choices"] == drawn["choices"]
    greedy = await ok(http, path, **body)
    assert len({str(choice | {"index": 0}) for choice in greedy["choices"]}) == 1


async def test_forms_of_one_prompt(http):
    def asked(*messages):
        return ok(http, CHAT, messages=list(messages), max_tokens=5)

    plain = await asked(
        {"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}
    )
    parts = [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]
    for role, content in (("developer", "be brief"), ("system", parts)):
        other = await asked({"role": role, "content": content}, {"role": "user", "content": "hi"})
        assert other["choices"] == plain["choices"]
        assert other["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]


async def test_a_reply_may_be_sent_back_as_it_came(http):
    first = await ok(http, CHAT, messages=user("hi"), max_tokens=5)
    message = first["choices"][0]["message"]
    # As the `openai` package writes it with all the fields it knows.
    message |= dict.fromkeys(("annotations", "audio", "function_call", "tool_calls", "later"))
    turns = [*user("hi"), message, *user("and now?")]
    second = await ok(http, CHAT, messages=turns, max_tokens=5)
    assert second["usage"]["prompt_tokens"] > first["usage"]["prompt_tokens"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


async def test_fields_without_meaning_change_nothing(http):
    body = {"messages": user("hi"), "max_tokens": 5}
    plain = await ok(http, CHAT, **body)
    other = await ok(
        http,
        CHAT,
        **body,
        user="me",
        metadata={"a": "b"},
        store=False,
        service_tier="auto",
        safety_identifier="x",
        prompt_cache_key="y",
        top_p=None,
        tools=None,
    )
    assert other["choices"] == plain["choices"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
        ),
        ({"messages": [{"role": "user", "content": "x", "mood": "good"}]}, "messages[0].mood"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": 101}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"seed": -1}, "seed"),
        ({"seed": 1 << 63}, "seed"),
        ({"stop": [""]}, "stop[0]"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": [5]}, "stop[0]"),
        ({"logit_bias": {"abc": 1}}, "logit_bias.abc"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"priority": 1 << 40}, "priority"),
        ({"priority": 101}, "priority"),
        ({"timeout_ms": 0}, "timeout_ms"),
        ({"timeout_ms": -1}, "timeout_ms"),
        ({"request_id": ""}, "request_id"),
        ({"store": True}, "store"),
        ({"store": 0}, "store"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"tool_choice": "perhaps"}, "tool_choice"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"regex": "a", "ebnf": 'root ::= "a"'}, "ebnf"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        ({"functions": []}, "functions"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {}}, "reasoning_effort"),
        ({"verbosity": "high"}, "verbosity"),
        (
            {"response_format": {"type": "text", "json_schema": {"schema": {}}}},
            "response_format.json_schema",
        ),
        (
            {"tool_choice": {"type": "function", "function": {"name": ""}, "mode": "none"}},
            "tool_choice",
        ),
        ({"tool_choice": ["auto"]}, "tool_choice"),
        ({"tool_choice": {}}, "tool_choice.function"),
        ({"audio": {"voice": "alloy"}}, "audio"),
        ({"banana": 1}, "banana"),
    ],
)
async def test_what_is_refused_is_named(http, fields, param):  # field cases 80 to 91
    error = await refused(http, CHAT, {"messages": user("hi"), **fields})
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert param.partition("[")[0] in error["message"]


async def test_what_is_null_is_absent(http):
    names = {*ChatBody.model_fields, "audio", "functions", "no_such_field"}
    names -= {"messages", "max_tokens"}
    body = {"messages": user("hi"), "max_tokens": 3}
    plain = await ok(http, CHAT, **body)
    nothing = await ok(http, CHAT, **dict.fromkeys(names) | {"temperature": 0}, **body)
    assert nothing["choices"] == plain["choices"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("request_id", ["a b", "čaj", "漢字 🙂", "100%"])
async def test_any_id_may_be_in_a_header(http, request_id, stream):
    body = {"messages": user("hi"), "max_tokens": 2, "request_id": request_id, "stream": stream}
    answer = await http.post(CHAT, json=body)
    assert answer.status_code == 200, answer.text
    said = answer.headers["x-request-id"]
    assert said == (request_id if request_id.isascii() else quote(request_id))
    assert f'"chatcmpl-{request_id}"' in answer.text


async def test_another_model_is_not_found(http):
    body = {"model": "gpt-9", "messages": user("hi")}
    error = await refused(http, CHAT, body, status=404)
    assert error["param"] == "model"
    assert error["code"] == "model_not_found"


async def test_an_id_is_live_once(http):  # field case 59
    body = {"messages": user("long"), "max_tokens": 1000, "ignore_eos": True, "request_id": "x"}
    async with http.stream("POST", CHAT, json=body | {"stream": True}) as answer:
        assert answer.headers["x-request-id"] == "x"
        error = await refused(http, CHAT, body, status=409)
        assert error["code"] == "duplicate_request_id"
        assert await ok(http, "/cancel", request_id="x") == {}
        lines = [line async for line in answer.aiter_lines()]
    assert '"finish_reason":"length"' in lines[-4]
    assert '"finish_message":"it was cancelled"' in lines[-4]
    error = await refused(http, "/cancel", {"request_id": "x"}, status=404)
    assert error["code"] == "unknown_request_id"
    await ok(http, CHAT, **body | {"max_tokens": 2})
