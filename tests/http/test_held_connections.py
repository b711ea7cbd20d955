"""Bytes that would hold a connection, or the server: headers without end, trailers, late bodies,
offers to upgrade."""

import asyncio
import json
import re
import socket

import pytest
import uvicorn
from uvicorn.server import ServerState

from tests.http.ask import PLAIN, raw_connection, raw_request
from tests.tokenizer_svc.client import wait_until
from tokenizer_svc.http import connection as connections
from tokenizer_svc.http.connection import MAX_HEADER_BYTES, BoundedConnection

BODY = b'{"prompt":"a","max_tokens":1}'
CHUNKED = b"POST %s HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n" % PLAIN.encode()
WHOLE = b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)
UPGRADE = (
    "connection: Upgrade, HTTP2-Settings",
    "upgrade: h2c",
    "http2-settings: AAMAAABkAAQAAP__",
)
LAST = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


def replies(stack, *parts: bytes) -> tuple[list[bytes], bytes]:
    """Statuses of all that comes until the server closes, and its bytes."""
    with raw_connection(stack) as connection:
        for part in parts:
            connection.sendall(part)
        reply = b""
        while more := connection.recv(65536):
            reply += more
    return re.findall(rb"HTTP/1.1 (\d+)", reply), reply


@pytest.mark.parametrize(
    "data",
    [
        b"GET /health HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 20_000 + b"\r\n",
        CHUNKED + b"\r\n" + WHOLE + b"a: b\r\n" * 20_000 + b"\r\n",
        CHUNKED + b"\r\n" + WHOLE + b"a: " + b"b" * 20 * MAX_HEADER_BYTES,
        CHUNKED + b"\r\n1d;" + b"b" * 20 * MAX_HEADER_BYTES,
    ],
    ids=["headers", "trailers", "trailer", "chunk-extension"],
)
def test_what_is_read_beside_a_body_has_an_end(stack, data):
    statuses, reply = replies(stack, data)
    assert statuses == [b"431"]
    assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["code"] == "headers_too_large"


def test_a_trailer_is_no_header(stack):
    """Whoever stands before the server has judged the headers alone."""
    trailers = b"origin: http://evil.example\r\ncontent-encoding: gzip\r\n\r\n"
    assert replies(stack, CHUNKED + b"\r\n" + WHOLE + trailers + LAST)[0] == [b"200", b"200"]


def test_requests_in_line_behind_one_are_not_without_end(stack):
    asked = raw_request(PLAIN, b'{"prompt":"a","max_tokens":200,"stream":true}')
    few = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n" * 20
    assert replies(stack, asked, few + LAST)[0] == [b"200"] * 22
    statuses, _ = replies(stack, asked, few * 100)
    assert len(statuses) < 40  # closed in the middle, as no refusal may stand there


@pytest.mark.parametrize("is_split", [False, True])
def test_who_offers_to_upgrade_is_answered_as_he_is(stack, is_split):
    """Java's own client offers HTTP/2 with its first request, whatever that is."""
    head = CHUNKED + "\r\n".join([*UPGRADE, "", ""]).encode()
    sent = [raw_request(PLAIN, BODY, *UPGRADE), head + WHOLE + b"\r\n", LAST]
    data = b"".join(sent)
    parts = [data[at : at + 50] for at in range(0, len(data), 50)] if is_split else [data]
    statuses, reply = replies(stack, *parts)
    assert statuses == [b"200"] * 3, reply
    assert reply.count(b'"completion_tokens":1') == 2


def test_a_body_behind_an_offer_to_upgrade_is_no_request(stack):
    smuggled = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n"
    statuses, reply = replies(stack, raw_request(PLAIN, smuggled, *UPGRADE), LAST)
    assert statuses == [b"400", b"200"], reply
    assert b"radixd_front" not in reply


def test_bytes_that_are_no_request_do_not_stand_in_the_middle_of_a_reply(stack):
    body = b'{"prompt":"a","max_tokens":1900,"ignore_eos":true,"stream":true,"temperature":0}'
    with raw_connection(stack) as connection:
        connection.sendall(raw_request(PLAIN, body))
        reply = connection.recv(200)
        connection.sendall(b"nonsense\r\n\r\n")
        while more := connection.recv(65536):
            reply += more
    assert re.findall(rb"HTTP/1.1 (\d+)", reply) == [b"200"]


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"POST /nowhere HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\na\r\n"),
        (b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n", b"\r\n"),
        (b"GET /health HTTP/1.1\r\nhost: x\r\n\r\nGET /", b"a"),
    ],
    ids=["body", "blank-lines", "url"],
)
async def test_nobody_holds_a_connection_by_a_byte_now_and_then(served, monkeypatch, begin, more):
    monkeypatch.setattr(connections, "HEADER_TIMEOUT_S", 0.3)
    reader, writer = await asyncio.open_connection("127.0.0.1", served.front.http_port)
    writer.write(begin)
    assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 ")
    reading = asyncio.create_task(reader.read())
    async with asyncio.timeout(20):
        while not reading.done():
            writer.write(more)
            await asyncio.sleep(0.05)
    writer.close()
    await asyncio.gather(reading, return_exceptions=True)


async def test_who_leaves_with_another_request_in_line_is_noticed(served):
    served.scheduler.behavior.num_before_hold = 1
    reader, writer = await asyncio.open_connection("127.0.0.1", served.front.http_port)
    body = b'{"prompt":"a","max_tokens":50,"stream":true}'
    writer.write(raw_request(PLAIN, body))
    await reader.readuntil(b"data: ")
    writer.write(LAST)
    await asyncio.sleep(0.05)
    writer.close()
    await wait_until(lambda: len(served.front.live) == 0)


@pytest.mark.parametrize("wish", ["connection: close", "connection: keep-alive"])
async def test_the_end_of_a_reply_is_not_held_for_who_does_not_read_it(wish):
    made: list[BoundedConnection] = []

    async def app(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200})
        while not made[0].transport.get_write_buffer_size():  # less than would pause it
            await send({"type": "http.response.body", "body": b"x" * 4096, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body"})

    config = uvicorn.Config(app, timeout_keep_alive=0, log_level="error")

    def connection() -> BoundedConnection:
        parts = {"config": config, "server_state": ServerState(), "app_state": {}}
        made.append(BoundedConnection(write_timeout_s=0.1, **parts))
        return made[0]

    loop = asyncio.get_running_loop()
    server = await loop.create_server(connection, "127.0.0.1", 0)
    async with server:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(server.sockets[0].getsockname())
            client.sendall(f"GET / HTTP/1.1\r\nhost: x\r\n{wish}\r\n\r\n".encode())
            await wait_until(lambda: made and made[0].cycle and made[0].cycle.response_complete)
            await wait_until(lambda: not made[0].connections)
