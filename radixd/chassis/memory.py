"""How much memory a process has had at its highest.  Reads the kernel's books, keeps none."""

import resource
from pathlib import Path

_KIB = 1024


def peak_rss_bytes(pid: int | None = None) -> int:
    """Highest resident memory of a process (None: this one), in bytes; 0 when it is unknown.

    The kernel's VmHWM and not getrusage's ru_maxrss, as the latter also remembers the memory of
    the process that forked this one.
    """
    try:
        status = Path(f"/proc/{'self' if pid is None else pid}/status").read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        if pid is not None:
            return 0
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * _KIB
    return 0
