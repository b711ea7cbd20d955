"""The scheduler's parts, built from settings and joined: channel, link, loop, core, gRPC server.

Here and nowhere else parts are chosen; what they do is theirs.
"""

import asyncio
import time
from dataclasses import asdict, fields

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector

from protos.errors import InvalidRequest
from protos.plan import Hello
from protos.radixd.scheduler.v1 import scheduler_pb2_grpc
from radixd.chassis import grpc_server
from radixd.chassis.channel import SchedulerChannel
from radixd.chassis.settings import Settings
from radixd.chassis.tenants import load_tenants
from scheduler_svc.core.config import SchedulerConfig, TenantPolicy
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.engine_loop import Delivery, EngineLoop
from scheduler_svc.lobby import Lobby
from scheduler_svc.metrics import StatsCollector
from scheduler_svc.metrics_server import MetricsServer
from scheduler_svc.service import SERVICE_NAME, SchedulerService
from scheduler_svc.worker_link import WorkerLink, draw_epoch

STOP_GRACE_S = 0.2
"""For unary calls; streams are ended at once."""

log = structlog.get_logger()


def config_from_settings(settings: Settings) -> SchedulerConfig:
    """The core's knobs out of all the options: those that have the same name, and the tenants.

    Raises:
        InvalidRequest: names the option that cannot be, or what is wrong in the tenants' file.
    """
    shares = load_tenants(settings.tenants).shares
    tenants = {name: TenantPolicy(**asdict(theirs)) for name, theirs in shares.items()}
    named = {field.name for field in fields(SchedulerConfig)} - {"tenants"}
    values = {name: getattr(settings, name) for name in named}
    try:
        return SchedulerConfig(**values, tenants=tenants)
    except ValueError as error:
        name, _, problem = str(error).partition(": ")
        raise InvalidRequest(name, problem) from None


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
            Scheduler,
            config=config,
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
        self._metrics_source = StatsCollector(self._engine)
        self._metrics: MetricsServer | None = None
        self.metrics_port = -1
        """The Prometheus port in force, once started; -1: none."""

    async def start(self) -> int:
        """Serves; returns the gRPC port.

        Raises:
            InvalidRequest: the port is taken, or the host is none of this machine's.
        """
        self._health = await grpc_server.add_health_and_reflection(self._server, [SERVICE_NAME])
        settings = self._settings
        try:
            self._metrics = self._metrics_server()
            port = grpc_server.listen(
                self._server,
                settings.scheduler_host,
                settings.scheduler_port,
                option="scheduler_port",
            )
        except Exception:
            self._close_metrics()
            self._channel.close()
            raise
        await self._server.start()
        await grpc_server.set_service_serving(self._health, "", serving=True)
        self._engine.start()
        if self._metrics is not None:
            self._metrics.start()
            self.metrics_port = self._metrics.port
        log.info(
            "scheduler_ready",
            port=port,
            metrics_port=self.metrics_port,
            worker_endpoint=settings.worker_address,
        )
        return port

    async def stop(self) -> None:
        """Ends all streams and the loop, and gives port and endpoint free."""
        self._service.end_streams()
        await grpc_server.stop_gracefully(self._server, self._health, grace_s=STOP_GRACE_S)
        # Before the loop, which answers whoever scrapes just now.
        await asyncio.to_thread(self._close_metrics)
        await asyncio.to_thread(self._engine.stop)
        self._channel.close()
        log.info("scheduler_stopped")

    def _metrics_server(self) -> MetricsServer | None:
        """Takes the port; where nobody asked for it in particular and it is taken, another."""
        settings = self._settings
        host, port = settings.scheduler_host, settings.metrics_port
        if port < 0:
            return None
        registry = CollectorRegistry()
        registry.register(self._metrics_source)
        ProcessCollector(registry=registry)
        if settings.asks_for("metrics_port"):
            return MetricsServer(registry, host, port)
        if not settings.scheduler_port:  # one of many, as in tests
            return MetricsServer(registry, host, 0)
        try:
            return MetricsServer(registry, host, port)
        except InvalidRequest:
            return MetricsServer(registry, host, 0)

    def _close_metrics(self) -> None:
        if self._metrics is not None:
            self._metrics.stop()
            self._metrics = None

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
