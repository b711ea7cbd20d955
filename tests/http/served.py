"""A front with HTTP in this process, before a scheduler that does what a test tells it."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx2

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

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.front.http_port}"


@contextlib.asynccontextmanager
async def served_front() -> AsyncIterator[Served]:
    """Leaves an idle front behind, and ends it."""
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
