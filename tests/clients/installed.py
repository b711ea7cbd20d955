"""Where the programs of `requirements.txt` lie once `make test` has installed them.

Tests that need one fail without it and say what to do; none is skipped.
"""

import os
import shutil
import subprocess
from pathlib import Path

LISTED = Path(__file__).parent / "requirements.txt"
INSTALLED = Path(__file__).parents[2] / ".clients"
PROGRAMS = Path(__file__).parent / "programs"


def installed_program(name: str) -> str:
    """A program of the environment that the clients have of their own, such as `python`."""
    copy = INSTALLED / LISTED.name
    assert (INSTALLED / ".installed").exists(), (
        "the clients of the tests are not installed: run `make test`, or `make clients` alone"
    )
    assert copy.read_bytes() == LISTED.read_bytes(), (
        f"{INSTALLED.name} holds other packages than tests/clients/{LISTED.name} lists: "
        "run `make clients`"
    )
    return str(INSTALLED / "bin" / name)


def system_program(name: str) -> str:
    """A program that the machine has, such as `curl` or `node`."""
    path = shutil.which(name)
    assert path, f"this test runs {name}, and PATH has none: install it"
    return path


def output_of(*words: str, timeout_s: float = 50, cwd: Path | None = None, **variables: str) -> str:
    """What a program prints that ends without error; no proxy comes between."""
    environment = {**os.environ, "NO_PROXY": "*", "no_proxy": "*", **variables}
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=timeout_s, cwd=cwd, env=environment
    )
    assert done.returncode == 0, f"{words[0]}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
