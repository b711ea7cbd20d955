"""LangChain, in the environment of its own that the Makefile makes."""

import json

import pytest

from tests.clients.installed import PROGRAMS, installed_program, output_of
from tests.system.stack import launched


@pytest.fixture(scope="module")
def stack():
    with launched() as running:
        yield running


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_program_on_langchain(stack):
    program = str(PROGRAMS / "langchain_chat.py")
    printed = output_of(
        *(installed_program("python"), program, stack.http, "smollm2"),
        timeout_s=200,
        LANGSMITH_TRACING="false",
    )
    said = json.loads(printed)
    assert said["whole"]
    assert said["streamed"] == said["whole"]
    assert said["usage"]["output_tokens"] > 0
    (streamed,) = said["streamed_usage"]
    assert streamed["output_tokens"] == said["usage"]["output_tokens"]
    assert streamed["input_token_details"]["cache_read"] == streamed["input_tokens"] - 1
    assert all(said["batch"])
    assert said["call"]["name"] == "get_weather"
    assert said["call"]["args"]["city"] in {"Paris", "Rome"}
    assert said["after"]
    assert said["city"]["name"] in {"Paris", "Lyon"}
    assert said["param"] == "top_k"
