"""Replies of millions of numbers, written in a thread, a slice at a time with a pause after each.

A library writes a whole list in one call, during which no other thread runs Python.  A thread that
runs on without a pause gives way only every 5 ms, each time that the event loop comes back from
the system: several times for each token of a stream.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from protos.radixd.v1 import tokenizer_pb2 as pb

SLICE_IDS = 1 << 12
"""Less than a millisecond."""
SLICE_ROWS = 1 << 4
"""Of tokens with the likeliest in their places: the same."""
SLICE_PIECES = 1 << 8
"""Of an output: the same."""
_PAUSE_S = 1e-6
"""Whoever waits gets its turn; the system makes more of it."""

T = TypeVar("T")


def in_slices(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """All of them, so many at a time, with a pause between."""
    rest = iter(items)
    part = list(islice(rest, size))
    while part:
        yield part
        part = list(islice(rest, size))
        if part:
            time.sleep(_PAUSE_S)


def tokenize_response(ids: Sequence[int]) -> bytes:
    """A TokenizeResponse in bytes: messages one after the other are one message."""
    slices = in_slices(ids, SLICE_IDS)
    return b"".join([pb.TokenizeResponse(ids=part).SerializeToString() for part in slices])


def json_ids(ids: Sequence[int]) -> bytes:
    """A JSON array."""
    slices = in_slices(ids, SLICE_IDS)
    return b"[%b]" % b",".join([",".join(map(str, part)).encode() for part in slices])
