"""The threads of the compiled library where there are more of them than processors."""

import subprocess
import sys

from tests.arch.source import ROOT
from tests.gpu_worker.backends import needs_compiler

MANY_SMALL_STEPS = """
import os
from tests.gpu_worker.native_calls import Wanted, make_model

if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
for _ in range(8):
    model, columns = make_model(num_threads=3), Wanted().columns()
    for _ in range(1500):
        model.forward(columns)
    del model
print("all ended")
"""


@needs_compiler
def test_threads_that_slept_through_steps_come_back_and_end() -> None:
    """One that looked for the end of its step when later ones had ended as well waited for ever.

    In a process of its own, as nothing interrupts a wait in the library.
    """
    steps = [sys.executable, "-c", MANY_SMALL_STEPS]
    done = subprocess.run(steps, cwd=ROOT, capture_output=True, text=True, timeout=55)
    assert done.stdout == "all ended\n", done.stderr
