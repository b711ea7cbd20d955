"""Lines for people, with one live line below them on a terminal.

Without a terminal the live line becomes a plain one now and then.
"""

import sys
import threading
import time
from collections.abc import Callable

QUIET_S = 5.0
"""Without a terminal, the live line is said this often."""

_ERASE_LINE = "\r\x1b[2K"


class Progress:
    """Serialises what several threads want to say."""

    def __init__(self, echo: Callable[[str], None]) -> None:
        """`echo` prints a line to stderr."""
        self.is_terminal = sys.stderr.isatty()
        self._echo = echo
        self._lock = threading.Lock()
        self._is_live = False
        self._said_at = time.monotonic()

    def say(self, text: str) -> None:
        """Prints text that stays."""
        with self._lock:
            self._erase()
            self._echo(text)

    def show(self, text: str) -> None:
        """Replaces the live line."""
        with self._lock:
            if self.is_terminal:
                sys.stderr.write(f"{_ERASE_LINE}{text}")
                sys.stderr.flush()
                self._is_live = True
            elif time.monotonic() - self._said_at >= QUIET_S:
                self._said_at = time.monotonic()
                self._echo(text)

    def _erase(self) -> None:
        if self._is_live:
            sys.stderr.write(_ERASE_LINE)
            sys.stderr.flush()
            self._is_live = False
