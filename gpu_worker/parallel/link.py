"""Whole messages between rank 0 and one other rank, over a pair of sockets.

An end that is gone shows at once as the end of the stream, however its process died.  Not here:
what a message does.
"""

import contextlib
import socket
import struct
from enum import IntEnum

_FRAME = struct.Struct("<BI")


class Kind(IntEnum):
    """What a message is; its body is text, or for PLAN an encoded envelope."""

    PLAN = 1
    """From rank 0: execute this."""
    RESET = 2
    """From rank 0: forget all rows and slots."""
    READY = 3
    """To rank 0: the model is loaded."""
    REFUSED = 4
    """To rank 0: the start is impossible; why."""
    FAILED = 5
    """To rank 0: a step broke down underway; why."""


class Link:
    """One end.  Any thread may send or receive, but only one at a time each way."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._stream = end.makefile("rb")

    def send(self, kind: Kind, body: bytes = b"") -> None:
        """Hands a message over; waits while the other end's buffer is full.

        Raises:
            OSError: the other end is gone.
        """
        self._socket.sendall(_FRAME.pack(kind, len(body)) + body)

    def receive(self) -> tuple[Kind, bytes] | None:
        """The next message; None once the other end is gone, a message cut short included.  Who
        receives reads until then."""
        message = self._read()
        if message is None:
            self._stream.close()
            self.close()
        return message

    def close(self) -> None:
        """Lets the other end see that this one leaves; who still receives sees it as well."""
        # The other end may have been the first to leave.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read(self) -> tuple[Kind, bytes] | None:
        try:
            head = self._stream.read(_FRAME.size)
            if len(head) < _FRAME.size:
                return None
            kind, num_bytes = _FRAME.unpack(head)
            body = self._stream.read(num_bytes)
        except OSError:
            return None
        return (Kind(kind), body) if len(body) == num_bytes else None
