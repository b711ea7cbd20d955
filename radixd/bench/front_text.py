"""A long text through either door, and what a stream beside it feels."""

import http.client
import json
import time
from typing import Any

import grpc

from protos.radixd.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from radixd.bench.front_figures import Stamps, delays_ms, gaps_ms, spread
from radixd.cli.client import CHANNEL_OPTIONS, CommandError

TIMEOUT_S = 120.0
_LINE = "The quick brown fox jumps over the lazy dog, 12 times in 1999.\n"


def tokenize(door: str, host: str, port: int, *, num_bytes: int) -> tuple[int, int]:
    """Has the text tokenised; when the request was sent and when its answer had come, in
    nanoseconds.

    Raises:
        CommandError: it was refused.
    """
    text = (_LINE * (num_bytes // len(_LINE) + 1))[:num_bytes]
    begin_ns = time.monotonic_ns()
    if door == "sse":
        _over_http(host, port, json.dumps({"prompt": text}).encode())
    else:
        _over_grpc(host, port, text)
    return begin_ns, time.monotonic_ns()


def _over_http(host: str, port: int, body: bytes) -> None:
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("POST", "/tokenize", body, {"content-type": "application/json"})
        reply = connection.getresponse()
        data = reply.read()
    finally:
        connection.close()
    if reply.status != http.HTTPStatus.OK:
        raise CommandError(f"/tokenize: {data[:200].decode(errors='replace')}")


def _over_grpc(host: str, port: int, text: str) -> None:
    with grpc.insecure_channel(f"{host}:{port}", options=CHANNEL_OPTIONS) as channel:
        stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            stub.Tokenize(tokenizer_pb2.TokenizeRequest(text=text), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            raise CommandError(f"Tokenize: {error}") from None


def long_text_figures(
    load: dict[str, Any], stamps: Stamps, span: tuple[int, int]
) -> dict[str, Any]:
    """What a stream felt of a text that was tokenised in this span of time."""
    arrivals = {int(stream): came for stream, came in load["arrivals"].items()}
    before = load["begin"]["now_ns"], span[0]
    return {
        "seconds": round((span[1] - span[0]) / 1e9, 3),
        "gap_ms": spread(gaps_ms(arrivals, span)),
        "delay_ms": spread(delays_ms(arrivals, stamps, span)),
        "gap_before_ms": spread(gaps_ms(arrivals, before)),
    }
