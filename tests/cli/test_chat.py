"""`radixd chat`: turns, commands, Ctrl-C, and what a pipe sees."""

import io
import sys
from collections.abc import Iterator

import grpc
import pytest

from radixd.cli import chat as chat_module
from radixd.cli.chat import ChatOptions, Conversation
from radixd.cli.client import Client
from tests.cli.conftest import Run
from tests.cli.fake_server import FakeServer

ROLES = {1: "system", 2: "user", 3: "assistant"}


def sent(server: FakeServer) -> list[list[tuple[str, str]]]:
    """Conversations as they arrived, one list of (role, content) a request."""
    return [
        [(ROLES[m.role], m.content) for m in request.chat.messages]
        for request in server.inference.requests
    ]


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch, run: Run, server: FakeServer) -> Run:
    def chat(text: str, *argv: str):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        return run("chat", *argv, "--target", server.target)

    return chat


@pytest.fixture
def at_terminal(server: FakeServer) -> Iterator[Conversation]:
    with Client(server.target) as client:
        yield Conversation(client, ChatOptions(), is_terminal=True)


def test_a_pipe_sees_only_answers(server: FakeServer, pipe: Run) -> None:
    ran = pipe("hi\n\nand now?\n")
    assert (ran.code, ran.out, ran.err) == (0, "Hello!\nHello!\n", "")
    assert sent(server) == [
        [("user", "hi")],
        [("user", "hi"), ("assistant", "Hello!"), ("user", "and now?")],
    ]


def test_commands(server: FakeServer, pipe: Run) -> None:
    pipe("one\n/reset\ntwo\n/system be brief\nthree\n/system\nfour\n/quit\nnever\n")
    assert sent(server) == [
        [("user", "one")],
        [("user", "two")],
        [("system", "be brief"), ("user", "three")],
        [("user", "four")],
    ]


def test_options_arrive(server: FakeServer, pipe: Run) -> None:
    options = "--system brief --max-tokens 5 --temperature 0 --seed 3 --cache-domain d"
    pipe("hi\n", *options.split())
    (request,) = server.inference.requests
    assert sent(server) == [[("system", "brief"), ("user", "hi")]]
    assert (request.sampling.max_tokens, request.sampling.seed) == (5, 3)
    assert request.sampling.HasField("temperature")
    assert request.sampling.temperature == 0.0
    assert request.cache_domain == "d"


def test_a_refusal_ends_a_pipe(server: FakeServer, pipe: Run) -> None:
    server.inference.refusal = (grpc.StatusCode.INVALID_ARGUMENT, "chat: too long", [])
    ran = pipe("hi\nagain\n")
    assert (ran.code, ran.err) == (1, "radixd: chat: too long (INVALID_ARGUMENT)\n")


def test_a_refusal_at_a_terminal_forgets_the_turn(
    server: FakeServer, at_terminal: Conversation, capsys: pytest.CaptureFixture[str]
) -> None:
    server.inference.refusal = (grpc.StatusCode.INVALID_ARGUMENT, "chat: too long", [])
    assert at_terminal.take("much too long")
    assert "chat: too long (INVALID_ARGUMENT)\n" in capsys.readouterr().err
    server.inference.refusal = None
    assert at_terminal.take("short")
    assert sent(server)[-1] == [("user", "short")]
    server.inference.refusal = (grpc.StatusCode.INVALID_ARGUMENT, "chat: too long", [])
    assert at_terminal.take("much too long")
    assert "; /reset starts over" in capsys.readouterr().err


def test_a_mistyped_command_is_not_a_turn(
    server: FakeServer, at_terminal: Conversation, capsys: pytest.CaptureFixture[str]
) -> None:
    assert at_terminal.take("/rest")
    assert "/rest is no command" in capsys.readouterr().err
    assert at_terminal.take("/reset")
    assert "forgotten" in capsys.readouterr().err
    assert not server.inference.requests


def test_the_bill_is_shown_at_a_terminal(
    at_terminal: Conversation, capsys: pytest.CaptureFixture[str]
) -> None:
    at_terminal.take("hi")
    assert "(4 cached)" in capsys.readouterr().err


def test_ctrl_c_cancels_the_answer_and_keeps_what_was_said(
    server: FakeServer, at_terminal: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(text: str) -> None:
        if text == "lo":
            raise KeyboardInterrupt

    server.inference.pause_s = 0.05
    monkeypatch.setattr(chat_module, "write_text", interrupt)
    assert at_terminal.take("hi")
    assert server.inference.cancelled.wait(5)
    server.inference.pieces = ["ok"]
    at_terminal.take("go on")
    assert sent(server)[-1] == [("user", "hi"), ("assistant", "Hello"), ("user", "go on")]


def test_ctrl_c_at_the_prompt_drops_the_line_and_ctrl_d_leaves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keys: list[str | type[BaseException]] = ["hi", KeyboardInterrupt, "there", EOFError]

    def typed(prompt: str) -> str:
        key = keys.pop(0)
        if isinstance(key, str):
            return key
        raise key

    monkeypatch.setattr("builtins.input", typed)
    assert list(chat_module._lines(is_terminal=True)) == ["hi", "there"]
    assert capsys.readouterr().out == "\n\n"
