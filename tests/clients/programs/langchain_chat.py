"""A conversation through LangChain, with a tool, a model to parse into, a stream and a refusal.

Prints one JSON object for the test that runs it.  Arguments: URL MODEL.
"""

import asyncio
import json
import sys
from typing import Literal

import openai
import pydantic
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

QUESTION = [SystemMessage("Answer briefly."), HumanMessage("What is the weather in Paris?")]


@tool
def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """The weather of a city."""
    return f"21 degrees in {city}"


class City(pydantic.BaseModel):
    """A city."""

    name: Literal["Paris", "Lyon"]
    is_capital: bool


def main() -> None:
    url, model = sys.argv[1:]
    chat = ChatOpenAI(
        model=model,
        base_url=f"{url}/v1",
        api_key="none",
        max_retries=0,
        max_tokens=60,
        temperature=0,
    )
    whole = chat.invoke(QUESTION)
    chunks = list(chat.stream(QUESTION, stream_usage=True))
    batch = asyncio.run(
        (ChatPromptTemplate.from_template("Say {word}") | chat).abatch(
            [{"word": "one"}, {"word": "two"}]
        )
    )
    tools = chat.bind_tools([get_weather], tool_choice="required", parallel_tool_calls=False)
    called = tools.invoke(QUESTION)
    (call,) = called.tool_calls
    result = ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])
    after = chat.invoke([*QUESTION, called, result])
    city = chat.with_structured_output(City, method="json_schema").invoke("Paris as JSON.")
    try:
        chat.invoke(QUESTION, extra_body={"top_k": -1})
        param = None
    except openai.BadRequestError as error:
        param = error.param
    said = {
        "whole": whole.content,
        "streamed": "".join(chunk.content for chunk in chunks),
        "usage": whole.usage_metadata,
        "streamed_usage": [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata],
        "batch": [message.content for message in batch],
        "call": call,
        "after": after.content,
        "city": city.model_dump(),
        "param": param,
    }
    print(json.dumps(said))


main()
