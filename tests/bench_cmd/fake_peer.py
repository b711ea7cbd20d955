"""A server with the OpenAI API that says what it is told to, in the ways that servers have."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Chunk = dict[str, Any]
Say = Callable[[Chunk], Iterator[Chunk]]
"""From the body of a request to the chunks of its answer."""

MODEL = "tiny"


def choice(text: str, **more: Any) -> Chunk:
    return {"object": "text_completion", "choices": [{"index": 0, "text": text}]} | more


def usage(num_tokens: int, **more: Any) -> Chunk:
    return {"completion_tokens": num_tokens, "prompt_tokens": 9} | more


def says_nothing_of_tokens(body: Chunk) -> Iterator[Chunk]:
    """A token a chunk, and the usage of all at the end."""
    for _ in range(body["max_tokens"]):
        yield choice("x")
    yield {"choices": [], "usage": usage(body["max_tokens"])}


def counts_in_usage(body: Chunk) -> Iterator[Chunk]:
    """Two tokens a chunk as far as they go, the second chunk without text, as vLLM."""
    so_far = 0
    while so_far < body["max_tokens"]:
        text = "" if so_far == 2 else "xy"
        so_far = min(so_far + 2, body["max_tokens"])
        yield choice(text, usage=usage(so_far))
    details = {"cached_tokens": 8}
    yield {"choices": [], "usage": usage(so_far, prompt_tokens_details=details)}


def counts_in_timings(body: Chunk) -> Iterator[Chunk]:
    """The first token without a chunk of its own, the last chunk without a token, as llama.cpp."""
    for so_far in range(2, body["max_tokens"] + 1):
        yield choice("x", timings={"predicted_n": so_far})
    last = {"predicted_n": body["max_tokens"]}
    details = {"cached_tokens": 3}
    yield choice("", timings=last, usage=usage(body["max_tokens"], prompt_tokens_details=details))


class _Http(ThreadingHTTPServer):
    request_queue_size = 64  # as many as connect at once


class FakePeer:
    """The server on a free port of the loopback; `with` starts and ends it."""

    def __init__(self, say: Say = says_nothing_of_tokens) -> None:
        self.say = say
        self.requests: list[Chunk] = []
        self.refusal: tuple[int, Chunk] | None = None
        self.breaks_after: int | None = None
        """Chunks after which the connection is closed."""
        self.says_done = True
        self.content_type = "text/event-stream; charset=utf-8"
        self.models: Any = {"object": "list", "data": [{"id": MODEL}, {"id": "other"}]}
        self.pause_s = 0.0
        self.on_request: Callable[[], object] = lambda: None
        self._http = _Http(("127.0.0.1", 0), _handler_of(self))
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> "FakePeer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


def _handler_of(peer: FakePeer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

        def do_GET(self) -> None:
            found = self.path == "/v1/models"
            self._reply(200 if found else 404, peer.models if found else {"detail": "Not Found"})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            peer.requests.append(body)
            peer.on_request()
            if peer.refusal is not None:
                self._reply(*peer.refusal)
                return
            self.send_response(200)
            self.send_header("content-type", peer.content_type)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # whoever asked has left
                self._stream(body)

        def _stream(self, body: Chunk) -> None:
            for number, chunk in enumerate(peer.say(body)):
                if number == peer.breaks_after:
                    self.close_connection = True
                    return
                time.sleep(peer.pause_s)
                self._write(f"data: {json.dumps(chunk)}\n\n")
            if peer.says_done:
                self._write("data: [DONE]\n\n")
            self._write("")

        def _reply(self, status: int, value: Any) -> None:
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _write(self, text: str) -> None:
            data = text.encode()
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    return Handler
