"""Runs the measuring processes of `radixd bench core` and reads their one JSON object.

They live in `scheduler_svc.bench`, which the command line may not import, and are processes of
their own so that nobody's memory or collector burdens another's figures.
"""

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from radixd.cli.client import CommandError

PEERS = ("sglang", "vllm")

Announce = Callable[[str], object]
"""Told what is measured now."""

_NUM_LAST_LINES = 20
_PACKAGE = "scheduler_svc"


def core_figures(scale: float, announce: Announce) -> dict[str, Any]:
    """The figures of the core, measured with this interpreter.

    Raises:
        CommandError: the process failed; holds its last lines.
    """
    command = [sys.executable, "-m", "scheduler_svc.bench", str(scale)]
    return _run(command, dict(os.environ), None, announce)


def peer_figures(name: str, python: str, scale: float, announce: Announce) -> dict[str, Any]:
    """The figures of a peer, measured with the interpreter that has it; `missing` and `install`
    instead where it has none.

    Raises:
        CommandError: the interpreter cannot be run, or the process failed.
    """
    announce(name)
    command = [check_interpreter(python), "-m", "scheduler_svc.bench.peers", name, str(scale)]
    with _package_alone() as folder:
        # Peers print much of their own; only that they are measured is worth a word.
        value = _run(command, _environment(folder), folder, lambda _: None)
    if "missing" in value:
        value["install"] = f"{python} -m pip install {value['wanted']}"
    return value


def check_interpreter(python: str) -> str:
    """Its absolute path.

    Raises:
        CommandError: there is no such program.
    """
    path = shutil.which(python)
    if path is None:
        raise CommandError(f"--peer-python: {python} is no program")
    # Not resolved: a virtual environment is known by where its link lies.
    return os.path.abspath(path)


@contextlib.contextmanager
def _package_alone() -> Iterator[str]:
    """A folder from which `scheduler_svc` can be imported, and nothing else of this environment.

    The libraries beside it may be of other versions than the peer's, and our `kernels` is not the
    package that others mean by that name.
    """
    found = importlib.util.find_spec(_PACKAGE)
    assert found is not None
    assert found.origin is not None
    with TemporaryDirectory(prefix="radixd-") as folder:
        (Path(folder) / _PACKAGE).symlink_to(Path(found.origin).parent)
        yield folder


def _environment(folder: str) -> dict[str, str]:
    # A peer may not look for models or report its use.
    return os.environ | {
        "PYTHONPATH": folder,
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }


def _run(
    command: Sequence[str], environment: dict[str, str], folder: str | None, announce: Announce
) -> dict[str, Any]:
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
