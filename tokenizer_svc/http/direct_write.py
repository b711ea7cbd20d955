"""A part of a reply's body written in one call, past the steps of ASGI, as every token is one.

The connection offers it in the scope of a request; where none does (another server, a test),
everything goes the long way.
"""

from collections.abc import Callable

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

DirectWriter = Callable[[bytes], bool]
"""Writes a part of the body, not empty, now; False: it cannot, and `send` waits until it can."""

_EXTENSION = "radixd.direct_write"


def offer_direct_write(cycle: RequestResponseCycle) -> None:
    """Lets the reply of this request be written directly once it has begun."""

    def write(data: bytes) -> bool:
        if cycle.disconnected:
            return True  # nobody reads it, as with `send`
        # Before the headers are out, nobody knows of chunks.
        if cycle.flow.write_paused or cycle.response_complete or not cycle.chunked_encoding:
            return False
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    cycle.scope["extensions"] = {**(cycle.scope.get("extensions") or {}), _EXTENSION: write}  # type: ignore[dict-item]


def direct_writer(scope: Scope) -> DirectWriter:
    """That of this request's connection."""
    found: DirectWriter = (scope.get("extensions") or {}).get(_EXTENSION, _never)
    return found


def _never(data: bytes) -> bool:
    return False
