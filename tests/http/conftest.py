"""A running server on the fake worker, and clients of its HTTP port."""

from collections.abc import AsyncIterator, Iterator

import httpx2
import pytest

from tests.http.ask import connected
from tests.http.served import Served, served_front
from tests.system.stack import Client, Stack, launched


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with launched(
        *("--fake-worker", "--kv-slots", "4096", "--max-length", "2048", "--fake-step-ms", "1"),
        *("--http-keep-alive-s", "0.3"),
    ) as running:
        yield running


@pytest.fixture
async def http(stack: Stack) -> AsyncIterator[httpx2.AsyncClient]:
    """Leaves an idle server behind."""
    async with connected(stack) as client, Client(stack.address) as grpc_client:
        yield client
        await grpc_client.idle()


@pytest.fixture
async def grpc_client(stack: Stack) -> AsyncIterator[Client]:
    async with Client(stack.address) as client:
        yield client


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with served_front() as running:
        yield running
