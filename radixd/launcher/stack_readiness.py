"""What a starting server still lacks, asked of its services by their health."""

from types import TracebackType

import grpc

from radixd.chassis.grpc_server import CLIENT_OPTIONS, join_address
from radixd.chassis.readiness import SERVING, UNREACHABLE, readiness_on
from radixd.chassis.settings import Settings

_OPTIONS = [*CLIENT_OPTIONS, ("grpc.max_reconnect_backoff_ms", 100)]
"""Nobody listens at first; the first to do so is to be found at once."""

SCHEDULER_SERVICE = "radixd.scheduler.v1.SchedulerService"
"""Its health says whether a worker is attached; the scheduler's own ("") whether it runs."""


class StackReadiness:
    """Keeps a connection to scheduler and front while they start."""

    def __init__(self, settings: Settings, address: str) -> None:
        """`address` is where the front is asked without encryption."""
        self._scheduler = grpc.insecure_channel(
            join_address(settings.scheduler_host, settings.scheduler_port), options=_OPTIONS
        )
        self._front = grpc.insecure_channel(address, options=_OPTIONS)

    def missing(self) -> str | None:
        """What is waited for, as a phrase; None: the server is ready."""
        if readiness_on(self._front) == SERVING:
            return None
        if readiness_on(self._scheduler) == UNREACHABLE:
            return "waiting for scheduler_svc to listen"
        if readiness_on(self._scheduler, service=SCHEDULER_SERVICE) != SERVING:
            return "waiting for gpu_worker to load its model"
        return "waiting for tokenizer_svc to be ready"

    def __enter__(self) -> "StackReadiness":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._scheduler.close()
        self._front.close()
