"""The other ranks as processes of rank 0: started, watched, told what to do, ended.

A group is whole or it is gone: ranks meet inside of a step, and where one is missing the others
wait for ever.  So the first rank that is lost ends this process, whatever it is in the middle of.
Not here: what a rank computes, why the group is started.
"""

import atexit
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

from gpu_worker.parallel.link import Kind, Link
from protos.errors import RadixdError, first_line
from radixd.chassis.command import (
    LOST_EXIT_STATUS,
    USAGE_EXIT_STATUS,
    environment_for_child,
)

GRACE_S = 1.0
"""How long a rank keeps its own failure to itself: the death that caused it, or rank 0, which fails
for the same reason, is then what is said."""
_LEAVE_S = 5.0
"""For the others to end in, once rank 0 does."""

Ending = Callable[[int, str], None]
"""Ends this process with a status and a line that says why."""


def one_line(error: Exception) -> str:
    """What kind of error it is and what it says first."""
    return f"{type(error).__name__}: {first_line(error)}"


class GroupLost(RadixdError):
    """A rank is missing; what it would have computed cannot be had."""

    reason = "GROUP_LOST"


def end_process(status: int, message: str) -> None:
    """Says the message on stderr and ends this process at once, from whichever thread."""
    # Neither print nor sys.exit: the main thread may hold stderr's lock, and may be waiting in a
    # collective that never returns.  Log lines are out already, each was flushed.
    os.write(2, f"gpu_worker: {message}\n".encode())
    os._exit(status)


class Followers:
    """Ranks 1 and up; they run from construction on."""

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        *,
        end: Ending = end_process,
    ) -> None:
        """`commands`: for each rank what Python is to run; the number of its end of the link is put
        behind.  `end` is called by threads that watch, once, for the first rank that is lost."""
        self._end = end
        self._lock = threading.Lock()
        self._is_over = False
        self._ready = threading.Semaphore(0)
        self._lost = threading.Event()
        self._ranks = [self._start(command) for command in commands]
        for rank, (process, link) in enumerate(self._ranks, start=1):
            # Daemons: a process that ends does not wait for what it watches.
            threading.Thread(
                target=self._watch, args=(rank, process, link), name=f"rank_{rank}", daemon=True
            ).start()
        atexit.register(self.dismiss)

    @property
    def pids(self) -> list[int]:
        """Process ids of ranks 1 and up."""
        return [process.pid for process, _ in self._ranks]

    def await_ready(self) -> None:
        """Until every rank has loaded its part.

        Raises:
            GroupLost: a rank ended instead, and `end` returned.
        """
        for _ in self._ranks:
            self._ready.acquire()
        self._check()

    def send(self, kind: Kind, body: bytes = b"") -> None:
        """Tells every rank the same.

        Raises:
            GroupLost: a rank has ended, and `end` returned.
        """
        for _, link in self._ranks:
            try:
                link.send(kind, body)
            except OSError:
                self._lost.wait(GRACE_S)  # its watcher says it
                raise GroupLost("a tensor-parallel rank is lost") from None
        self._check()

    def fail(self, error: Exception) -> None:
        """Ends the group, as rank 0 cannot go on; a death that is the cause is what is said."""
        if not self._lost.wait(GRACE_S):
            self._lose(LOST_EXIT_STATUS, f"{_who(0)} failed: {one_line(error)}: the group stops")

    def dismiss(self) -> None:
        """Lets every rank leave, and waits for it."""
        with self._lock:
            self._is_over = True
        atexit.unregister(self.dismiss)
        for _, link in self._ranks:
            link.close()
        deadline = time.monotonic() + _LEAVE_S
        for process, _ in self._ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        for process, _ in self._ranks:
            process.kill()
            process.wait()

    def _check(self) -> None:
        if self._lost.is_set():
            raise GroupLost("a tensor-parallel rank is lost")

    @staticmethod
    def _start(command: Sequence[str]) -> tuple[subprocess.Popen[bytes], Link]:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, *command, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=2,  # whatever a library prints belongs to the log
                env=environment_for_child(),
                pass_fds=[theirs.fileno()],
            )
        return process, Link(ours)

    def _watch(self, rank: int, process: subprocess.Popen[bytes], link: Link) -> None:
        who = _who(rank)
        while (message := link.receive()) is not None:
            kind, body = message
            if kind == Kind.READY:
                self._ready.release()
            elif kind == Kind.REFUSED:
                self._lose(USAGE_EXIT_STATUS, f"{body.decode()} ({who})")
            elif kind == Kind.FAILED:
                self._lose(LOST_EXIT_STATUS, f"{who} failed: {body.decode()}: the group stops")
        status = process.wait()
        self._lose(LOST_EXIT_STATUS, f"{who} ended with exit code {status}: the group stops")

    def _lose(self, status: int, message: str) -> None:
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
        for process, _ in self._ranks:
            process.kill()
        self._end(status, message)
        # Only in tests does it return.
        self._lost.set()
        for _ in self._ranks:
            self._ready.release()


def _who(rank: int) -> str:
    return f"tensor-parallel rank {rank}"
