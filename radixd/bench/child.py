"""Runs a measuring process and reads its one JSON object.

Processes of their own, so that nobody's memory or collector burdens another's figures, and because
the command line may not import a service.
"""

import json
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from radixd.cli.client import CommandError

Announce = Callable[[str], object]
"""Told what is measured now."""

_NUM_LAST_LINES = 20


def run_child(
    command: Sequence[str], environment: Mapping[str, str], folder: str | None, announce: Announce
) -> dict[str, Any]:
    """What the process printed on stdout; lines on its stderr are announced.

    Raises:
        CommandError: it failed; holds its last lines.
    """
    last_lines: deque[str] = deque(maxlen=_NUM_LAST_LINES)
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment,
        cwd=folder,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines = process.stderr

        def listen() -> None:
            for line in lines:
                last_lines.append(line.rstrip())
                announce(line.rstrip())

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        try:
            answer = process.stdout.read()
            listener.join()
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise CommandError(_failure(command, process.returncode, last_lines))
    value: dict[str, Any] = json.loads(answer)
    return value


def _failure(command: Sequence[str], status: int, last_lines: deque[str]) -> str:
    shown = "".join(f"\n  {line}" for line in last_lines)
    return f"{' '.join(command)} ended with status {status}; its last lines:{shown}"
