"""A running server on the fake worker, and clients of its HTTP port."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import httpx2
import pytest

from tests.http.ask import connected
from tests.system.stack import Client, Stack, launched
from tests.tokenizer_svc.client import wait_until
from tests.tokenizer_svc.fake_scheduler import MODEL, FakeScheduler
from tokenizer_svc.front import Front, FrontConfig
from tokenizer_svc.http.config import HttpConfig
from tokenizer_svc.tokenizers.byte_tokenizer import ByteTokenizer


@dataclass(frozen=True, kw_only=True)
class Served:
    """A front, the scheduler behind it and a client before it."""

    front: Front
    scheduler: FakeScheduler
    http: httpx2.AsyncClient


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
    """A front in this process, before a scheduler that does what a test tells it."""
    scheduler = FakeScheduler()
    scheduler.model = type(scheduler.model)()
    scheduler.model.CopyFrom(MODEL)
    scheduler.model.max_length = 1 << 16
    await scheduler.start()
    front = Front(
        ByteTokenizer(),
        FrontConfig(
            host="127.0.0.1",
            port=0,
            scheduler_address=f"127.0.0.1:{scheduler.port}",
            model_id="fake",
            max_prompt_bytes=1 << 20,
            max_live=4,
            http=HttpConfig(host="127.0.0.1", port=0, keep_alive_s=0.1),
        ),
    )
    await front.start()
    url = f"http://127.0.0.1:{front.http_port}"
    async with httpx2.AsyncClient(base_url=url, timeout=20, trust_env=False) as client:
        await wait_until(lambda: front.is_serving)
        yield Served(front=front, scheduler=scheduler, http=client)
        await wait_until(lambda: len(front.live) == 0 and front.live.num_attempts_out == 0)
    await front.drain(grace_s=0)
    await scheduler.stop()
