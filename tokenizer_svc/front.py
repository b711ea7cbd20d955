"""The front as a running thing: parts put together, health that follows the link, an end.

Takes its parts as arguments; `__main__` makes them from the settings.
"""

import asyncio
import time
from dataclasses import dataclass

import grpc
import structlog

from protos.errors import Unavailable
from protos.radixd.scheduler.v1 import scheduler_pb2_grpc
from protos.radixd.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    tokenizer_pb2,
    tokenizer_pb2_grpc,
)
from radixd.chassis.grpc_server import (
    CLIENT_OPTIONS,
    add_health_and_reflection,
    create_server,
    listen,
    set_serving,
    stop_gracefully,
)
from radixd.chassis.preheat_file import FilePrefix
from radixd.chassis.tenants import NO_TENANTS, Tenants
from tokenizer_svc.admin_service import AdminService
from tokenizer_svc.door import Door
from tokenizer_svc.front_requests import FrontRequests
from tokenizer_svc.generate import Generator
from tokenizer_svc.inference_service import InferenceService
from tokenizer_svc.live_requests import LiveRequests
from tokenizer_svc.preheat import Preheater
from tokenizer_svc.request_owners import RequestOwners
from tokenizer_svc.scheduler_link import SchedulerLink
from tokenizer_svc.scheduler_questions import SchedulerQuestions
from tokenizer_svc.served_model import own_vocabulary
from tokenizer_svc.start_preheat import StartPreheat
from tokenizer_svc.tenancy import access_for
from tokenizer_svc.tokenizer_pool import TokenizerPool
from tokenizer_svc.tokenizer_service import TokenizerService
from tokenizer_svc.tokenizers.tokenizer import Tokenizer

SERVICE_NAMES = (
    inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name,
    tokenizer_pb2.DESCRIPTOR.services_by_name["TokenizerService"].full_name,
    admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name,
)

_DRAIN_POLL_S = 0.05
_LAST_WORDS_S = 0.5
"""Time for replies already written to reach their clients."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontConfig:
    """Addresses and limits."""

    host: str
    port: int
    """0: any free one."""
    scheduler_address: str
    model_id: str
    """Name of the model whose tokenizer this is."""
    max_prompt_bytes: int
    max_live: int
    """Requests that may be live at once, waiting ones included."""
    tenants: Tenants = NO_TENANTS
    preheat: tuple[FilePrefix, ...] = ()
    """Warmed before health says SERVING."""


class Front:
    """tokenizer_svc in one object; `start`, then `drain`."""

    def __init__(self, tokenizer: Tokenizer, config: FrontConfig) -> None:
        """Builds everything; must run on the event loop that will serve."""
        self._config = config
        self.live = LiveRequests(max_live=config.max_live)
        # A proxy in the environment is meant for the web, not for a neighbor.
        options = [*CLIENT_OPTIONS, ("grpc.enable_http_proxy", 0)]
        self._channel = grpc.aio.insecure_channel(config.scheduler_address, options=options)
        self._scheduler = scheduler_pb2_grpc.SchedulerServiceStub(self._channel)  # type: ignore[no-untyped-call]
        own = own_vocabulary(config.model_id, tokenizer)
        self.link = SchedulerLink(self._scheduler, self.live, own=own)
        self._pool = TokenizerPool(tokenizer)
        self._door = Door(access_for(config.tenants))
        self._server = create_server(interceptors=[self._door])
        self._add_services()
        self._tasks: list[asyncio.Task[None]] = []
        self.port = 0
        """The port in force, once started."""

    async def start(self) -> None:
        """Listens and looks for the scheduler; health follows what it finds.

        Raises:
            InvalidRequest: the address cannot be listened on; names the option.
        """
        self._health = await add_health_and_reflection(self._server, SERVICE_NAMES)
        self.port = listen(self._server, self._config.host, self._config.port)
        await self._server.start()
        self._tasks = [
            asyncio.create_task(self.link.run(), name="scheduler-link"),
            asyncio.create_task(self._follow_link(), name="health"),
            asyncio.create_task(self._start_preheat.run(), name="start-preheat"),
        ]

    async def drain(self, *, grace_s: float) -> None:
        """Refuses new calls, lets running ones finish in the time, ends the others, stops."""
        log.info("front_draining", num_calls=self._door.num_calls)
        self._door.close()
        self._admin.close()
        await self._health.enter_graceful_shutdown()
        give_up_s = time.monotonic() + grace_s
        while self._door.num_calls and time.monotonic() < give_up_s:
            await asyncio.sleep(_DRAIN_POLL_S)
        if self._door.num_calls:
            self.link.fail_all(Unavailable("the server is shutting down"))
        await stop_gracefully(self._server, self._health, grace_s=_LAST_WORDS_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close()
        self._pool.close()

    def _add_services(self) -> None:
        pool, live, link = self._pool, self.live, self.link
        limit = self._config.max_prompt_bytes
        generator = Generator(pool=pool, live=live, link=link)
        owners = RequestOwners()
        inference = InferenceService(
            generator=generator, live=live, link=link, owners=owners, max_prompt_bytes=limit
        )
        preheater = Preheater(pool=pool, live=live, link=link, max_prompt_bytes=limit)
        self._start_preheat = StartPreheat(
            self._config.preheat, preheater=preheater, link=link, on_done=link.state_changed.set
        )
        requests = FrontRequests(live=live, link=link, owners=owners)
        questions = SchedulerQuestions(self._scheduler)
        self._admin = AdminService(
            questions=questions, pool=pool, preheater=preheater, requests=requests
        )
        tokenizer = TokenizerService(pool=pool, max_prompt_bytes=limit)
        # The generated functions carry no types.
        for add, service in (
            (inference_pb2_grpc.add_InferenceServiceServicer_to_server, inference),
            (tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server, tokenizer),
            (admin_pb2_grpc.add_AdminServiceServicer_to_server, self._admin),
        ):
            add(service, self._server)  # type: ignore[no-untyped-call]

    async def _follow_link(self) -> None:
        while True:
            self.link.state_changed.clear()
            self._start_preheat.look_at_link()
            # Ready means warm; later passes run behind requests and hold nothing back.
            serving = self.link.is_ready and self._start_preheat.is_done
            await set_serving(self._health, SERVICE_NAMES, serving=serving)
            await self.link.state_changed.wait()
