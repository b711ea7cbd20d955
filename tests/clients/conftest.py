"""A running server on the fake worker; modules where the answer matters start the model."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.http.served import Served, served_front
from tests.system.stack import Client, Stack, launched


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with launched(
        *("--fake-worker", "--kv-slots", "16384", "--max-length", "2048", "--fake-step-ms", "3"),
    ) as running:
        yield running


@pytest.fixture
async def books(stack: Stack) -> AsyncIterator[Client]:
    """Sees to it that a test leaves nobody behind and every slot free."""
    async with Client(stack.address) as client:
        yield client
        await client.idle()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with served_front() as running:
        yield running
