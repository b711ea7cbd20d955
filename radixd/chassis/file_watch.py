"""Notices that files have changed, by looking at them; reads none."""

from collections.abc import Sequence
from pathlib import Path

_Mark = tuple[int, ...]


class FileWatch:
    """Files as they were when somebody last looked.

    A file that is replaced, also behind a link, counts as changed, and so does one that is gone or
    whose rights are other ones: it may have become readable.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self._marks = self._look()

    def has_changed(self) -> bool:
        """Whether any differs from the last time this was asked, or from the start."""
        before, self._marks = self._marks, self._look()
        return before != self._marks

    def _look(self) -> list[_Mark | None]:
        return [_mark(path) for path in self._paths]


def _mark(path: Path) -> _Mark | None:
    try:
        found = path.stat()
    except OSError:
        return None
    # Who copies a file with its times leaves the time of its text as it was, but not the other one.
    return found.st_mtime_ns, found.st_ctime_ns, found.st_dev, found.st_ino, found.st_size
