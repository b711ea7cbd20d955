"""The folder of a server's sockets and locks: only its user may enter."""

import os
import stat
from pathlib import Path

from protos.errors import InvalidRequest


def make_private_folder(folder: Path) -> None:
    """Makes a folder that only this user may enter, or accepts one that only this user may change.

    Raises:
        InvalidRequest: it belongs to somebody else, is a link, or others may write into it.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise InvalidRequest("run_dir", f"{folder}: {error.strerror}") from None
    # Under a world-writable parent another user may have come first.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise InvalidRequest(
            "run_dir", f"{folder} is not a folder that only this user may write; choose another"
        )
