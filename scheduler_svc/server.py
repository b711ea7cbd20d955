"""The scheduler's parts, built from settings and joined: channel, link, loop, core, gRPC server.

Here and nowhere else parts are chosen; what they do is theirs.
"""

import asyncio
import time

import structlog

from protos.plan import Hello
from protos.radixd.scheduler.v1 import scheduler_pb2_grpc
from radixd.chassis import grpc_server
from radixd.chassis.channel import SchedulerChannel
from radixd.chassis.settings import Settings
from scheduler_svc.core.config import SchedulerConfig
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.engine_loop import Delivery, EngineLoop
from scheduler_svc.lobby import Lobby
from scheduler_svc.service import SERVICE_NAME, SchedulerService
from scheduler_svc.worker_link import WorkerLink, draw_epoch

STOP_GRACE_S = 0.2
"""For unary calls; streams are ended at once."""

log = structlog.get_logger()


def config_from_settings(settings: Settings) -> SchedulerConfig:
    """The core's knobs out of all the options."""
    return SchedulerConfig(
        page_size=settings.page_size,
        max_running=settings.max_running,
        max_batch_tokens=settings.max_batch_tokens,
        chunk_size=settings.chunk_size,
        max_waiting=settings.max_waiting,
        pipeline_depth=settings.pipeline_depth,
        waiting_order=settings.waiting_order,
        retraction_policy=settings.retraction_policy,
        eviction_policy=settings.eviction_policy,
        decode_reserve=settings.decode_reserve,
    )


class SchedulerServer:
    """A whole scheduler.  To be built, started and stopped on one running event loop."""

    def __init__(self, settings: Settings) -> None:
        """Takes the worker's endpoint; listens to nobody yet.

        Raises:
            InvalidRequest: names the option that cannot be.
        """
        self._settings = settings
        self._event_loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self.crashed: asyncio.Future[BaseException] = self._event_loop.create_future()
        """Done once the engine loop has ended by a defect."""
        config = config_from_settings(settings)
        self._channel = SchedulerChannel(settings.worker_address)
        link = WorkerLink(
            self._channel,
            step_timeout_ns=int(settings.step_timeout_s * 1e9),
            now_ns=time.monotonic_ns,
        )
        self._engine = EngineLoop(
            link,
            lambda hello: Scheduler(config, hello),
            lobby=Lobby(settings.max_waiting),
            now_ns=time.monotonic_ns,
            wake=self._channel.wake,
            deliver=self._deliver_soon,
            on_crash=self._crash_soon,
        )
        self._service = SchedulerService(
            self._engine,
            epoch=draw_epoch(),
            started_ns=time.monotonic_ns(),
            on_worker=self._show_health,
        )
        self._server = grpc_server.create_server()
        add_service = scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server
        add_service(self._service, self._server)  # type: ignore[no-untyped-call]

    async def start(self) -> int:
        """Serves; returns the gRPC port.

        Raises:
            InvalidRequest: the port is taken, or the host is none of this machine's.
        """
        self._health = await grpc_server.add_health_and_reflection(self._server, [SERVICE_NAME])
        settings = self._settings
        try:
            port = grpc_server.listen(
                self._server,
                settings.scheduler_host,
                settings.scheduler_port,
                option="scheduler_port",
            )
        except Exception:
            self._channel.close()
            raise
        await self._server.start()
        await grpc_server.set_service_serving(self._health, "", serving=True)
        self._engine.start()
        log.info("scheduler_ready", port=port, worker_endpoint=settings.worker_address)
        return port

    async def stop(self) -> None:
        """Ends all streams and the loop, and gives port and endpoint free."""
        self._service.end_streams()
        await grpc_server.stop_gracefully(self._server, self._health, grace_s=STOP_GRACE_S)
        await asyncio.to_thread(self._engine.stop)
        self._channel.close()
        log.info("scheduler_stopped")

    def _deliver_soon(self, delivery: Delivery) -> None:
        self._event_loop.call_soon_threadsafe(self._service.deliver, delivery)

    def _crash_soon(self, error: BaseException) -> None:
        self._event_loop.call_soon_threadsafe(self.crashed.set_result, error)

    def _show_health(self, hello: Hello | None) -> None:
        # The process as a whole ("") stays ready: it takes requests, and they wait for the worker.
        change = grpc_server.set_service_serving(
            self._health, SERVICE_NAME, serving=hello is not None
        )
        task = self._event_loop.create_task(change)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
