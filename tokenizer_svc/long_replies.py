"""Replies of millions of ids, written in a thread, a slice at a time and with a pause after each.

A library writes a whole list in one call, during which no other thread runs Python.  A thread that
runs on without a pause gives way only every 5 ms, each time that the event loop comes back from
the system: several times for each token of a stream.
"""

import time
from collections.abc import Iterator, Sequence

from protos.radixd.v1 import tokenizer_pb2 as pb

SLICE_IDS = 1 << 12
"""Less than a millisecond."""
_PAUSE_S = 1e-6
"""Whoever waits gets its turn; the system makes more of it."""


def tokenize_response(ids: Sequence[int]) -> bytes:
    """A TokenizeResponse in bytes: messages one after the other are one message."""
    return b"".join([pb.TokenizeResponse(ids=part).SerializeToString() for part in _slices(ids)])


def json_ids(ids: Sequence[int]) -> bytes:
    """A JSON array."""
    return b"[%b]" % b",".join([",".join(map(str, part)).encode() for part in _slices(ids)])


def _slices(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(ids), SLICE_IDS):
        if start:
            time.sleep(_PAUSE_S)
        yield ids[start : start + SLICE_IDS]
