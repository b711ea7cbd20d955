"""What the tests of HTTP ask of a server, in few words."""

import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import httpx2

from gpu_worker.fake_model import GO_TOKEN, SCRIPT_TOKEN
from tests.system.stack import Stack

CHAT, PLAIN, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"


@contextlib.asynccontextmanager
async def connected(stack: Stack, **options: Any) -> AsyncIterator[httpx2.AsyncClient]:
    """A client that no proxy of the environment comes between."""
    assert stack.http is not None
    async with httpx2.AsyncClient(
        base_url=stack.http, timeout=30, trust_env=False, **options
    ) as client:
        yield client


def script(text: str) -> list[int]:
    """A prompt that the fake model continues with this text, and then the end of sequence."""
    return [SCRIPT_TOKEN, *text.encode(), GO_TOKEN]


def user(text: str) -> list[dict[str, Any]]:
    """A conversation of one message."""
    return [{"role": "user", "content": text}]


def greedily(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The body, with temperature 0 where it is one of a generation that says none."""
    return {"temperature": 0, **body} if path in (CHAT, PLAIN, RESPONSES) else body


async def ok(client: httpx2.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    """The reply to a body that is taken; greedy, where that does not say otherwise."""
    answer = await client.post(path, json=greedily(path, body))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def refused(
    client: httpx2.AsyncClient, path: str, body: Any, *, status: int = 400, **options: Any
) -> dict[str, Any]:
    """The error of a body that is refused; `body` is sent as it stands when it is bytes."""
    sent = {"content": body} if isinstance(body, bytes) else {"json": body}
    answer = await client.post(path, **sent, **options)
    return error_of(answer, status)


def error_of(answer: httpx2.Response, status: int) -> dict[str, Any]:
    """What OpenAI's clients read of an error."""
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    for word in ("Traceback", "dict", "NoneType", "pydantic", "Body", "protobuf", "None"):
        assert word not in error["message"]
    return error


async def streamed(
    client: httpx2.AsyncClient, path: str, *, is_done: bool = True, **body: Any
) -> list[dict[str, Any]]:
    """The events of a stream to its end; greedy, where the body does not say otherwise."""
    sent = greedily(path, {"stream": True, **body})
    async with client.stream("POST", path, json=sent) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line async for line in answer.aiter_lines()]
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    if path != RESPONSES and is_done:
        assert data.pop() == "[DONE]"
    return [json.loads(text) for text in data]


def choices_of(events: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Every choice of every event."""
    for event in events:
        yield from event["choices"]


def joined(events: Sequence[dict[str, Any]], index: int = 0) -> tuple[str, dict[str, Any]]:
    """The text of one choice, and its last event; for chat and plain completions."""
    mine = [choice for choice in choices_of(events) if choice["index"] == index]
    assert [c["finish_reason"] is not None for c in mine] == [False] * (len(mine) - 1) + [True]
    return "".join([c["text"] if "text" in c else c["delta"].get("content", "") for c in mine]), (
        mine[-1]
    )


def raw_connection(stack: Stack, *, window_bytes: int | None = None) -> socket.socket:
    """A connection whose client writes what it likes and reads when it likes."""
    assert stack.http is not None
    host, port = stack.http.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.settimeout(20)
    if window_bytes is not None:  # before it connects, as it is said then
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window_bytes)
    connection.connect((host, int(port)))
    return connection


def raw_request(path: str, body: bytes, *headers: str) -> bytes:
    """The bytes of a POST."""
    lines = [f"POST {path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body
