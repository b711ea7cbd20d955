"""Which processor cores the processes of a benchmark run on."""

import os
from collections.abc import Collection, Mapping
from pathlib import Path


def give_a_core(pids: Mapping[str, int], name: str) -> list[int]:
    """Gives the process of this name a core of its own and all others the rest, which it returns.

    Else the system likes to run whoever is woken by a write on the core of who writes, so that a
    reader's work would hold up the process that is measured.  On one core, and where the system
    cannot say, nothing changes, and all cores are returned.
    """
    if not hasattr(os, "sched_getaffinity"):
        return []
    *rest, own = sorted(os.sched_getaffinity(0))
    if rest:
        for each, pid in pids.items():
            for thread in Path(f"/proc/{pid}/task").iterdir():
                run_on(int(thread.name), [own] if each == name else rest)
    return rest or [own]


def run_on(thread: int, cores: Collection[int]) -> None:
    """Has a thread (0: the caller), and those it starts, run on these cores; none: as before."""
    if cores:
        os.sched_setaffinity(thread, cores)
