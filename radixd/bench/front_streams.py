"""The two doors as a load sees them: requests as bytes, and bytes that came as events.

Just enough of HTTP/1.1, HTTP/2 and gRPC for our own server without encryption.  What is done while
time counts is cheap, so that the client's own work does not become part of the figures: texts and
messages are read afterwards.  Not here: sockets, clocks.
"""

import json
import re
import struct
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from protos.radixd.v1 import inference_pb2


class Event(NamedTuple):
    """Something that came for a stream."""

    stream: int
    data: bytes
    """A message; empty where the stream has ended."""


class Lines(Protocol):
    """What a door needs of connections, and what comes in on them."""

    def connections(self) -> Sequence[bytes]:
        """What to send first on each connection, and all on it."""
        ...

    def feed(self, connection: int, data: bytes) -> tuple[list[Event], bytes]:
        """The events in these bytes, and what to answer at once."""
        ...

    def num_tokens(self, data: bytes) -> int:
        """Tokens in the data of an event."""
        ...


def prompt_of(stream: int) -> str:
    """A prompt that names its stream, for the stamps of the worker."""
    return f"stream {stream:06d}; and then?"


class SseLines:
    """POST /v1/chat/completions with `stream`, each on a connection of its own."""

    _EVENT = re.compile(rb"data: (.*)\r?\n\r?\n")

    def __init__(self, streams: Sequence[int], *, max_tokens: int) -> None:
        self._streams = list(streams)
        self._max_tokens = max_tokens
        self._rests = [b""] * len(streams)

    def connections(self) -> list[bytes]:
        """A request each."""
        return [self._request(stream) for stream in self._streams]

    def _request(self, stream: int) -> bytes:
        body = json.dumps(
            {
                "messages": [{"role": "user", "content": prompt_of(stream)}],
                "max_tokens": self._max_tokens,
                "ignore_eos": True,
                "temperature": 0,
                "stream": True,
            }
        ).encode()
        return (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/json\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(body), body)
        )

    def feed(self, connection: int, data: bytes) -> tuple[list[Event], bytes]:
        """The texts behind `data:`; what an event is cut into by chunks is not looked at."""
        data = self._rests[connection] + data
        events, end = [], 0
        for found in self._EVENT.finditer(data):
            text, end = found[1], found.end()
            events.append(Event(self._streams[connection], b"" if text == b"[DONE]" else text))
        self._rests[connection] = data[end:]
        return events, b""

    def num_tokens(self, data: bytes) -> int:
        """Characters of the content: the fake worker says one with each token."""
        return sum(len(each["delta"].get("content", "")) for each in json.loads(data)["choices"])


_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_INITIAL_WINDOW_SIZE, _LARGEST_WINDOW, _FIRST_WINDOW = 4, (1 << 31) - 1, 65_535
_METHOD_POST, _SCHEME_HTTP = b"\x83", b"\x86"
"""Headers that HTTP/2 has numbers for (RFC 7541, appendix A); below, names."""
_PATH, _AUTHORITY, _CONTENT_TYPE, _NEW_NAME = b"\x04", b"\x01", b"\x0f\x10", b"\x00"


class GrpcLines:
    """InferenceService.Generate, all calls on one connection, as RFC 9113 and gRPC have it."""

    _HEAD = struct.Struct(">BHBBI")
    """A frame's: length in 24 bits, kind, flags, stream."""

    def __init__(self, streams: Sequence[int], *, max_tokens: int) -> None:
        self._streams = list(streams)
        self._max_tokens = max_tokens
        self._rest = b""
        self._messages = [b""] * len(streams)
        """Of each call, what came of a message that is not complete."""

    def connections(self) -> list[bytes]:
        """The connection's own frames, then headers and message of every call."""
        window = struct.pack(">HI", _INITIAL_WINDOW_SIZE, _LARGEST_WINDOW)
        more = struct.pack(">I", _LARGEST_WINDOW - _FIRST_WINDOW)
        frames = [_PREFACE, _frame(_SETTINGS, 0, 0, window), _frame(_WINDOW_UPDATE, 0, 0, more)]
        for index, stream in enumerate(self._streams):
            message = self._request(stream).SerializeToString()
            data = struct.pack(">BI", 0, len(message)) + message
            frames.append(_frame(_HEADERS, _END_HEADERS, 2 * index + 1, _REQUEST_HEADERS))
            frames.append(_frame(_DATA, _END_STREAM, 2 * index + 1, data))
        return [b"".join(frames)]

    def _request(self, stream: int) -> inference_pb2.GenerateRequest:
        return inference_pb2.GenerateRequest(
            text=prompt_of(stream),
            sampling=inference_pb2.SamplingParams(
                temperature=0.0, max_tokens=self._max_tokens, ignore_eos=True
            ),
        )

    def feed(self, connection: int, data: bytes) -> tuple[list[Event], bytes]:
        """The messages that are complete now, and the calls that have ended."""
        data, at = self._rest + data, 0
        events: list[Event] = []
        answers = b""
        while len(data) - at >= 9:
            high, low, kind, flags, number = self._HEAD.unpack_from(data, at)
            end = at + 9 + (high << 16 | low)
            if end > len(data):
                break
            payload, at = data[at + 9 : end], end
            if kind == _DATA:
                events += self._take(number >> 1, payload)
            if kind in (_SETTINGS, _PING) and not flags & _ACK:
                answers += _frame(kind, _ACK, 0, payload if kind == _PING else b"")
            is_end = kind in (_DATA, _HEADERS) and flags & _END_STREAM
            if is_end or kind == _RESET:
                events.append(Event(self._streams[number >> 1], b""))
            assert kind != _GOAWAY, payload
        self._rest = data[at:]
        return events, answers

    def _take(self, index: int, payload: bytes) -> list[Event]:
        data, events = self._messages[index] + payload, []
        while len(data) >= 5 and len(data) >= (end := 5 + int.from_bytes(data[1:5], "big")):
            events.append(Event(self._streams[index], data[5:end]))
            data = data[end:]
        self._messages[index] = data
        return events

    def num_tokens(self, data: bytes) -> int:
        """Ids in the message."""
        return len(inference_pb2.GenerateResponse.FromString(data).token_ids)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    high, low = len(payload) >> 16, len(payload) & 0xFFFF
    return struct.pack(">BHBBI", high, low, kind, flags, stream) + payload


def _text(text: bytes) -> bytes:
    assert len(text) < 127  # longer ones have longer lengths
    return bytes([len(text)]) + text


_REQUEST_HEADERS = (
    _METHOD_POST
    + _SCHEME_HTTP
    + _PATH
    + _text(b"/radixd.v1.InferenceService/Generate")
    + _AUTHORITY
    + _text(b"localhost")
    + _CONTENT_TYPE
    + _text(b"application/grpc")
    + _NEW_NAME
    + _text(b"te")
    + _text(b"trailers")
)

DOORS: dict[str, type[SseLines] | type[GrpcLines]] = {"grpc": GrpcLines, "sse": SseLines}
"""By the name they have in a report."""
