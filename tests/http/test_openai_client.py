"""The `openai` package as it comes, pointed at this server."""

import openai
import pytest

from tests.http.ask import user


@pytest.fixture
def client(stack):
    with openai.OpenAI(
        base_url=f"{stack.http}/v1",
        api_key="none",
        max_retries=0,
        http_client=openai.DefaultHttpxClient(trust_env=False),
    ) as made:
        yield made


def test_models(client):
    assert [model.id for model in client.models.list()] == ["fake"]


def test_a_conversation(client):
    whole = client.chat.completions.create(model="fake", messages=user("hi"), max_tokens=9, seed=1)
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 9
    assert whole.usage.prompt_tokens_details.cached_tokens >= 0
    stream = client.chat.completions.create(
        model="fake",
        messages=user("hi"),
        max_tokens=9,
        seed=1,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert chunks[-1].usage == whole.usage or chunks[-1].usage.completion_tokens == 9
    deltas = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(deltas) == whole.choices[0].message.content


def test_extra_fields(client):
    answer = client.completions.create(
        model="fake",
        prompt="once",
        max_tokens=5,
        extra_body={"min_tokens": 5, "ignore_eos": True, "top_k": 3, "workload": "chat"},
    )
    assert answer.usage.completion_tokens == 5
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="fake", prompt="once", extra_body={"top_k": -1})
    assert caught.value.param == "top_k"
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="once")


def test_a_response(client):
    answer = client.responses.create(model="fake", input="hi", max_output_tokens=30)
    assert answer.status == "incomplete"
    stop = {"stop": answer.output_text[12:15]}
    asked = {"model": "fake", "input": "hi", "extra_body": stop}
    whole = client.responses.create(**asked)
    assert whole.status == "completed"
    assert answer.output_text.startswith(whole.output_text)
    with client.responses.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output_text == whole.output_text
    assert kinds[-1] == "response.completed"


async def test_asynchronously(stack):
    async with openai.AsyncOpenAI(
        base_url=f"{stack.http}/v1",
        api_key="none",
        http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
    ) as client:
        stream = await client.chat.completions.create(
            model="fake", messages=user("hi"), max_tokens=4, stream=True
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].choices[0].finish_reason == "length"
