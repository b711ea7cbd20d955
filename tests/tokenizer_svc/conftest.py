"""A front on a free port, in front of a fake scheduler, in this process."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from protos.radixd.v1 import (
    admin_pb2_grpc,
    inference_pb2_grpc,
    tokenizer_pb2_grpc,
)
from radixd.chassis.preheat_file import FilePrefix
from radixd.chassis.tenants import NO_TENANTS, Tenants
from tests.tokenizer_svc.client import wait_until
from tests.tokenizer_svc.fake_scheduler import MODEL, FakeScheduler
from tokenizer_svc.front import Front, FrontConfig
from tokenizer_svc.tokenizers.byte_tokenizer import ByteTokenizer
from tokenizer_svc.tokenizers.tokenizer import Tokenizer


@dataclass(kw_only=True)
class Served:
    """A running front and how to reach it."""

    front: Front
    scheduler: FakeScheduler
    channel: grpc.aio.Channel
    inference: inference_pb2_grpc.InferenceServiceStub
    tokenizer: tokenizer_pb2_grpc.TokenizerServiceStub
    admin: admin_pb2_grpc.AdminServiceStub

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.front.port}"

    async def idle(self) -> None:
        """Returns once nothing of any request is left in the front."""
        live = self.front.live
        await wait_until(lambda: len(live) == 0 and live.num_attempts_out == 0)


Serve = Callable[..., Awaitable[Served]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts fronts; ends them, and shows that each ended with empty books."""
    started: list[Served] = []

    async def start(
        *,
        tokenizer: Tokenizer | None = None,
        scheduler: FakeScheduler | None = None,
        scheduler_up: bool = True,
        tenants: Tenants = NO_TENANTS,
        preheat: tuple[FilePrefix, ...] = (),
        model_id: str = MODEL.model_id,
        **limits: Any,
    ) -> Served:
        scheduler = scheduler or FakeScheduler()
        await scheduler.start()
        if not scheduler_up:
            await scheduler.stop()
        config = FrontConfig(
            host="127.0.0.1",
            port=0,
            scheduler_address=f"127.0.0.1:{scheduler.port}",
            model_id=model_id,
            **({"max_prompt_bytes": 4 << 20, "max_live": 4096} | limits),
            tenants=tenants,
            preheat=preheat,
        )
        front = Front(tokenizer or ByteTokenizer(), config)
        await front.start()
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{front.port}")
        served = Served(
            front=front,
            scheduler=scheduler,
            channel=channel,
            inference=inference_pb2_grpc.InferenceServiceStub(channel),
            tokenizer=tokenizer_pb2_grpc.TokenizerServiceStub(channel),
            admin=admin_pb2_grpc.AdminServiceStub(channel),
        )
        started.append(served)
        if scheduler_up:
            await wait_until(lambda: front.link.is_ready)
        return served

    yield start
    for served in started:
        await served.channel.close()
        await served.idle()
        await served.front.drain(grace_s=0)
        await served.scheduler.stop()


@pytest.fixture
async def served(serve: Serve) -> Served:
    """The usual front: byte tokenizer, scheduler and worker there."""
    return await serve()
