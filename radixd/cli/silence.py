"""Says why a stream is silent: a person before a frozen answer should not have to guess.

Asks the server only after a few seconds without news, and says at most one thing a silence.
"""

import threading
import time
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

T = TypeVar("T")

SILENT_AFTER_S = 3.0
_LOOK_EVERY_S = 0.5


def watched(pieces: Iterable[T], ask_why: Callable[[], str | None]) -> Generator[T, None, None]:
    """The same pieces; while none comes, `ask_why` is called from another thread until it knows.

    `ask_why` says what it has to say itself and returns it, or None when there is nothing to say.
    """
    heard_at = time.monotonic()
    over = threading.Event()

    def watch() -> None:
        told_for = 0.0
        while not over.wait(_LOOK_EVERY_S):
            is_silent = time.monotonic() - heard_at > SILENT_AFTER_S
            if is_silent and told_for != heard_at and ask_why() is not None:
                told_for = heard_at

    thread = threading.Thread(target=watch, name="silence", daemon=True)
    thread.start()
    try:
        for piece in pieces:
            heard_at = time.monotonic()
            yield piece
    finally:
        over.set()
