"""Workers for the tests of lanes: one that does as its tasks say, one that is never made."""

import os
import time

from tests.gpu.lanes import Worker


def obedient() -> Worker:
    """Does what a task is called."""
    done = 0

    def work(task: str) -> tuple[object, bool]:
        nonlocal done
        done += 1
        if task == "die":
            os._exit(3)
        if task == "hang":
            time.sleep(60)
        return f"{task} as number {done}", task == "break"

    return work


def unmade() -> Worker:
    """Ends its process before there is a worker."""
    os._exit(4)
