"""Conversations with tools and thoughts through a whole front, streamed and in one reply."""

from array import array
from collections.abc import Sequence
from typing import Any

import pytest

from protos.new_row_wire import unpack_biases
from protos.radixd.v1 import inference_pb2 as pb
from protos.wire import unpack_ids
from tests.tokenizer_svc.client import refused, stream, unary
from tests.tokenizer_svc.conftest import Serve, Served
from tests.tokenizer_svc.fake_scheduler import Behavior
from tests.tokenizer_svc.test_chat_and_bos import bytes_of_a_model
from tokenizer_svc.chat.asked import parser_rules
from tokenizer_svc.tokenizers.byte_tokenizer import EOS, GO, SCRIPT, ByteTokenizer
from tokenizer_svc.tokenizers.tokenizer import ChatTurn, FunctionTool
from tokenizer_svc.validation import read_request

TOOL = pb.FunctionTool(
    name="get_weather",
    description="Weather of a city",
    parameters='{"type": "object", "properties": {"city": {"type": "string"}}}',
)
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TWO_CALLS = f"<think>\nHm.\n</think>\n\nLet me see.\n{CALL}\n{CALL}"
NONE = pb.ToolChoice(mode=pb.ToolChoice.MODE_NONE)
REQUIRED = pb.ToolChoice(mode=pb.ToolChoice.MODE_REQUIRED)


class Scripted(ByteTokenizer):
    """Its conversations end with the answer that the fake scheduler's model is to give."""

    def __init__(self, answer: str) -> None:
        self.answer = answer
        self.tools: Sequence[FunctionTool] = ()

    def encode_chat(
        self, turns: Sequence[ChatTurn], *, tools: Sequence[FunctionTool] = (), **options: Any
    ) -> list[int]:
        self.tools = tools
        ids = super().encode_chat(turns, tools=tools, **options)
        return [*ids, SCRIPT, *self.answer.encode(), GO]


def chat(**fields: Any) -> pb.ChatPrompt:
    question = pb.ChatMessage(role=pb.ROLE_USER, content="Weather in Oslo?")
    return pb.ChatPrompt(messages=[question], **fields)


def told(messages: Sequence[Any]) -> tuple[str, str, list[tuple[str, str, str]]]:
    """Text, thoughts and calls of some messages, joined."""
    calls = [(c.id, c.name, c.arguments) for message in messages for c in message.tool_calls]
    return (
        "".join(message.text for message in messages),
        "".join(message.reasoning_text for message in messages),
        calls,
    )


@pytest.mark.parametrize("tokens_per_step", [1, 7, 1000])
async def test_calls_and_thoughts_streamed_and_whole(serve: Serve, tokens_per_step: int):
    served = await serve(tokenizer=Scripted(TWO_CALLS))
    served.scheduler.behavior = Behavior(tokens_per_step=tokens_per_step)
    asked = {"request_id": "r", "chat": chat(tools=[TOOL], separate_reasoning=True)}
    asked["sampling"] = pb.SamplingParams(seed=5)
    streamed = await stream(served, **asked)
    await served.idle()
    whole = await unary(served, **asked)
    assert told(streamed.messages) == told([whole])
    text, reasoning, calls = told([whole])
    assert (text, reasoning) == ("Let me see.", "Hm.")
    assert [call[1:] for call in calls] == [("get_weather", '{"city": "Oslo"}')] * 2
    assert calls[0][0] != calls[1][0]
    assert whole.finish_reason == streamed.last.finish_reason == pb.FINISH_REASON_TOOL_CALLS
    assert list(whole.token_ids) == streamed.token_ids == [*TWO_CALLS.encode(), EOS]
    if tokens_per_step == 1:
        assert max(len(message.tool_calls) for message in streamed.messages) == 1


@pytest.mark.parametrize("tokens_per_step", [1, 3, 1000])
@pytest.mark.parametrize(
    ("answer", "num_reasoning"),
    [
        ("<think>\nHm.\n</think>\n\nYes.", len("<think>\nHm.\n</think>")),
        (" \n<think>Hm.</think>Yes.", len(" \n<think>Hm.</think>")),
        ("<think></think>", len("<think></think>")),
        ("<think>Hm. </thi", len("<think>Hm. </thi") + 1),
        ("Yes. <think>Hm.</think>", 0),
        ("<thi", 0),
        ("", 0),
    ],
)
async def test_tokens_of_thoughts_are_counted(
    serve: Serve, answer: str, num_reasoning: int, tokens_per_step: int
):
    served = await serve(tokenizer=Scripted(answer))
    served.scheduler.behavior = Behavior(tokens_per_step=tokens_per_step)
    asked = {"chat": chat(separate_reasoning=True), "n": 2}
    whole = (await unary(served, **asked)).usage
    assert whole.reasoning_tokens == 2 * num_reasoning
    assert whole.completion_tokens == 2 * (len(answer) + 1)
    assert (await stream(served, **asked)).last.usage == whole
    assert (await unary(served, chat=chat())).usage.reasoning_tokens == 0


async def test_what_is_not_asked_for_stays_text(serve: Serve):
    tokenizer = Scripted(TWO_CALLS)
    served = await serve(tokenizer=tokenizer)
    for prompt, shown in ((chat(), []), (chat(tools=[TOOL], tool_choice=NONE), ["get_weather"])):
        reply = await unary(served, chat=prompt)
        assert told([reply]) == (TWO_CALLS, "", [])
        assert reply.finish_reason == pb.FINISH_REASON_STOP
        assert [tool.name for tool in tokenizer.tools] == shown
    with_tools = await unary(served, chat=chat(tools=[TOOL]))
    assert with_tools.text == "<think>\nHm.\n</think>\n\nLet me see."
    assert len(with_tools.tool_calls) == 2
    apart = await unary(served, chat=chat(separate_reasoning=True))
    assert (apart.reasoning_text, apart.text) == ("Hm.", TWO_CALLS.partition("\n\n")[2])


async def test_other_endings_keep_their_reason(serve: Serve):
    served = await serve(tokenizer=Scripted(CALL + " " + CALL))
    prompt = chat(tools=[TOOL])
    cut = await unary(served, chat=prompt, sampling=pb.SamplingParams(max_tokens=len(CALL) + 20))
    assert (len(cut.tool_calls), cut.text) == (1, " " + CALL[:19])
    assert cut.finish_reason == pb.FINISH_REASON_LENGTH
    # Stop texts are looked for in what the model wrote, calls among it.
    stopped = await unary(served, chat=prompt, sampling=pb.SamplingParams(stop=["Oslo"]))
    assert stopped.text == CALL.partition("Oslo")[0]
    assert stopped.finish_reason == pb.FINISH_REASON_STOP
    own = pb.SamplingParams(stop_token_ids=[ord(" ")], ignore_eos=True)
    assert (await unary(served, chat=prompt, sampling=own)).finish_reason == pb.FINISH_REASON_STOP


async def test_choices_have_ids_of_their_own(serve: Serve):
    served = await serve(tokenizer=Scripted(CALL))
    reply = await unary(served, chat=chat(tools=[TOOL]), n=3)
    ids = [call.id for choice in reply.choices for call in choice.tool_calls]
    assert len(set(ids)) == 3


async def test_a_demanded_call_is_a_constraint(served: Served):
    await unary(served, chat=chat(tools=[TOOL], tool_choice=REQUIRED))
    grammar = served.scheduler.seen.submits[-1].sampling.grammar
    assert "get_weather" in grammar
    assert "tool_call" in grammar
    await unary(served, chat=chat(tools=[TOOL]))
    assert not served.scheduler.seen.submits[-1].sampling.grammar


FORM = pb.Constraint(choice=pb.Choices(texts=["yes", "no"]))


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (pb.ToolChoice(), {"get_weather", "tool_call", "yes", "think"}),
        (REQUIRED, {"get_weather", "tool_call", "think"}),
        (NONE, {"yes"}),
    ],
)
async def test_a_form_beside_tools(served: Served, choice: pb.ToolChoice, words: set[str]):
    prompt = chat(tools=[TOOL], tool_choice=choice, separate_reasoning=True)
    await unary(served, chat=prompt, constraint=FORM)
    grammar = served.scheduler.seen.submits[-1].sampling.grammar
    assert {word for word in ("get_weather", "tool_call", "yes", "think") if word in grammar} == (
        words
    )
    # Where they would stay in the text, thoughts are no part of an answer that has a form.
    prompt.separate_reasoning = False
    await unary(served, chat=prompt, constraint=FORM)
    has_thoughts = "think" in served.scheduler.seen.submits[-1].sampling.grammar
    assert has_thoughts is (choice is REQUIRED)


@pytest.mark.parametrize("choice", [pb.ToolChoice(), REQUIRED, NONE])
async def test_a_bad_form_beside_tools_is_refused_by_name(served: Served, choice: pb.ToolChoice):
    """Also where a demanded call leaves it no say: it is never passed over."""
    form = pb.Constraint(json_schema='{"enum": []}')
    prompt = chat(tools=[TOOL], tool_choice=choice)
    refusal = await refused(unary(served, chat=prompt, constraint=form))
    assert refusal.field == "constraint.json_schema"
    tool = pb.FunctionTool(name="f", parameters='{"type": "object", "x-guidance": {}}')
    call = unary(served, chat=chat(tools=[tool], tool_choice=choice), constraint=FORM)
    if choice is NONE:
        assert (await call).usage.completion_tokens > 0
    else:
        assert (await refused(call)).field == "chat.tools"


@pytest.mark.parametrize("tokens_per_step", [1, 1000])
@pytest.mark.parametrize("answer", [CALL, f"<think>so</think>\n{CALL}", "yes", f"yes {CALL}"])
async def test_an_answer_is_calls_or_text(serve: Serve, tokens_per_step: int, answer: str):
    served = await serve(tokenizer=Scripted(answer))
    served.scheduler.behavior = Behavior(tokens_per_step=tokens_per_step)
    asked = {"chat": chat(tools=[TOOL], separate_reasoning=True), "constraint": FORM}
    for messages in ((await stream(served, **asked)).messages, [await unary(served, **asked)]):
        text, reasoning, calls = told(messages)
        assert text == ("" if answer.endswith(CALL) and "yes" not in answer else answer)
        assert reasoning == ("so" if "think" in answer else "")
        assert [call[1:] for call in calls] == (
            [] if text else [("get_weather", '{"city": "Oslo"}')]
        )


async def test_tools_whose_calls_could_not_be_read_are_refused(serve: Serve):
    template = "{{ tools[0].function.name }}{# <function= #}{{ messages[0].content }}"
    served = await serve(tokenizer=bytes_of_a_model(template=template))
    refusal = await refused(unary(served, chat=chat(tools=[TOOL])))
    assert refusal.field == "chat.tools"
    assert (await unary(served, chat=chat(tools=[TOOL], tool_choice=NONE))).usage.prompt_tokens


async def test_no_call_can_begin_where_none_is_wanted(serve: Serve):
    template = "{{ tools }}{{ messages[0].content }}[TOOL_CALLS]"
    tokenizer = bytes_of_a_model(template=template, added=["[TOOL_CALLS]"])
    opening = tokenizer.added_id("[TOOL_CALLS]")
    assert opening is not None
    served = await serve(tokenizer=tokenizer)
    sampling = pb.SamplingParams(logit_bias={opening: 7.0, 97: 1.0})

    async def biases(**fields: Any) -> dict[int, float]:
        await unary(served, sampling=sampling, **fields)
        found = served.scheduler.seen.submits[-1].sampling
        return dict(unpack_biases(found.bias_ids, found.biases))

    asked = {97: 1.0, opening: 7.0}
    assert await biases(chat=chat(tools=[TOOL])) == asked
    assert await biases(chat=chat(tool_choice=NONE)) == asked
    assert await biases(chat=chat(tools=[TOOL], tool_choice=NONE)) == {97: 1.0, opening: -100.0}
    assert await biases(chat=chat(tools=[TOOL], tool_choice=NONE), constraint=FORM) == asked


async def test_tools_that_no_call_can_meet_are_refused(served: Served):
    tool = pb.FunctionTool(name="f", parameters='{"type": "object", "x-guidance": {}}')
    refusal = await refused(unary(served, chat=chat(tools=[tool], tool_choice=REQUIRED)))
    assert refusal.field == "chat.tools"
    assert (await unary(served, chat=chat(tools=[tool]))).usage.completion_tokens > 0


async def test_a_message_is_continued(served: Served):
    messages = [
        pb.ChatMessage(role=pb.ROLE_USER, content="Hi"),
        pb.ChatMessage(role=pb.ROLE_ASSISTANT, content="Well, "),
    ]
    await unary(served, chat=pb.ChatPrompt(messages=messages, continue_final_message=True))
    prompt = served.scheduler.seen.submits[-1].prompt_ids
    assert unpack_ids(prompt, typecode="I")[-7:].tolist() == [*b"\nWell, "]


THINKING = "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}<|bot|>"


@pytest.mark.parametrize(
    ("opened", "content", "begins"),
    [
        ("<think>\n", "", True),
        ("", "", False),
        ("<think>\n\n</think>\n\n", "", False),
        ("", "<think>so", True),
        ("", "<think>so</think>then", False),
    ],
)
def test_thoughts_that_the_prompt_has_opened(opened: str, content: str, begins: bool):
    template = THINKING.replace("<|bot|>", "<|bot|>" + opened) + "{# </think> #}"
    tokenizer = bytes_of_a_model(template=template)
    prompt = chat(separate_reasoning=True, continue_final_message=bool(content))
    if content:
        prompt.messages.append(pb.ChatMessage(role=pb.ROLE_ASSISTANT, content=content))
    request = read_request(pb.GenerateRequest(chat=prompt), max_prompt_bytes=1000)
    turns = [ChatTurn(role="user", content="Weather in Oslo?")]
    rules = parser_rules(
        request,
        tokenizer,
        array("I", tokenizer.encode_chat(turns, add_generation_prompt=True)),
    )
    assert rules is not None
    assert rules.begins_in_thoughts == begins
    assert rules.separates_thoughts


def test_marks_that_are_control_tokens_are_seen():
    tokenizer = bytes_of_a_model(template="{{ tools }}<tool_call>")
    bot, end = tokenizer.special_ids["<|bot|>"], tokenizer.special_ids["</s>"]
    decoder = tokenizer.decoder(skip_special_tokens=True, shown_tokens=["<|bot|>", "<none>"])
    assert decoder.feed([bot, end, bot]) == "<|bot|><|bot|>"
    assert "<tool_call>" in tokenizer.chat_format.markers


def test_marks_of_what_is_not_looked_for_are_skipped_as_others():
    template = "{{ tools }}[TOOL_CALLS]</think>"
    tokenizer = bytes_of_a_model(template=template)
    prompt = chat(tools=[TOOL], separate_reasoning=True)

    def markers(**fields: Any) -> set[str]:
        request = read_request(pb.GenerateRequest(chat=prompt, **fields), max_prompt_bytes=1000)
        rules = parser_rules(request, tokenizer, array("I", [97]))
        return set() if rules is None else set(rules.markers)

    assert markers() == {"<think>", "</think>", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"}
    prompt.tool_choice.CopyFrom(NONE)
    assert markers() == {"<think>", "</think>"}
    assert markers(constraint=FORM) == set()


async def test_variables_nobody_knows_are_refused(served: Served):
    refusal = await refused(unary(served, chat=chat(template_arguments='{"thinking": true}')))
    assert refusal.field == "chat.template_arguments"
    assert "'thinking'" in refusal.message
