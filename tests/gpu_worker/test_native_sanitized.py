"""The compiled library under the sanitizers of addresses and of undefined behavior."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.arch.source import ROOT

COMPILER = Path(__file__).with_name("sanitizing_compiler.sh")


def runtime() -> list[str]:
    """The libraries of the sanitizers, which a process that is none of theirs must load first."""
    if shutil.which("g++") is None:
        return []
    asked = [["g++", f"-print-file-name=lib{name}.so"] for name in ("asan", "ubsan")]
    paths = [subprocess.check_output(command, text=True).strip() for command in asked]
    return paths if all(map(os.path.isabs, paths)) else []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(not runtime(), reason="needs g++ with its sanitizers")
def test_random_batches_are_clean() -> None:
    # At a place that stays, so that only the first run after a change of the sources compiles.
    environment = os.environ | {
        "CXX": f"sh {shlex.quote(str(COMPILER))}",
        "LD_PRELOAD": " ".join(runtime()),
        "ASAN_OPTIONS": "detect_leaks=0",  # of the interpreter
    }
    build = [sys.executable, "-m", "gpu_worker.native.build"]
    without = {key: text for key, text in environment.items() if key != "LD_PRELOAD"}
    subprocess.run(build, cwd=ROOT, env=without, check=True, capture_output=True, timeout=200)
    steps = [sys.executable, "-m", "tests.gpu_worker.random_steps", "1"]
    done = subprocess.run(
        steps, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.stdout == "same bits everywhere\n", done.stderr[:4000]
    assert done.returncode == 0
