"""What the tests of the worker share."""

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the worker does, and before torch loads

import torch


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny models gain nothing from threads, and on a busy machine they wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
