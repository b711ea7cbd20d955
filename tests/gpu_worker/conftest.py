"""What the tests of the worker share."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny models gain nothing from threads, and on a busy machine they wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
