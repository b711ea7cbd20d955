"""One service as a child process: its output line by line, its end, its last words.

Knows nothing of what the service does, and never decides whether an end is a fault.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence

from radixd.chassis.command import environment_for_child
from radixd.chassis.memory import peak_rss_bytes

NUM_LAST_LINES = 20
MAX_LINE_BYTES = 64 << 10


class Child:
    """A running or ended child; starts on construction.

    The kernel kills it when the thread that started it ends, so start it from one that stays.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        on_line: Callable[[str, str], None],
        on_end: Callable[[str], None],
    ) -> None:
        """Runs `python -m COMMAND...`, a module and its arguments, in a process group of its own.

        `on_line` gets the name and each line of stdout and stderr, `on_end` the name once the
        output has ended; both in a thread of the child's own.
        """
        self.name = name
        self.last_lines: deque[str] = deque(maxlen=NUM_LAST_LINES)
        self._on_line = on_line
        self._on_end = on_end
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "radixd.launcher.service_process",
                str(os.getpid()),
                *command,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment_for_child() | {"PYTHONUNBUFFERED": "1"},
            # Ctrl-C in the terminal is for the launcher, which ends its children in order.
            process_group=0,
        )
        self._pump = threading.Thread(target=self._read, name=f"{name}_output", daemon=True)
        self._pump.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """None while it runs; below zero: the signal that ended it."""
        return self._process.poll()

    @property
    def peak_rss_bytes(self) -> int:
        """Highest resident memory, in bytes; 0 when it has ended."""
        return peak_rss_bytes(self.pid) if self.exit_status is None else 0

    def terminate(self) -> None:
        """Asks it to end, if it runs."""
        self._process.terminate()

    def kill(self) -> None:
        """Ends it and whatever it has started, now."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended within the time, its output included."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        # A grandchild may keep the pipe open.
        self._pump.join(timeout=1.0)
        return True

    def describe_end(self) -> str:
        """How it ended, in words, with its last lines."""
        status = self.exit_status
        if status is None:
            how = "still runs"
        elif status < 0:
            how = f"was ended by {_signal_name(-status)}"
        else:
            how = f"ended with status {status}"
        lines = "".join(f"\n  {line}" for line in self.last_lines)
        return f"{self.name} {how}" + (f"; its last lines:{lines}" if lines else "")

    def _read(self) -> None:
        output = self._process.stdout
        assert output is not None
        with output:
            while raw := output.readline(MAX_LINE_BYTES):
                line = raw.decode("utf-8", "replace").rstrip("\r\n")
                self.last_lines.append(line)
                self._on_line(self.name, line)
        self._process.wait()
        self._on_end(self.name)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
