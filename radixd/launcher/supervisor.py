"""Keeps the three services running as one: start, readiness, watch, end.

Knows their names, order and readiness, nothing of what they do.
"""

import contextlib
import queue
import shutil
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType, MappingProxyType, TracebackType
from typing import Any

from protos.errors import RadixdError
from radixd.chassis.command import LOST_EXIT_STATUS, argv_from_settings
from radixd.chassis.grpc_server import join_address
from radixd.chassis.settings import Settings
from radixd.launcher.child import Child
from radixd.launcher.files import check_files
from radixd.launcher.log_line import brief, for_machine, for_terminal, is_progress, preheat_failure
from radixd.launcher.ports import settle_ports
from radixd.launcher.progress import Progress
from radixd.launcher.stack_readiness import StackReadiness

SCHEDULER, WORKER, FRONT = "scheduler_svc", "gpu_worker", "tokenizer_svc"

STREAMS_GRACE_S = 10.0
"""How long the front lets streams finish that are under way; new calls are refused meanwhile."""
FRONT_GRACE_S = STREAMS_GRACE_S + 5.0
"""The same, and the front's own end."""
BACKEND_GRACE_S = 10.0
BACKEND_GONE_GRACE_S = 1.0
"""For a step that is under way."""
MAX_WORKER_RESTARTS = 3
RESTART_WINDOW_S = 600.0
_LOOK_EVERY_S = 0.1
"""How often readiness is asked for during the start."""


class StartError(RadixdError):
    """A service ended, or time ran out, before all were ready."""


class Supervisor:
    """All services of one server.  Start, wait and stop it from one thread, best the main one.

    The kernel kills the children when that thread ends.  As a context manager it starts on entry
    and stops on exit.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        restart_worker: bool = True,
        echo: Callable[[str], None],
        modules: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`echo` gets each line for people, from any thread but never from two at once.

        `modules` names other modules to run as a service; a service is its own module otherwise.
        """
        self.settings = settings
        """After `start`: with the ports in force."""
        self._restart_worker = restart_worker and settings.restart_worker
        self._modules = modules
        self._progress = Progress(echo)
        self._children: dict[str, Child] = {}
        # Not an Event: a SimpleQueue may be written from a signal handler.
        self._changes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._num_signals = 0
        self._ready = False
        self._preheat_failures: list[str] = []
        self._restarts: deque[float] = deque()
        self._own_folder: Path | None = None
        self._handlers: dict[int, Any] = {}

    @property
    def address(self) -> str:
        """Where clients on this machine reach the public port, as host:port."""
        return _reachable(self.settings.host, self.settings.port)

    @property
    def target(self) -> str:
        """Where they are let in without a certificate: there, or beside it where it takes one."""
        socket = self.settings.probe_socket
        return self.address if socket is None else f"unix:{socket}"

    @property
    def http_url(self) -> str | None:
        """Where they reach HTTP; None: there is none."""
        if self.settings.http_port < 0:
            return None
        host = self.settings.http_host or self.settings.host
        scheme = "http" if self.settings.tls_cert is None else "https"
        return f"{scheme}://{_reachable(host, self.settings.http_port)}"

    def pids(self) -> dict[str, int]:
        """Process id of each running service, by name."""
        return {
            name: child.pid for name, child in self._children.items() if child.exit_status is None
        }

    def peak_rss_bytes(self) -> dict[str, int]:
        """Highest resident memory of each running service, by name."""
        return {
            name: child.peak_rss_bytes
            for name, child in self._children.items()
            if child.exit_status is None
        }

    def start(self) -> None:
        """Starts everything; returns when it is ready, or when Ctrl-C or SIGTERM came first.

        Raises:
            RadixdError: a file of the settings is wrong, a port is taken, a service ended before
                it was ready, or time ran out.  Nothing is left running.
        """
        check_files(self.settings)
        if not self.settings.port and self.settings.run_dir is None:
            # A server on any port is a passing one, and leaves no folder behind.
            self._own_folder = Path(tempfile.mkdtemp(prefix="radixd-"))
            self.settings = self.settings.model_copy(update={"run_dir": self._own_folder})
        self.settings = settle_ports(self.settings)
        self._catch_signals()
        try:
            for name in (SCHEDULER, WORKER, FRONT):
                self._spawn(name)
            self._await_readiness()
        except BaseException:
            self.stop()
            raise
        if self._ready:
            self._say_ready()

    def wait(self) -> int:
        """Until Ctrl-C or SIGTERM (returns 0), or until a service ends (returns 1).

        A worker that was lost is restarted, as streams survive that.
        """
        while not self._num_signals:
            dead = self._dead_child()
            if dead is None:
                # Short: a signal that comes just before this begins is seen when it ends, and a
                # second one in the meantime would count as the same.
                with contextlib.suppress(queue.Empty):
                    self._changes.get(timeout=_LOOK_EVERY_S)
            elif self._may_restart(dead):
                self._progress.say(f"{dead.describe_end()}\nradixd starts it again")
                self._spawn(dead.name)
            else:
                self._progress.say(f"{dead.describe_end()}\n{self._why_it_ends(dead)}")
                return 1
        self._progress.say(
            f"radixd is stopping: streams have {STREAMS_GRACE_S:g} s to finish; "
            "Ctrl-C again ends now"
        )
        return 0

    def stop(self) -> None:
        """Ends the front, which lets streams finish, then the rest; safe to call twice."""
        # Streams can finish only while those behind them live.
        front_grace_s = BACKEND_GONE_GRACE_S if self._dead_child() else FRONT_GRACE_S
        for names, grace_s in (((FRONT,), front_grace_s), ((WORKER, SCHEDULER), BACKEND_GRACE_S)):
            self._end([self._children[name] for name in names if name in self._children], grace_s)
        self._children.clear()
        self._release_signals()
        if self._own_folder is not None:
            shutil.rmtree(self._own_folder, ignore_errors=True)
            self._own_folder = None

    def __enter__(self) -> "Supervisor":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    # --- inside -----------------------------------------------------------------------------------

    def _spawn(self, name: str) -> None:
        self._children[name] = Child(
            name,
            [self._modules.get(name, name), *argv_from_settings(self.settings)],
            on_line=self._forward,
            on_end=self._changes.put,
        )

    def _await_readiness(self) -> None:
        started = time.monotonic()
        limit_s = self.settings.start_timeout_s
        with StackReadiness(self.settings, self.target) as readiness:
            while not self._num_signals:
                if (dead := self._dead_child()) is not None:
                    raise StartError(dead.describe_end())
                missing = readiness.missing()
                if missing is None:
                    self._ready = True
                    return
                waited_s = time.monotonic() - started
                if limit_s and waited_s > limit_s:
                    raise StartError(f"not ready after {limit_s:g} s: {missing}")
                self._progress.show(f"{missing}, {waited_s:.0f} s{self._last_words(missing)}")
                with contextlib.suppress(queue.Empty):
                    self._changes.get(timeout=_LOOK_EVERY_S)

    def _last_words(self, missing: str) -> str:
        # The front is the last to come, and has something to say while it preheats.
        speaker = FRONT if FRONT in missing else WORKER
        lines = self._children[speaker].last_lines
        return f": {brief(lines[-1])}" if lines else ""

    def _dead_child(self) -> Child | None:
        return next(
            (child for child in self._children.values() if child.exit_status is not None), None
        )

    def _may_restart(self, child: Child) -> bool:
        status = child.exit_status
        if child.name != WORKER or not self._restart_worker or not _is_lost(status):
            return False
        now = time.monotonic()
        while self._restarts and now - self._restarts[0] > RESTART_WINDOW_S:
            self._restarts.popleft()
        if len(self._restarts) >= MAX_WORKER_RESTARTS:
            return False
        self._restarts.append(now)
        child.wait(timeout_s=1.0)
        return True

    def _why_it_ends(self, dead: Child) -> str:
        killed = dead.name == WORKER and _is_lost(dead.exit_status)
        if killed and self._restart_worker:
            minutes = RESTART_WINDOW_S / 60
            return f"restarted {MAX_WORKER_RESTARTS} times in {minutes:g} minutes: radixd ends"
        return "radixd ends with it"

    def _end(self, children: list[Child], grace_s: float) -> None:
        for child in children:
            child.terminate()
        deadline = time.monotonic() + grace_s
        for child in children:
            while not child.wait(timeout_s=_LOOK_EVERY_S):
                # A second Ctrl-C means: now.
                if time.monotonic() > deadline or self._num_signals > 1:
                    self._progress.say(f"{child.name} does not end; killing it")
                    child.kill()
                    child.wait(timeout_s=BACKEND_GRACE_S)
                    break
            # Whatever it started goes with it.
            child.kill()

    def _forward(self, name: str, line: str) -> None:
        if not self._ready and (failure := preheat_failure(line)) is not None:
            self._preheat_failures.append(failure)
        if self._progress.is_terminal and is_progress(line):
            return  # the live line draws it
        render = for_terminal if self._progress.is_terminal else for_machine
        self._progress.say(render(name, line))

    def _say_ready(self) -> None:
        address, is_plain = self.address, self.settings.tls_cert is None
        target = "" if address == "127.0.0.1:50051" and is_plain else f" --target {self.target}"
        plaintext, scheme = ("-plaintext ", "") if is_plain else ("", "grpcs://")
        self._progress.say(
            f"radixd is ready: gRPC on {scheme}{address}"
            + (f", HTTP on {self.http_url}\n" if self.http_url else "\n")
            + f"  radixd chat{target}\n"
            f'  radixd generate{target} --prompt "The capital of France is"\n'
            f"  grpcurl {plaintext}{address} list\n"
            "  Ctrl-C ends it"
            + "".join(f"\n  not as --preheat asked, {each}" for each in self._preheat_failures)
        )

    def _catch_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Under nohup the hang-up is to be ignored; a shell's `&` ignores Ctrl-C, not kill -INT.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, self._note_signal)

    def _release_signals(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()

    def _note_signal(self, number: int, frame: FrameType | None) -> None:
        self._num_signals += 1
        self._changes.put("signal")


def _is_lost(status: int | None) -> bool:
    """Whether a service was killed, itself or a process that it cannot do without."""
    return status is not None and (status < 0 or status == LOST_EXIT_STATUS)


def _reachable(host: str, port: int) -> str:
    """An address that is listened on, as a client on this machine calls it."""
    named = {"0.0.0.0": "127.0.0.1", "::": "::1", "[::]": "::1"}.get(host, host)
    return join_address(named, port)
