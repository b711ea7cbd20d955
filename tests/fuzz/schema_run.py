"""schemathesis at the HTTP port: data that fit the description and data that do not."""

import asyncio
import os
import re
import sys
import tempfile
from pathlib import Path

from tests.fuzz.heard import Heard

_CONFIG = Path(__file__).with_name("schemathesis.toml")
_FLAGS = (
    *("--phases", "coverage,fuzzing", "--mode", "all", "--continue-on-failure", "--no-shrink"),
    # One worker: two that read Python's source at a time trip, now and then, over a check of the
    # interpreter's own (CPython 106905, "AST constructor recursion depth mismatch").
    *("--generation-database", "none", "--warnings", "off", "--no-color", "--workers", "1"),
    # As patient as the other callers: a loaded machine is no fault of the server.
    *("--request-timeout", "60"),
)
_LATE_S = 60.0
"""It finishes the request under way after its time is over."""


async def run_schemathesis(url: str, *, seed: int, seconds: float, heard: Heard) -> None:
    """All operations for so long; replies that the description does not allow are faults."""
    with tempfile.TemporaryDirectory() as folder:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(_CONFIG), "run"),
            *(f"{url}/openapi.json", "--seed", str(seed), "--max-time", str(round(seconds))),
            *_FLAGS,
            cwd=folder,
            env=os.environ | {"NO_PROXY": "*"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            said, _ = await asyncio.wait_for(process.communicate(), seconds + _LATE_S)
        except BaseException:
            process.kill()
            await process.wait()
            raise
    text = said.decode()
    made = re.search(r"(\d+) generated", text)
    heard.counts["requests"] = int(made[1]) if made else 0
    if process.returncode or not made:
        heard.faults.append(text)
