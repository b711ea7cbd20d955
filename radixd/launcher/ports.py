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

    Port 0 becomes a free port.  So do the default ports of scheduler and HTTP beside a port 0, or
    where they are taken: two servers on one host need differ in `port` alone.

    Raises:
        InvalidRequest: a port that was asked for is taken; names the option and what to do.
    """
    port, scheduler_port = settings.port, settings.scheduler_port
    if port:
        check_port_is_free(settings.host, port, option="port")
    else:
        (port,) = free_ports(settings.host, 1)
    if scheduler_port and not _is_spare(settings, "scheduler_port", settings.scheduler_host):
        check_port_is_free(settings.scheduler_host, scheduler_port, option="scheduler_port")
    else:
        scheduler_port = _other_than((port,), settings.scheduler_host)
    if port == scheduler_port:
        raise InvalidRequest("scheduler_port", f"is {port}, like port; they must differ")
    http_port = _settled_http_port(settings, port, scheduler_port)
    _check_metrics_port(settings, port)
    return settings.model_copy(
        update={"port": port, "scheduler_port": scheduler_port, "http_port": http_port}
    )


def _settled_http_port(settings: Settings, port: int, scheduler_port: int) -> int:
    host = settings.http_host or settings.host
    http_port = settings.http_port
    if http_port < 0:
        return http_port
    if not http_port or _is_spare(settings, "http_port", host):
        return _other_than((port, scheduler_port), host)
    if http_port in (port, scheduler_port):
        other = "port" if http_port == port else "scheduler_port"
        raise InvalidRequest("http_port", f"is {http_port}, like {other}; they must differ")
    check_port_is_free(host, http_port, option="http_port")
    return http_port


def _other_than(taken: tuple[int, ...], host: str) -> int:
    """A free port that is none of these, which are free as well."""
    return next(free for free in free_ports(host, len(taken) + 1) if free not in taken)


def _check_metrics_port(settings: Settings, port: int) -> None:
    """Nobody's default is checked: the scheduler takes a free port where that one is taken."""
    metrics_port = settings.metrics_port
    if metrics_port <= 0 or not settings.asks_for("metrics_port"):
        return
    if metrics_port == port:
        raise InvalidRequest("metrics_port", f"is {port}, like port; they must differ")
    check_port_is_free(settings.scheduler_host, metrics_port, option="metrics_port")


def _is_spare(settings: Settings, option: str, host: str) -> bool:
    """Whether nobody asked for this port in particular, and another is as good."""
    if settings.asks_for(option):
        return False
    if not settings.port:
        return True
    try:
        check_port_is_free(host, getattr(settings, option))
    except InvalidRequest:
        return True
    return False
