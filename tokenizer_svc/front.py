"""The front as a running thing: parts put together, health that follows the link, an end.

Takes its parts as arguments; `__main__` makes them from the settings.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

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
    PUBLIC_SERVER_OPTIONS,
    add_health_and_reflection,
    create_server,
    listen,
    listen_locally,
    set_serving,
    stop_gracefully,
)
from radixd.chassis.preheat_file import FilePrefix
from radixd.chassis.tenants import NO_TENANTS, Tenants
from radixd.chassis.tls import ServerTls
from radixd.chassis.vocabulary import Vocabulary, fake_vocabulary
from tokenizer_svc.admin_service import AdminService
from tokenizer_svc.books import Books
from tokenizer_svc.choices import Choices
from tokenizer_svc.client_streams import ClientStreams
from tokenizer_svc.constraints.compiler import ConstraintCompiler
from tokenizer_svc.door import Door
from tokenizer_svc.file_reloads import Reload, follow_files
from tokenizer_svc.front_requests import FrontRequests
from tokenizer_svc.http.app import FrontParts
from tokenizer_svc.http.config import HttpConfig
from tokenizer_svc.http.service import HttpService
from tokenizer_svc.inference_service import InferenceService
from tokenizer_svc.key_file import KeyFile
from tokenizer_svc.live_requests import LiveRequests
from tokenizer_svc.logged_choices import LoggedChoices
from tokenizer_svc.preheat import Preheater
from tokenizer_svc.request_owners import RequestOwners
from tokenizer_svc.scheduler_link import SchedulerLink
from tokenizer_svc.scheduler_questions import SchedulerQuestions
from tokenizer_svc.served_model import own_vocabulary
from tokenizer_svc.start_preheat import StartPreheat
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
    tenants_file: Path | None = None
    """Where they come from, to be read again when it changes."""
    tls: ServerTls | None = None
    """For both doors; None: no encryption."""
    probe_socket: Path | None = None
    """A second way in without encryption, for this machine's probes."""
    max_streams_per_client: int = 0
    """Calls in progress of one tenant or address; 0: any number."""
    slow_reader_s: float = 30.0
    """A client that takes nothing of its stream for so long is cut."""
    log_prompts: bool = False
    """Log the texts of prompts and answers."""
    preheat: tuple[FilePrefix, ...] = ()
    """Warmed before health says SERVING."""
    http: HttpConfig | None = None
    """None: gRPC alone."""
    read_vocabulary: Callable[[], Vocabulary | None] = fake_vocabulary
    """What the model's tokens spell, for constrained output; None: not known."""


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
        self._constraints = ConstraintCompiler(config.read_vocabulary)
        self._keys = KeyFile(config.tenants_file, config.tenants)
        self._streams = ClientStreams(most=config.max_streams_per_client)
        self._door = Door(self._keys, streams=self._streams, slow_reader_s=config.slow_reader_s)
        self._server = create_server(interceptors=[self._door], options=PUBLIC_SERVER_OPTIONS)
        self._http: HttpService | None = None
        self._add_services()
        self._is_draining = False
        self._tasks: list[asyncio.Task[None]] = []
        self.port = 0
        """The port in force, once started."""

    @property
    def http_port(self) -> int:
        """The same of HTTP; -1: there is none."""
        return -1 if self._http is None else self._http.port

    @property
    def is_serving(self) -> bool:
        """Scheduler and worker are there, and what is to be warm is.

        Later passes of the preheat run behind requests and hold nothing back.
        """
        return self.link.is_ready and self._start_preheat.is_done and not self._is_draining

    async def start(self) -> None:
        """Listens and looks for the scheduler; health follows what it finds.

        Raises:
            InvalidRequest: the address cannot be listened on; names the option.
        """
        self._health = await add_health_and_reflection(self._server, SERVICE_NAMES)
        config, tls = self._config, self._config.tls
        credentials = None if tls is None else tls.grpc_credentials()
        self.port = listen(self._server, config.host, config.port, credentials=credentials)
        if config.probe_socket is not None:
            listen_locally(self._server, config.probe_socket)
        if self._http is not None:
            await self._http.start()
        await self._server.start()
        self._tasks = [
            asyncio.create_task(self.link.run(), name="scheduler-link"),
            asyncio.create_task(self._follow_link(), name="health"),
            asyncio.create_task(self._start_preheat.run(), name="start-preheat"),
            asyncio.create_task(follow_files(self._reloads()), name="file-reloads"),
        ]

    async def drain(self, *, grace_s: float) -> None:
        """Refuses new calls, lets running ones finish in the time, ends the others, stops."""
        log.info("front_draining", num_calls=self._num_calls)
        self._is_draining = True
        self._door.close()
        if self._http is not None:
            self._http.close()
        self._admin.close()
        await self._health.enter_graceful_shutdown()
        give_up_s = time.monotonic() + grace_s
        while self._num_calls and time.monotonic() < give_up_s:
            await asyncio.sleep(_DRAIN_POLL_S)
        if self._num_calls:
            self.link.fail_all(Unavailable("the server is shutting down"))
        if self._http is not None:
            await self._http.stop()
        await stop_gracefully(self._server, self._health, grace_s=_LAST_WORDS_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close()
        await self._constraints.close()
        self._pool.close()

    def _reloads(self) -> list[Reload]:
        reloads, tls = [], self._config.tls
        if (path := self._keys.path) is not None:
            reloads.append(Reload(option="tenants", paths=(path,), read=self._keys.reload))
        if tls is not None:
            reloads.append(Reload(option="tls_cert", paths=tls.files.paths, read=tls.reload))
        return reloads

    @property
    def _num_calls(self) -> int:
        return self._door.num_calls + (0 if self._http is None else self._http.num_calls)

    def _add_services(self) -> None:
        pool, live, link = self._pool, self.live, self.link
        limit = self._config.max_prompt_bytes
        kind = LoggedChoices if self._config.log_prompts else Choices
        choices = kind(pool=pool, live=live, link=link, constraints=self._constraints)
        owners = RequestOwners()
        inference = InferenceService(
            choices=choices,
            live=live,
            link=link,
            owners=owners,
            pool=pool,
            max_prompt_bytes=limit,
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
        if self._config.http is not None:
            parts = FrontParts(
                access=self._keys,
                streams=self._streams,
                tls=self._config.tls,
                pool=pool,
                choices=choices,
                preheater=preheater,
                owners=owners,
                live=live,
                link=link,
                books=Books(questions.stats),
                questions=questions,
                cancel=inference.cancel,
                is_serving=lambda: self.is_serving,
                model_id=self._config.model_id,
                max_prompt_bytes=limit,
            )
            self._http = HttpService(parts, self._config.http)

    async def _follow_link(self) -> None:
        while True:
            self.link.state_changed.clear()
            self._start_preheat.look_at_link()
            await set_serving(self._health, SERVICE_NAMES, serving=self.is_serving)
            await self.link.state_changed.wait()
