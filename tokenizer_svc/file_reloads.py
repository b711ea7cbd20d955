"""Looks every second whether files of the settings have changed, and has them read again.

By looking and not by a signal, as a file mounted into a container changes without one.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from protos.errors import InvalidRequest
from radixd.chassis.file_watch import FileWatch

LOOK_EVERY_S = 1.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reload:
    """What is to be read again, and by whom."""

    option: str
    """Names it in the log."""
    paths: tuple[Path, ...]
    read: Callable[[], None]
    """Raises InvalidRequest where the files cannot be used, and leaves all as it was."""


async def follow_files(reloads: Sequence[Reload], *, every_s: float = LOOK_EVERY_S) -> None:
    """Never returns; a file that cannot be used is looked at again when it changes again."""
    watched = [(reload, FileWatch(reload.paths)) for reload in reloads]
    for reload in reloads:
        # The start took a while since it read them, and a key may be gone since.
        _read(reload, is_news=False)
    while True:
        await asyncio.sleep(every_s)
        for reload, watch in watched:
            # A file on a network may keep who asks for it waiting.
            if await asyncio.to_thread(watch.has_changed):
                _read(reload)


def _read(reload: Reload, *, is_news: bool = True) -> None:
    try:
        reload.read()
    except InvalidRequest as error:
        log.error("settings_file_unusable", option=error.field, problem=error.message)
    except Exception:
        log.exception("settings_file_failed", option=reload.option)
    else:
        if is_news:
            log.info("settings_file_reloaded", option=reload.option)
