"""Settles ports before anything starts: free ones where any do, refusals where one is taken."""

import contextlib
import socket

from protos.errors import InvalidRequest
from radixd.chassis.grpc_server import check_port_is_free
from radixd.chassis.settings import Settings


def free_ports(host: str, num_ports: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket(family)) for _ in range(num_ports)]
        for probe in probes:
            try:
                probe.bind((host.strip("[]"), 0))
            except OSError as error:
                raise InvalidRequest("host", f"{host}: {error.strerror}") from None
        return [int(probe.getsockname()[1]) for probe in probes]


def settle_ports(settings: Settings) -> Settings:
    """The same settings with ports that exist and are free.

    Port 0 becomes a free port.  So does the scheduler's default port beside a port 0, or where it
    is taken: two servers on one host need differ in `port` alone.

    Raises:
        InvalidRequest: a port that was asked for is taken; names the option and what to do.
    """
    port, scheduler_port = settings.port, settings.scheduler_port
    if port:
        check_port_is_free(settings.host, port, option="port")
    else:
        (port,) = free_ports(settings.host, 1)
    if scheduler_port and not _is_spare(settings):
        check_port_is_free(settings.scheduler_host, scheduler_port, option="scheduler_port")
    else:
        scheduler_port = next(
            free for free in free_ports(settings.scheduler_host, 2) if free != port
        )
    if port == scheduler_port:
        raise InvalidRequest("scheduler_port", f"is {port}, like port; they must differ")
    _check_metrics_port(settings, port)
    return settings.model_copy(update={"port": port, "scheduler_port": scheduler_port})


def _check_metrics_port(settings: Settings, port: int) -> None:
    """Nobody's default is checked: the scheduler takes a free port where that one is taken."""
    metrics_port = settings.metrics_port
    if metrics_port <= 0 or not settings.asks_for("metrics_port"):
        return
    if metrics_port == port:
        raise InvalidRequest("metrics_port", f"is {port}, like port; they must differ")
    check_port_is_free(settings.scheduler_host, metrics_port, option="metrics_port")


def _is_spare(settings: Settings) -> bool:
    """Whether nobody asked for the scheduler's port in particular, and another is as good."""
    if "scheduler_port" in settings.model_fields_set:
        return False
    if not settings.port:
        return True
    try:
        check_port_is_free(settings.scheduler_host, settings.scheduler_port)
    except InvalidRequest:
        return True
    return False
