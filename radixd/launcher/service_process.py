"""First code of every child: ties its life to the launcher's, then becomes the service.

`python -m radixd.launcher.service_process PARENT_PID MODULE ARGS...`.  In the child and not
between fork and exec, where running Python in a process with threads may hang.
"""

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Has the kernel kill this process when the thread that started it ends (Linux only)."""
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    # It may have died before the kernel knew.
    if os.getppid() != parent_pid:
        raise SystemExit(1)


def main(argv: list[str]) -> None:
    """Runs the module named in argv as a program, with the arguments after it."""
    parent_pid, module, *rest = argv
    die_with_parent(int(parent_pid))
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
