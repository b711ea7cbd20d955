"""Every line of README that curl stands in, run as it is written; only the port is another one."""

import json

import pytest

from tests.cli.test_readme import README, command_lines
from tests.clients.installed import output_of, system_program

PREHEAT = """curl -X POST http://localhost:3000/preheat -d '{"prefixes":["常见问题","欢迎咨询"]}'"""


def curl(stack, *words):
    here = [word.replace("http://localhost:3000", stack.http) for word in words]
    assert here != list(words), "the line names no address that is replaced"
    return output_of(system_program("curl"), "--silent", "--show-error", "--fail-with-body", *here)


def lines_with(text):
    found = [words for words in command_lines("curl") if any(text in word for word in words)]
    assert found, f"README has no line of curl with {text}"
    return found


def events(text):
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_a_conversation(stack):
    for line in lines_with("/v1/chat/completions"):
        answer = json.loads(curl(stack, *line))
        assert answer["choices"][0]["message"]["content"]
        assert answer["usage"]["completion_tokens"] > 0


def test_a_stream_comes_in_pieces(stack):
    (line,) = lines_with("/v1/completions")
    assert "-N" in line
    pieces = events(curl(stack, *line))
    assert len(pieces) > 1
    assert pieces[-1]["choices"][0]["finish_reason"] in ("length", "stop")


def test_the_line_of_preheating(stack):
    assert PREHEAT in README
    (line,) = lines_with("/preheat")
    first, second = json.loads(curl(stack, *line))["prefixes"]
    assert first["num_tokens"] == second["num_tokens"] == len("常见问题".encode())
    (again, _) = json.loads(curl(stack, *line))["prefixes"]
    assert again["cached_tokens"] == again["num_tokens"]


@pytest.mark.parametrize("path", ["health", "ready", "metrics", "openapi.json", "v1/models"])
def test_small_paths(stack, path):
    assert curl(stack, f"http://localhost:3000/{path}")
