"""Streams and replies when something is the matter, before a scheduler that does as it is told."""

import asyncio
import json
from array import array

import pytest

from protos.errors import Unavailable
from protos.radixd.scheduler.v1 import scheduler_pb2 as internal
from protos.wire import pack_ids
from tests.http.ask import CHAT, PLAIN, RESPONSES, error_of, joined, ok, refused, streamed, user
from tests.tokenizer_svc.client import wait_until

STREAM = {"prompt": "x", "max_tokens": 50, "stream": True}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Brno"}}\n</tool_call>'
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}


def answering(text):
    """A scheduler's answer that is this text, complete."""
    ids = pack_ids(array("I", list(text.encode())))
    return lambda submit: internal.Output(token_ids=ids, ending=internal.ENDING_STOP)


async def lines_of(served, path=PLAIN, body=STREAM, *, after_first=lambda: None):
    """The lines of a stream; does something after the first of them."""
    found = []
    async with served.http.stream("POST", path, json=body) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if line and not found:
                after_first()
            if line:
                found.append(line)
    return found


async def test_an_error_after_the_first_event_ends_the_stream(served):
    served.scheduler.behavior.num_before_hold = 3

    def fail():
        served.front.link.fail_all(Unavailable("the end is near"))

    lines = await lines_of(served, after_first=fail)
    error = json.loads(lines[-1].removeprefix("data: "))["error"]
    assert error["message"] == "the end is near"
    assert error["code"] == "unavailable"
    assert "data: [DONE]" not in lines


async def test_an_error_of_a_response_is_an_event_and_a_failed_response(served):
    served.scheduler.behavior.num_before_hold = 3
    body = {"input": "x", "stream": True}

    def fail():
        served.front.link.fail_all(Unavailable("the end is near"))

    lines = await lines_of(served, RESPONSES, body, after_first=fail)
    assert [lines[-4], lines[-2]] == ["event: error", "event: response.failed"]
    *_, last_delta, error, failed = [
        json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")
    ]
    number = last_delta["sequence_number"]
    assert error.pop("error")["type"] == "server_error"
    assert error == {
        "type": "error",
        "code": "unavailable",
        "message": "the end is near",
        "param": None,
        "sequence_number": number + 1,
    }
    assert (failed["type"], failed["sequence_number"]) == ("response.failed", number + 2)
    response = failed["response"]
    assert (response["status"], response["output"]) == ("failed", [])
    assert response["error"] == {"code": "server_error", "message": "the end is near"}


async def test_an_error_before_a_response_has_begun_is_one_event(served):
    served.scheduler.behavior.num_before_hold = 0
    body = {"input": "x", "stream": True, "timeout_ms": 300}
    lines = [line for line in await lines_of(served, RESPONSES, body) if line[0] != ":"]
    assert lines[0] == "event: error"
    error = json.loads(lines[1].removeprefix("data: "))
    assert (error["type"], error["code"], error["sequence_number"]) == ("error", "deadline", 0)
    assert len(lines) == 2


async def test_comments_while_nothing_comes(served):
    served.scheduler.behavior.num_before_hold = 0
    go_on = asyncio.get_running_loop().call_later

    def release():
        served.scheduler.behavior.num_before_hold = None

    go_on(0.55, release)
    lines = await lines_of(served)
    assert lines[0] == ": keep-alive"
    assert 4 <= lines.count(": keep-alive") <= 6
    assert lines[-1] == "data: [DONE]"


async def test_an_error_after_a_comment_is_an_event(served):
    served.scheduler.behavior.num_before_hold = 0
    lines = await lines_of(served, body=STREAM | {"timeout_ms": 300})
    assert lines[0] == ": keep-alive"
    assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "deadline"


async def test_a_deadline_before_the_first_token_is_a_status(served):
    served.scheduler.behavior.num_before_hold = 0
    error = await refused(served.http, PLAIN, {"prompt": "x", "timeout_ms": 50}, status=408)
    assert error["type"] == "timeout_error"


async def test_a_full_front_says_when_to_come_again(served):
    served.scheduler.behavior.num_before_hold = 1
    calls = [asyncio.create_task(served.http.post(PLAIN, json={"prompt": "x"})) for _ in range(4)]
    await wait_until(lambda: len(served.front.live) == 4)
    answer = await served.http.post(PLAIN, json={"prompt": "y"})
    assert error_of(answer, 429)["type"] == "rate_limit_error"
    assert answer.headers["retry-after"] == "1"
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await wait_until(lambda: len(served.front.live) == 0)


async def test_who_leaves_is_noticed_at_once_and_counted(served):
    served.scheduler.behavior.num_before_hold = 1
    call = asyncio.create_task(served.http.post(PLAIN, json={"prompt": "x"}))
    await wait_until(lambda: len(served.scheduler.seen.submits) == 1)
    call.cancel()
    await wait_until(lambda: len(served.scheduler.seen.cancels) == 1)
    metrics = (await served.http.get("/metrics")).text
    assert "radixd_front_http_clients_gone_total 1.0" in metrics
    assert f'radixd_front_http_requests_total{{path="{PLAIN}",status="0"}} 1.0' in metrics


async def test_not_ready_without_a_worker(served):
    served.scheduler.set_worker(connected=False)
    await wait_until(lambda: not served.front.is_serving)
    answer = await served.http.get("/ready")
    assert error_of(answer, 503)["type"] == "server_error"
    assert answer.headers["retry-after"] == "1"
    assert (await served.http.get("/health")).status_code == 200
    assert "radixd_front_serving 0.0" in (await served.http.get("/metrics")).text
    served.scheduler.set_worker(connected=True)
    await wait_until(lambda: served.front.is_serving)


async def test_metrics_while_the_scheduler_is_away(served):
    await served.scheduler.stop()
    await wait_until(lambda: not served.front.is_serving)
    text = (await served.http.get("/metrics")).text
    assert "radixd_front_requests_live 0.0" in text
    assert "radixd_front_requests_running" not in text


async def test_thoughts_and_calls_come_apart_from_the_text(served):
    said = f"<think>Where is it?</think>Let me look.\n{CALL}{CALL}"
    served.scheduler.behavior.answer = answering(said)
    body = {"messages": user("weather?"), "tools": [TOOL]}
    (choice,) = (await ok(served.http, CHAT, **body))["choices"]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert message["reasoning_content"] == "Where is it?"
    assert message["content"].strip() == "Let me look."
    first, second = message["tool_calls"]
    assert first["function"]["name"] == "weather"
    assert json.loads(first["function"]["arguments"]) == {"city": "Brno"}
    assert first["id"] != second["id"]
    events = await streamed(served.http, CHAT, **body)
    text, end = joined(events)
    assert text == message["content"]
    assert end["finish_reason"] == "tool_calls"
    deltas = [event["choices"][0]["delta"] for event in events]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert [call["index"] for call in calls] == [0, 1]
    assert [call["function"] for call in calls] == [first["function"], second["function"]]
    thoughts = "".join([delta.get("reasoning_content", "") for delta in deltas])
    assert thoughts == "Where is it?"


async def test_tokens_of_thoughts_are_counted(served):
    thoughts = "<think>Where is it?</think>"
    served.scheduler.behavior.answer = answering(f"{thoughts}\nLet me look.")
    chat = {"messages": user("weather?")}
    whole = (await ok(served.http, CHAT, **chat))["usage"]
    assert whole["completion_tokens_details"] == {"reasoning_tokens": len(thoughts)}
    options = {"stream_options": {"include_usage": True}}
    assert (await streamed(served.http, CHAT, **chat, **options))[-1]["usage"] == whole
    usage = (await ok(served.http, RESPONSES, input="weather?"))["usage"]
    assert usage["output_tokens_details"] == {"reasoning_tokens": len(thoughts)}
    plain = await ok(served.http, PLAIN, prompt="weather?")
    assert plain["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


async def test_one_call_where_only_one_may_be(served):
    served.scheduler.behavior.answer = answering(f"{CALL}{CALL}")
    body = {"messages": user("weather?"), "tools": [TOOL], "parallel_tool_calls": False}
    (choice,) = (await ok(served.http, CHAT, **body))["choices"]
    assert len(choice["message"]["tool_calls"]) == 1
    assert choice["message"]["content"] is None
    events = await streamed(served.http, CHAT, **body)
    calls = [call for e in events for call in e["choices"][0]["delta"].get("tool_calls", ())]
    assert len(calls) == 1


async def test_a_call_that_is_left_out_does_not_end_the_stream(served):
    def part(submit, text, ending=0):
        ids = pack_ids(array("I", list(text.encode())))
        return internal.Output(request_id=submit.request_id, token_ids=ids, ending=ending)

    def say(submit, *args):
        output = part(submit, *args)
        served.scheduler.send(internal.AttachResponse(outputs={"outputs": [output]}))

    def first(submit):
        later = asyncio.get_running_loop().call_later
        later(0.2, say, submit, CALL)
        later(0.4, say, submit, "That is all.", internal.ENDING_STOP)
        return part(submit, CALL)

    served.scheduler.behavior.answer = first
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
    body = {"input": "weather?", "tools": [tool], "parallel_tool_calls": False}
    events = await streamed(served.http, RESPONSES, **body)
    kinds = [item["type"] for item in events[-1]["response"]["output"]]
    assert kinds == ["function_call", "message"]


async def test_thoughts_stay_in_the_text_where_that_is_asked_for(served):
    served.scheduler.behavior.answer = answering("<think>a</think>b")
    body = {"messages": user("x"), "separate_reasoning": False}
    (choice,) = (await ok(served.http, CHAT, **body))["choices"]
    assert choice["message"]["content"] == "<think>a</think>b"
    assert "reasoning_content" not in choice["message"]


async def test_a_response_with_thoughts_and_a_call(served):
    served.scheduler.behavior.answer = answering(f"<think>Where?</think>Look.\n{CALL}")
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
    body = {"input": "weather?", "tools": [tool]}
    answer = await ok(served.http, RESPONSES, **body)
    kinds = [item["type"] for item in answer["output"]]
    assert kinds == ["reasoning", "message", "function_call"]
    assert answer["status"] == "completed"
    call = answer["output"][2]
    assert call["name"] == "weather"
    events = await streamed(served.http, RESPONSES, **body)
    assert [item["type"] for item in events[-1]["response"]["output"]] == kinds
    names = [event["type"] for event in events]
    assert "response.function_call_arguments.done" in names
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    back = [{"role": "user", "content": "weather?"}, *answer["output"], output]
    served.scheduler.behavior.answer = answering("It is sunny.")
    answer = await ok(served.http, RESPONSES, input=back, tools=[tool])
    assert answer["output"][0]["content"][0]["text"] == "It is sunny."


async def test_items_of_one_turn_are_one_turn_of_the_prompt(served):
    served.scheduler.behavior.answer = answering("ok")
    thought = {"type": "reasoning", "id": "rs_1", "summary": [],
               "content": [{"type": "reasoning_text", "text": "Where?"}]}  # fmt: skip
    said = {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
            "content": [{"type": "output_text", "text": "Look.", "annotations": []}]}  # fmt: skip

    def called(number):
        return {"type": "function_call", "call_id": f"c{number}", "name": "w", "arguments": "{}"}

    def told(number):
        parts = [{"type": "input_text", "text": "sun"}, {"type": "input_text", "text": "ny"}]
        return {"type": "function_call_output", "call_id": f"c{number}", "output": parts}

    def calls(*numbers):
        function = {"name": "w", "arguments": "{}"}
        return [{"id": f"c{n}", "type": "function", "function": function} for n in numbers]

    def results(*numbers):
        return [{"role": "tool", "tool_call_id": f"c{n}", "content": "sunny"} for n in numbers]

    items = [thought, said, called(0), called(1), told(0), told(1), called(2), told(2), said, said]
    turns = [
        {"role": "assistant", "reasoning_content": "Where?", "content": "Look.",
         "tool_calls": calls(0, 1)},
        *results(0, 1),
        {"role": "assistant", "content": None, "tool_calls": calls(2)},
        *results(2),
        *[{"role": "assistant", "content": "Look."}] * 2,
    ]  # fmt: skip
    await ok(served.http, RESPONSES, input=[*user("weather?"), *items, *user("and now?")])
    await ok(served.http, CHAT, messages=[*user("weather?"), *turns, *user("and now?")])
    first, second = served.scheduler.seen.submits
    assert first.prompt_ids == second.prompt_ids


async def test_a_conversation_with_the_answer_of_a_tool(served):
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    turns = [
        *user("weather?"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "name": "weather", "content": "sunny"},
    ]
    served.scheduler.behavior.answer = answering("It is sunny.")
    answer = await ok(served.http, CHAT, messages=turns, tools=[TOOL])
    assert answer["choices"][0]["message"]["content"] == "It is sunny."


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {
                "tools": [TOOL],
                "tool_choice": {"type": "function", "function": {"name": "other"}},
            },
            "tool_choice.function.name",
        ),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"mood": 1}}, "chat_template_kwargs"),
    ],
)
async def test_what_is_refused_of_tools_is_named(served, fields, param):
    error = await refused(served.http, CHAT, {"messages": user("x"), **fields})
    assert error["param"] == param
