"""Bytes between one scheduler and its worker over ZeroMQ; the only file that knows ZeroMQ.

Knows frames, sockets and peers, never what the bytes mean: `protos.wire` does.  Local sockets lie
in a folder of mode 0700; TCP stays on the loopback, as it is neither encrypted nor authenticated.
"""

import contextlib
import fcntl
import ipaddress
import os
import socket
import time
from pathlib import Path

import zmq
from zmq.utils.monitor import recv_monitor_message

from protos.errors import InvalidRequest
from protos.wire import MAX_MESSAGE_BYTES
from radixd.chassis.run_folder import make_private_folder

MAX_IPC_PATH_BYTES = 107
"""What the kernel leaves for the path of a local socket."""

HIGH_WATER_MARK = 64
"""Messages a side may leave unread.  Plans in flight are two, so more means that it hangs."""

HEARTBEAT_INTERVAL_MS = 5_000
HEARTBEAT_TIMEOUT_MS = 30_000
"""Answered by ZeroMQ's own thread, so a step that holds Python for a minute does not trip it; a
stopped process does, and late enough that a short stop goes unpunished."""

LINGER_MS = 200
"""A worker's last words (a Fault) may still leave; nothing waits longer than this."""

_SUSPICION_NS = 200_000_000
_SUSPICIOUS_POLL_MS = 5


class WorkerChannel:
    """The worker's end.  Connects now or later, and again by itself when the scheduler returns."""

    def __init__(self, endpoint: str) -> None:
        """Starts connecting.

        Raises:
            InvalidRequest: names the endpoint and what is wrong with it.
        """
        _prepare(endpoint, binds=False)
        self._context = zmq.Context()
        self._socket = _socket(self._context, zmq.DEALER, endpoint)
        self._socket.linger = LINGER_MS
        self._socket.reconnect_ivl = 50
        self._socket.reconnect_ivl_max = 200
        self._socket.connect(endpoint)
        self.num_dropped = 0
        """Messages of the wrong shape received, and messages not sent as too many were unread."""

    def send(self, data: bytes) -> None:
        """Queues a message without blocking; drops it when too many are unread already."""
        try:
            self._socket.send(data, zmq.NOBLOCK)
        except zmq.Again:
            self.num_dropped += 1

    def receive(self, timeout_ms: int) -> bytes | None:
        """The next message, or None when none came in time."""
        deadline_ns = time.monotonic_ns() + timeout_ms * 1_000_000
        while True:
            left_ms = max(0, (deadline_ns - time.monotonic_ns()) // 1_000_000)
            if not self._socket.poll(left_ms):
                return None
            frames = self._socket.recv_multipart(zmq.NOBLOCK)
            if len(frames) == 1 and frames[0]:
                return frames[0]
            self.num_dropped += 1

    def close(self) -> None:
        """Disconnects; safe to call twice."""
        self._socket.close()
        self._context.term()


class SchedulerChannel:
    """The scheduler's end: any number of peers may connect; each is named by opaque bytes.

    All but `wake` belong to one thread.
    """

    def __init__(self, endpoint: str) -> None:
        """Binds.

        Raises:
            InvalidRequest: names the endpoint and what is wrong with it (taken, too long, not ours,
                not on the loopback).
        """
        self._lock = _prepare(endpoint, binds=True)
        self._context = zmq.Context()
        self._socket = _socket(self._context, zmq.ROUTER, endpoint)
        self._socket.router_mandatory = 1
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._poller = zmq.Poller()
        for readable in (self._socket, self._monitor, self._wake_reader.fileno()):
            self._poller.register(readable, zmq.POLLIN)
        self._suspicious_until_ns = 0
        self._closed = False
        self._path: Path | None = None
        self.num_malformed = 0
        """Messages dropped because they were not one frame with something in it."""
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise InvalidRequest("worker_endpoint", f"{endpoint}: {error.strerror}") from None
        if endpoint.startswith("ipc://"):
            self._path = Path(endpoint.removeprefix("ipc://"))
            self._path.chmod(0o600)

    def send(self, peer: bytes, data: bytes) -> bool:
        """Queues a message without blocking.

        False: the peer is gone, or has left so many messages unread that it might as well be.
        """
        try:
            self._socket.send_multipart([peer, data], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                return False
            raise
        return True

    def receive(self, timeout_ms: int) -> tuple[bytes, bytes] | None:
        """The next (peer, message); None when none came in time, on a wake or a disconnection."""
        if (message := self._take()) is not None:
            return message
        if self.peer_may_be_gone():
            timeout_ms = min(timeout_ms, _SUSPICIOUS_POLL_MS)
        ready = dict(self._poller.poll(timeout_ms))
        if self._monitor in ready:
            self._note_disconnections()
        if self._wake_reader.fileno() in ready:
            with contextlib.suppress(BlockingIOError):
                self._wake_reader.recv(4096)
        return self._take() if self._socket in ready else None

    def wake(self) -> None:
        """Makes `receive` return now, or at its next call.  From any thread."""
        # A full buffer means that a wake is already on its way; a closed one, that none matters.
        with contextlib.suppress(BlockingIOError, OSError):
            self._wake_writer.send(b"\0")

    def peer_may_be_gone(self) -> bool:
        """Some peer disconnected a moment ago; sending to yours shows whether it was that one.

        Stays true for a fifth of a second, because the event may precede the unroutable state;
        `receive` waits only a few milliseconds meanwhile.
        """
        return time.monotonic_ns() < self._suspicious_until_ns

    def close(self) -> None:
        """Unbinds and gives the endpoint free; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()
        self._context.term()
        self._wake_reader.close()
        self._wake_writer.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)

    def _take(self) -> tuple[bytes, bytes] | None:
        while True:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return None
            if len(frames) == 2 and frames[1]:
                return frames[0], frames[1]
            self.num_malformed += 1

    def _note_disconnections(self) -> None:
        with contextlib.suppress(zmq.Again):
            while True:
                recv_monitor_message(self._monitor, zmq.NOBLOCK)
                self._suspicious_until_ns = time.monotonic_ns() + _SUSPICION_NS


def _socket(context: zmq.Context[zmq.Socket[bytes]], kind: int, endpoint: str) -> zmq.Socket[bytes]:
    made = context.socket(kind)
    made.linger = 0
    made.sndhwm = made.rcvhwm = HIGH_WATER_MARK
    made.maxmsgsize = MAX_MESSAGE_BYTES
    made.heartbeat_ivl = HEARTBEAT_INTERVAL_MS
    made.heartbeat_timeout = HEARTBEAT_TIMEOUT_MS
    if endpoint.startswith("tcp://["):
        made.ipv6 = True
    return made


def _prepare(endpoint: str, *, binds: bool) -> int | None:
    """Checks an endpoint, makes its folder; the lock's descriptor when it is to be bound."""
    if endpoint.startswith("ipc://"):
        return _prepare_ipc(Path(endpoint.removeprefix("ipc://")), binds=binds)
    if endpoint.startswith("tcp://"):
        if binds:
            _require_loopback(endpoint)
        return None
    raise InvalidRequest("worker_endpoint", f"{endpoint!r} starts with neither ipc:// nor tcp://")


def _prepare_ipc(path: Path, *, binds: bool) -> int | None:
    if not path.is_absolute():
        raise InvalidRequest("worker_endpoint", f"ipc://{path} is not an absolute path")
    size = len(os.fsencode(path))
    if size > MAX_IPC_PATH_BYTES:
        raise InvalidRequest(
            "run_dir",
            f"{path} is {size} bytes long, a local socket takes {MAX_IPC_PATH_BYTES}; "
            "choose a shorter folder",
        )
    make_private_folder(path.parent)
    return _lock(path) if binds else None


def _lock(path: Path) -> int:
    # ZeroMQ lets a second bind steal the path without a word; this lock gives it one.
    lock_path = path.with_name(path.name + ".lock")
    descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 32).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        raise InvalidRequest(
            "worker_endpoint",
            f"{path} is held by another scheduler (process {holder}); stop it, or choose another "
            "scheduler port or run folder",
        ) from None
    os.truncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode("ascii"))
    return descriptor


def _require_loopback(endpoint: str) -> None:
    host = endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    try:
        addresses = [ipaddress.ip_address(host)]
    except ValueError:
        addresses = [ipaddress.ip_address("127.0.0.1")] if host == "localhost" else []
    if not addresses or not all(address.is_loopback for address in addresses):
        raise InvalidRequest(
            "worker_endpoint",
            f"{endpoint}: the worker's port has neither encryption nor authentication yet, so it "
            "listens on 127.0.0.1, [::1] or ipc:// only",
        )
