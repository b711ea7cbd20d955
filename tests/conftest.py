"""What every test folder shares; fixtures live beside the tests that use them."""

import gc
import os

import pytest
from hypothesis import HealthCheck, settings

# A shared machine stalls now and then; how long a test may take is for its timeout to say.
settings.register_profile(
    "radixd", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("radixd")

# Kernels are interpreted, as no GPU is needed here; decided when a file of kernels is first read.
os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """For `-n auto`: one more than there are processors, as many tests wait for a server.

    Not more than eight: each holds two gigabytes once it has seen all the models.
    """
    return min(8, (os.cpu_count() or 1) + 1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow ones come first, so that none is left over when the other processes have ended."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish() -> None:
    """What was imported stays: the collector need not go through it again and again."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update",
        action="store_true",
        help="add what is new to the kept files of tests/contract; never changes what is there",
    )
