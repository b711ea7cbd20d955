"""Bytes at the HTTP port that no client library sends: damaged bodies, halves, floods, silence."""

import asyncio
import json
import random
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from tests.fuzz.heard import Heard

ANSWERS_WITHIN_S = 60.0
"""Whatever is a whole request has an answer by then."""

_PROMPTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 20},
    "/v1/completions": {"prompt": ["a", "b"], "max_tokens": 20, "logprobs": 2},
    "/v1/responses": {"input": "hi", "max_output_tokens": 20},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [97, 98]},
    "/preheat": {"prefixes": ["warm"], "pin": "soft", "ttl_s": 1},
    "/cancel": {"request_id": "one"},
}
_VERBS = ("GET", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "TRACE", "POST", "CONNECT", "BREW")
_STRANGE: tuple[Any, ...] = (
    *(None, True, 0, -1, 1e308, 2**63, 2**64, 10**400, "", "\x00", "\ud800", [], {}, [[]], [None]),
    *(
        {"a": {"b": []}},
        "x" * 5000,
        ["a"] * 2000,
        {"": 0},
        "(" * 2000,
        1.5,
        -0.0,
        "data: [DONE]\n\n",
    ),
)


async def make_noise(url: str, *, seed: str, until_s: float, heard: Heard) -> None:
    """One connection after another until `until_s` of the monotonic clock."""
    rng = random.Random(seed)
    where = urlsplit(url)
    while time.monotonic() < until_s:
        data, is_whole = rng.choice(_KINDS)(rng)
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        try:
            reply = await _answer(reader, writer, data, is_whole, rng)
        except TimeoutError:
            heard.faults.append(f"no answer within {ANSWERS_WITHIN_S} s: {data[:300]!r}")
            continue
        except ConnectionError:
            heard.counts["reset"] += 1  # it was refused while it still wrote
            continue
        finally:
            writer.transport.abort()
        _note(reply, data, is_whole, heard)


async def _answer(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    data: bytes,
    is_whole: bool,
    rng: random.Random,
) -> bytes:
    """Writes at its own pace, and reads all, some or nothing of the reply."""
    if rng.random() < 0.1:
        for at in range(0, min(len(data), 40), 8):
            writer.write(data[at : at + 8])
            await asyncio.sleep(0.02)
        data = data[40:]
    writer.write(data)
    await writer.drain()
    if not is_whole:
        await asyncio.sleep(rng.choice((0, 0, 0.01, 0.05)))
        return b""
    patience_s = rng.choice((None, None, None, None, 0.0, 0.01, 0.05))
    if patience_s is not None:
        await asyncio.sleep(patience_s)
        return b""
    return await asyncio.wait_for(reader.read(), ANSWERS_WITHIN_S)


def _note(reply: bytes, data: bytes, is_whole: bool, heard: Heard) -> None:
    if not reply:
        heard.counts["closed" if is_whole else "left"] += 1
        return
    status = int(reply.split(b" ", 2)[1])
    heard.counts[str(status)] += 1
    if status >= 500 and status != 503:
        heard.faults.append(f"{status} {reply[-300:]!r}\n{data[:300]!r}")
    elif b"HTTP/1.1" not in reply.split(b"\r\n", 1)[0]:
        heard.faults.append(f"no status line: {reply[:100]!r}")


def _request(verb: str, path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"{verb} {path} HTTP/1.1", "host: localhost", "connection: close"]
    lines += [f"content-length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogatepass") + body


def _prompt(rng: random.Random) -> tuple[str, dict[str, Any]]:
    path = rng.choice(tuple(_PROMPTS))
    body = json.loads(json.dumps(_PROMPTS[path]))
    if "max_tokens" in body or "max_output_tokens" in body:
        body["stream"] = rng.random() < 0.5
        body["timeout_ms"] = rng.choice((5, 10_000))
    return path, body


def _damaged_value(rng: random.Random) -> tuple[bytes, bool]:
    """JSON that parses, with something strange in the place of one value."""
    path, body = _prompt(rng)
    part: Any = body
    while True:
        keys = list(part) if isinstance(part, dict) else list(range(len(part)))
        key = rng.choice(keys)
        if not isinstance(part[key], dict | list) or not part[key] or rng.random() < 0.4:
            break
        part = part[key]
    part[key] = rng.choice(_STRANGE)
    return _request("POST", path, json.dumps(body).encode()), True


def _damaged_bytes(rng: random.Random) -> tuple[bytes, bool]:
    path, body = _prompt(rng)
    data = bytearray(json.dumps(body).encode())
    for _ in range(rng.randint(1, 5)):
        at = rng.randrange(len(data))
        data[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
    return _request("POST", path, bytes(data)), True


def _deep_or_long(rng: random.Random) -> tuple[bytes, bool]:
    depth = rng.choice((10, 900, 1100, 50_000))
    opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}")))
    name = rng.choice((b"messages", b"guided_json", b"logit_bias", b"nothing"))
    body = b'{"%s":' % name + opening * depth + b"1" + closing * depth + b"}"
    if rng.random() < 0.1:
        body = b" " * (rng.choice((1, 5)) << 20) + body
    return _request("POST", rng.choice(tuple(_PROMPTS)), body), True


def _half(rng: random.Random) -> tuple[bytes, bool]:
    path, body = _prompt(rng)
    data = _request("POST", path, json.dumps(body).encode())
    return data[: rng.randrange(len(data))], False


def _strange_head(rng: random.Random) -> tuple[bytes, bool]:
    """Paths, verbs and headers that are none, or far too much of them."""
    path, body = _prompt(rng)
    path = rng.choice(
        (path, "/" + "a" * 9000, "/%00", "/v1/models/%ff%fe", "//", "*", "/v1/sessions/%0a")
    )
    headers = rng.choice(
        (
            *(
                [],
                ["x: " + "y" * 40_000],
                [f"x{i}: y" for i in range(3000)],
                ["expect: 100-continue"],
            ),
            *(
                ["content-encoding: gzip"],
                ["origin: http://other.example"],
                ["authorization: \x01"],
            ),
            *(["content-type: text/\ud800"], ["content-length: 5"], ["upgrade: h2c"], [": x"]),
        )
    )
    data = _request(rng.choice(_VERBS), path, json.dumps(body).encode(), *headers)
    # A HEAD or CONNECT, or two lengths, leave open what is the end of it.
    return data, False


def _chunks(rng: random.Random) -> tuple[bytes, bool]:
    path, body = _prompt(rng)
    lines = (f"POST {path} HTTP/1.1", "host: x", "connection: close", "transfer-encoding: chunked")
    head = "\r\n".join([*lines, "", ""])
    text = json.dumps(body).encode()
    pieces = [text[at : at + 7] for at in range(0, len(text), 7)]
    data = head.encode() + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    if rng.random() < 0.5:
        return data + b"0\r\n\r\n", True
    return data + rng.choice(
        (b"zz\r\n", b"ffffffffffffffffff\r\n", b"-1\r\n", b"0\r\n\r\nGET")
    ), False


def _nothing_like_http(rng: random.Random) -> tuple[bytes, bool]:
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(60)
    return rng.choice(
        (hello, rng.randbytes(200), b"\r\n" * 500, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    ), False


_KINDS: tuple[Callable[[random.Random], tuple[bytes, bool]], ...] = (
    *(_damaged_value, _damaged_value, _damaged_value, _damaged_bytes, _deep_or_long),
    *(_half, _strange_head, _chunks, _nothing_like_http),
)
