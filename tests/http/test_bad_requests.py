"""Bytes that are no request: each gets its status and a sentence, and the server stays."""

import json
import re

import pytest

from tests.http.ask import (
    CHAT,
    PLAIN,
    RESPONSES,
    error_of,
    ok,
    raw_connection,
    raw_request,
    refused,
    streamed,
    user,
)
from tokenizer_svc.http.config import max_body_bytes
from tokenizer_svc.http.connection import MAX_HEADER_BYTES, MAX_URL_BYTES


def chat(content: str) -> bytes:
    """A chat whose content is this JSON text, as it stands."""
    return b'{"messages":[{"role":"user","content":%s}],"max_tokens":2}' % content.encode()


@pytest.mark.parametrize(
    ("body", "param", "word"),
    [
        (b"", "body", "empty"),
        (b"  \n", "body", "empty"),
        (b"{", "body", "not valid JSON"),
        (b"[]", "body", "JSON object"),
        (b"null", "body", "JSON object"),
        (b"5", "body", "JSON object"),
        (b'{"prompt":"a",}', "body", "not valid JSON"),
        (b'{"prompt":"a"} {}', "body", "not valid JSON"),
        (b'\xef\xbb\xbf{"prompt":"a"}', "body", "not valid JSON"),
        (b'{"prompt":"\xff\xfe"}', "body", "UTF-8"),
        (b'{"prompt":"a","temperature":NaN}', "body", "NaN"),
        (b'{"prompt":"a","temperature":-Infinity}', "body", "Infinity"),
        (b'{"prompt":"a","temperature":1e999}', "temperature", ""),
        (b'{"prompt":"a","temperature":1e300}', "temperature", ""),
        (b'{"prompt":"a","seed":' + b"9" * 5000 + b"}", "body", "number"),
        (b'{"prompt":"a","seed":' + b"9" * 50 + b"}", "seed", ""),
        (b'{"prompt":"a","prompt":"b"}', "prompt", "twice"),
        (b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "body", "deep"),
        (b'{"prompt":"a","guided_json":' + b'{"a":' * 5000 + b"1" + b"}" * 5001, "body", "deep"),
        (b'{"prompt":"a\\ud800"}', "prompt", "surrogate"),
        (b'{"prompt":["a","\\uDC00b"]}', "prompt[1]", "surrogate"),
        (b'{"prompt":"a","stop":["\\ud83d"]}', "stop[0]", "surrogate"),
        (b'{"prompt":"a","\\ud800":1}', "body", "surrogate"),
    ],
)
async def test_bytes_that_are_no_body(http, body, param, word):  # field cases 78, 85
    error = await refused(http, PLAIN, body)
    assert error["param"] == param
    assert word in error["message"]
    assert (await ok(http, PLAIN, prompt="a", max_tokens=1))["choices"]


async def test_half_a_surrogate_pair_is_named_in_a_conversation(http):  # field case 78
    error = await refused(http, CHAT, chat('"x\\ud800y"'))
    assert error["param"] == "messages[0].content"
    for fine in ('"\\ud83d\\ude42"', '"\\u0000"', '"\\u001b[1m"', '"\\ufeffx"', '"\\u202eabc"'):
        answer = await http.post(CHAT, content=chat(fine))
        assert answer.status_code == 200, answer.text


async def test_a_megabyte_of_combining_marks_is_a_prompt_too_long_for_the_model(http):
    error = await refused(http, CHAT, chat(json.dumps("e\u0301" * 350_000)))
    assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")
    assert str(2048) in error["message"]


async def test_a_body_that_is_too_long(http):
    limit = max_body_bytes(4 << 20)
    error = await refused(http, PLAIN, b" " * (limit + 1), status=413)
    assert str(limit) in error["message"]

    async def parts():
        for _ in range(limit // 65536 + 2):
            yield b" " * 65536

    answer = await http.post(PLAIN, content=parts())
    assert error_of(answer, 413)["code"] == "body_too_long"


async def test_a_compressed_body(http):
    error = await refused(
        http, PLAIN, b"\x1f\x8b", status=415, headers={"content-encoding": "gzip"}
    )
    assert error["code"] == "compressed_body"


async def test_paths_and_methods_that_are_none(http):
    for path in ("/", "/v1", "/v1/chat", "/v1/embeddings", "/v1/chat/completions/"):
        assert error_of(await http.post(path, json={}), 404)["code"] == "unknown_path"
    answer = await http.get(CHAT)
    assert error_of(answer, 405)["code"] == "method_not_allowed"
    assert answer.headers["allow"] == "POST"
    answer = await http.request("OPTIONS", CHAT, headers={"origin": "http://evil.example"})
    assert answer.status_code == 405
    assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_pages_of_other_servers_are_not_served(http):
    body = b'{"prefixes":["x"]}'
    foreign = {"origin": "http://evil.example", "content-type": "text/plain"}
    answer = await http.post("/preheat", content=body, headers=foreign)
    assert error_of(answer, 403)["code"] == "foreign_page"
    own = foreign | {"origin": str(http.base_url).rstrip("/")}
    assert (await http.post("/preheat", content=body, headers=own)).status_code == 200


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /" + b"a" * MAX_URL_BYTES + b" HTTP/1.1\r\nhost: x\r\n\r\n", b"414"),
        (b"GET /health HTTP/1.1\r\na: " + b"b" * MAX_HEADER_BYTES + b"\r\n\r\n", b"431"),
        (b"GET /health HTTP/1.1\r\n" + b"a: bcdefgh\r\n" * 6000 + b"\r\n", b"431"),
        (b"GET /health HTTP/1.1\r\na: " + b"b" * 200_000, b"431"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"400"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"400"),
        (b"GET /health HTTP/1.1\r\ncontent-length: x\r\n\r\n", b"400"),
    ],
)
def test_bytes_that_are_no_http(stack, request_bytes, status):
    with raw_connection(stack) as connection:
        connection.sendall(request_bytes)
        reply = b""
        while part := connection.recv(65536):
            reply += part
    assert reply.startswith(b"HTTP/1.1 " + status), reply[:200]
    assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["message"]


def test_requests_in_a_row_on_one_connection(stack):
    body = b'{"prompt":"a","max_tokens":1}'
    with raw_connection(stack) as connection:
        connection.sendall(raw_request(PLAIN, body) + raw_request(PLAIN, b"{") * 2)
        connection.sendall(raw_request(PLAIN, body, "connection: close"))
        reply = b""
        while part := connection.recv(65536):
            reply += part
    assert re.findall(rb"HTTP/1.1 (\d+)", reply) == [b"200", b"400", b"400", b"200"]


async def test_an_error_before_the_first_event_is_a_status(http):
    answer = await http.post(CHAT, json={"messages": user("hi"), "n": 0, "stream": True})
    assert error_of(answer, 400)["param"] == "n"
    body = {"prompt": "a" * 3000, "stream": True}
    assert error_of(await http.post(PLAIN, json=body), 400)["param"] == "prompt"


async def test_a_deadline_leaves_what_there_is(http):
    events = await streamed(http, CHAT, messages=user("hi"), max_tokens=1900, timeout_ms=300)
    end = events[-1]["choices"][0]
    assert end["finish_reason"] == "length"
    assert "deadline" in end["finish_message"]
    answer = await ok(http, RESPONSES, input="hi", timeout_ms=300, ignore_eos=True)
    details = answer["incomplete_details"]
    assert details["reason"] == "max_output_tokens"
    assert "deadline" in details["message"]


async def test_the_log_says_nothing_of_prompts(http, stack):
    secret = "a very private text"
    await ok(http, PLAIN, prompt=secret, max_tokens=2)
    await refused(http, PLAIN, {"prompt": secret, "max_tokens": 0, secret: 1})
    assert not [line for line in stack.lines if secret in line]
