"""Whether a device that failed can be used again.

A kernel that goes wrong on a GPU leaves this process nothing of it: every later call fails, too.
What a step asked for and did not get, memory above all, does not.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from gpu_worker.engine import EngineLost
from protos.errors import first_line


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
            raise EngineLost(f"the device is lost: {first_line(error)}") from error
        raise
