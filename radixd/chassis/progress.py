"""Progress of long work: a bar where a person watches, log lines where nobody does.

Everything goes to stderr, as stdout belongs to results.  Not here: what the work is.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

_log = structlog.get_logger(__name__)
_LOG_EVERY_PERCENT = 10


@contextmanager
def byte_progress(label: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Yields a function to call with the number of bytes just done.

    A terminal gets a bar; anything else gets an event every tenth of the way, which the launcher
    draws as a bar in its turn.
    """
    if sys.stderr.isatty():
        with _bar(label, total_bytes) as advance:
            yield advance
    else:
        yield _Tenths(label, total_bytes)


class _Tenths:
    """Logs each time another tenth is done."""

    def __init__(self, label: str, total_bytes: int) -> None:
        self._label = label
        self._total_bytes = max(total_bytes, 1)
        self._done_bytes = 0
        self._next_percent = _LOG_EVERY_PERCENT

    def __call__(self, num_bytes: int) -> None:
        self._done_bytes += num_bytes
        percent = 100 * self._done_bytes // self._total_bytes
        if percent >= self._next_percent:
            self._next_percent = percent // _LOG_EVERY_PERCENT * _LOG_EVERY_PERCENT
            _log.info("progress", what=self._label, percent=self._next_percent)
            self._next_percent += _LOG_EVERY_PERCENT


@contextmanager
def _bar(label: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    # Imported late: most processes never draw a bar.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task(label, total=total_bytes)
        yield lambda num_bytes: progress.advance(task, num_bytes)
