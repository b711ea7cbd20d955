"""The `openai` package on the fake worker: every call, sync and async, whole and streamed."""

import asyncio

import openai
import pytest

from tests.clients.openai_clients import connect, connect_async

CHAT = {
    "model": "fake",
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 9,
    "temperature": 0,
}
LONG = {"max_tokens": 1500, "extra_body": {"ignore_eos": True}}


@pytest.fixture
def client(stack, books):
    with connect(stack) as made:
        yield made


@pytest.fixture
async def async_client(stack, books):
    async with connect_async(stack) as made:
        yield made


def texts(chunks, index=0):
    """What a stream says in one of its choices."""
    mine = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in mine)


def test_models(client):
    assert [model.id for model in client.models.list()] == ["fake"]
    assert client.models.retrieve("fake").object == "model"


def test_a_stream_says_what_the_whole_answer_says(client):
    asked = CHAT | {"seed": 7, "temperature": 0.9, "n": 3, "logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**asked)
    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    assert len({choice.message.content for choice in whole.choices}) == 3
    for choice in whole.choices:
        assert texts(chunks, choice.index) == choice.message.content
        streamed = [
            entry
            for chunk in chunks
            for part in chunk.choices
            if part.index == choice.index and part.logprobs
            for entry in part.logprobs.content
        ]
        assert streamed == choice.logprobs.content
        assert [len(entry.top_logprobs) for entry in streamed] == [2] * 9
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 27


def test_the_stream_object_of_the_package(client):
    whole = client.chat.completions.create(**CHAT).choices[0].message.content
    asked = CHAT | {"stop": [whole[5:7]]}
    with client.chat.completions.stream(**asked) as stream:
        said = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(said) == final.choices[0].message.content == whole[:5]
    assert final.choices[0].finish_reason == "stop"


def test_plain_completions(client):
    asked = {"model": "fake", "max_tokens": 6, "temperature": 0}
    answer = client.completions.create(**asked, prompt=["one", "two"], echo=True, logprobs=2)
    assert [choice.text[:3] for choice in answer.choices] == ["one", "two"]
    for choice in answer.choices:
        assert "".join(choice.logprobs.tokens) == choice.text
        assert choice.logprobs.token_logprobs[0] is None
        assert all(found < 0 for found in choice.logprobs.token_logprobs[1:])
    chunks = list(client.completions.create(**asked, prompt="one", stream=True))
    said = "".join(chunk.choices[0].text for chunk in chunks)
    assert "one" + said == answer.choices[0].text


def test_responses(client):
    asked = {"model": "fake", "input": "hi", "max_output_tokens": 9, "temperature": 0}
    whole = client.responses.create(**asked)
    assert whole.status == "incomplete"
    assert whole.incomplete_details.reason == "max_output_tokens"
    assert whole.usage.output_tokens == 9
    events = list(client.responses.create(**asked, stream=True))
    said = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(said) == whole.output_text
    assert events[0].type == "response.created"
    assert events[-1].response.usage.output_tokens == 9


def test_the_stream_object_of_responses(client):
    asked = {"model": "fake", "input": "hi", "temperature": 0}
    said = client.responses.create(**asked, max_output_tokens=30).output_text
    asked["extra_body"] = {"stop": said[12:15]}
    whole = client.responses.create(**asked)
    assert whole.status == "completed"
    assert said.startswith(whole.output_text)
    with client.responses.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output_text == whole.output_text
    assert kinds[-1] == "response.completed"


def test_extra_fields(client):
    cold = client.chat.completions.create(
        **CHAT,
        extra_body={"cache_domain": "own", "min_tokens": 9, "top_k": 3, "request_id": "mine"},
    )
    assert cold.usage.prompt_tokens_details.cached_tokens == 0
    warm = client.chat.completions.create(**CHAT, extra_body={"cache_domain": "own"})
    assert warm.usage.prompt_tokens_details.cached_tokens == warm.usage.prompt_tokens - 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"extra_body": {"top_k": -1}}, "top_k"),
        ({"extra_body": {"no_such_field": 1}}, "no_such_field"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format",
        ),
    ],
)
def test_what_is_wrong_is_named(client, fields, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**CHAT | fields)
    assert caught.value.param.startswith(param)
    assert caught.value.type == "invalid_request_error"


def test_an_unknown_model(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(**CHAT | {"model": "gpt-4o"})
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4o")


def test_a_stream_that_is_left_frees_its_slots(client):
    stream = client.chat.completions.create(**CHAT | LONG, stream=True)
    assert next(iter(stream)).choices
    stream.close()


def test_a_call_that_runs_out_of_time_frees_its_slots(client):
    with pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(**CHAT | LONG, timeout=0.3)


async def test_sixteen_at_once(async_client):
    async def ask(word: str) -> str:
        asked = CHAT | {"messages": [{"role": "user", "content": word}]}
        stream = await async_client.chat.completions.create(**asked, stream=True)
        return texts([chunk async for chunk in stream])

    words = [f"word {number}" for number in range(8)]
    said = await asyncio.gather(*(ask(word) for word in words * 2))
    assert said[:8] == said[8:]
    assert len(set(said)) == 8


async def test_a_cancelled_task_frees_its_slots(async_client):
    task = asyncio.create_task(async_client.chat.completions.create(**CHAT | LONG))
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
