"""Whether a device that failed can be used again.

A kernel that goes wrong on a GPU leaves this process nothing of it: every later call fails, too.
What a step asked for and did not get, memory above all, does not.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from gpu_worker.engine import EngineLost


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def losing(
    device: torch.device, synchronize: Callable[[torch.device], None] = _synchronize
) -> Iterator[None]:
    """Tells what goes wrong with a device for good.

    Raises:
        EngineLost: where the device does not even wait for its work any more.
    """
    try:
        yield
    except RuntimeError as error:
        try:
            synchronize(device)
        except RuntimeError:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise EngineLost(f"the device is lost: {reason}") from error
        raise
