"""How many processors this process may use: those it may run on, and what a container pays for.

A container's limit is a quota of time and hides no processor; threads beyond it are all stopped for
the rest of each period, and those of a step wait for one another.
"""

import os
from pathlib import Path, PurePosixPath

_ROOT = Path("/")


def usable_processors(root: Path = _ROOT) -> int:
    """At least 1; `root` is where /proc and /sys are found."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    quotas = [quota for folder in _control_groups(root) if (quota := _quota(folder)) is not None]
    return max(1, int(min([count, *quotas])))


def _control_groups(root: Path) -> list[Path]:
    """The folders of this process's groups and of those around them, some of which may not exist:
    inside of a container their names may be those of outside."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    mounts = root / "sys/fs/cgroup"
    found = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            places = [mounts, mounts / "unified"]
        elif "cpu" in controllers.split(","):
            places = [mounts / controllers, mounts / "cpu"]
        else:
            continue
        inside = PurePosixPath(path.lstrip("/"))
        found += [place / part for place in places for part in (inside, *inside.parents)]
    return found


def _quota(folder: Path) -> float | None:
    """Processors' worth of time of one group; None: no limit, or none that can be read."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        share = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # "max" is no number
        return None
    return share if share > 0 else None
