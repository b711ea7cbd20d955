"""The `openai` package on the model, where the answer matters: facts, tools, structured output."""

import json
from typing import Literal

import openai
import pydantic
import pytest

from tests.clients.openai_clients import connect
from tests.system.stack import launched

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

QUESTION = {"role": "user", "content": "What is the weather in Paris?"}
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"enum": ["Paris", "Rome"]},
            "unit": {"enum": ["celsius", "fahrenheit"]},
        },
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
}


class City(pydantic.BaseModel):
    name: Literal["Paris", "Lyon"]
    is_capital: bool
    districts: int = pydantic.Field(ge=1, le=99)


@pytest.fixture(scope="module")
def client():
    with launched() as stack, connect(stack, timeout=120) as made:
        yield made


@pytest.fixture(scope="module")
def model(client):
    return client.models.list().data[0].id


def test_a_fact(client, model):
    for stream in (False, True):
        answer = client.completions.create(
            model=model,
            prompt="The capital of France is",
            max_tokens=6,
            temperature=0,
            stream=stream,
        )
        said = "".join(c.choices[0].text for c in answer) if stream else answer.choices[0].text
        assert "Paris" in said


def test_a_tool_is_called_and_its_result_is_read(client, model):
    tools = [{"type": "function", "function": WEATHER}]
    asked = {"model": model, "tools": tools, "temperature": 0}
    called = client.chat.completions.create(
        **asked,
        messages=[QUESTION],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=100,
    )
    choice = called.choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.function.name == "get_weather"
    assert set(json.loads(call.function.arguments)) == {"city", "unit"}
    result = {"role": "tool", "tool_call_id": call.id, "content": "21 degrees, sunny"}
    answer = client.chat.completions.create(
        **asked, messages=[QUESTION, choice.message, result], max_tokens=20
    )
    assert answer.choices[0].message.content or answer.choices[0].message.tool_calls
    assert answer.usage.prompt_tokens_details.cached_tokens > 30, "the first turn is still there"


def test_a_streamed_tool_call(client, model):
    named = {"type": "function", "function": {"name": "get_weather"}}
    tools = [{"type": "function", "function": WEATHER}]
    with client.chat.completions.stream(
        model=model,
        messages=[QUESTION],
        tools=tools,
        tool_choice=named,
        parallel_tool_calls=False,
        max_tokens=100,
        temperature=0,
    ) as stream:
        final = stream.get_final_completion()
    (call,) = final.choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["city"] in {"Paris", "Rome"}


def test_an_answer_parsed_into_a_model(client, model):
    messages = [{"role": "user", "content": "Paris as JSON."}]
    asked = {"model": model, "messages": messages, "temperature": 0}
    parsed = client.chat.completions.parse(**asked, response_format=City, max_tokens=100)
    city = parsed.choices[0].message.parsed
    assert isinstance(city, City)
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(**asked, response_format=City, max_tokens=3)


def test_a_json_schema(client, model):
    schema = {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2}
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Two booleans."}],
        response_format={"type": "json_schema", "json_schema": {"name": "two", "schema": schema}},
        max_tokens=40,
        temperature=0,
    )
    assert [type(item) for item in json.loads(answer.choices[0].message.content)] == [bool, bool]


def test_a_response_parsed_into_a_model(client, model):
    answer = client.responses.parse(
        model=model,
        input="Paris as JSON.",
        text_format=City,
        max_output_tokens=100,
        temperature=0,
    )
    assert isinstance(answer.output_parsed, City)
