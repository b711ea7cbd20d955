"""The measuring processes of `radixd bench core`, which live in `scheduler_svc.bench`."""

import contextlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from radixd.bench.child import Announce, run_child
from radixd.cli.client import CommandError

PEERS = ("sglang", "vllm")

_PACKAGE = "scheduler_svc"


def core_figures(scale: float, announce: Announce) -> dict[str, Any]:
    """The figures of the core, measured with this interpreter.

    Raises:
        CommandError: the process failed; holds its last lines.
    """
    command = [sys.executable, "-m", "scheduler_svc.bench", str(scale)]
    return run_child(command, dict(os.environ), None, announce)


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
        value = run_child(command, _environment(folder), folder, lambda _: None)
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
