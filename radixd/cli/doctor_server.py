"""Checks of `radixd doctor` that knock at ports: who answers, and is the server well."""

import errno
import http.client
import socket

from radixd.chassis.grpc_server import join_address
from radixd.chassis.readiness import SERVING, UNREACHABLE, readiness
from radixd.chassis.settings import Settings
from radixd.cli.client import Client, CommandError, reachable, server_address
from radixd.cli.doctor_finding import Finding, State, fail, ok, warn

KNOCK_TIMEOUT_S = 2.0


def ports(settings: Settings) -> list[Finding]:
    """One finding for each port radixd uses."""
    return [
        _port("public port", settings.host, settings.port, asked_at=server_address(settings)),
        _scheduler_port(settings),
        _http_port(settings),
    ]


def health(settings: Settings, target: str | None) -> Finding:
    """Whether the server serves; no server at all is fine unless one was named."""
    check = "server"
    address = target or server_address(settings)
    try:
        with Client(address) as client:
            serving = client.is_serving(timeout_s=KNOCK_TIMEOUT_S)
            stats = client.stats()
    except CommandError as error:
        if target is None:
            return ok(check, f"none runs at {address}; `radixd up` starts one")
        return fail(check, str(error), "start it, or look at its logs")
    if not stats.worker_connected:
        advice = "look at the worker's last lines; requests wait until it is back"
        return fail(check, f"{address}: the worker is away", advice)
    if not serving:
        return warn(check, f"{address}: not serving yet", "it loads or drains; look again")
    return ok(check, f"{address}: serving {stats.model.name} on {stats.model.device}")


def _port(check: str, host: str, port: int, *, asked_at: str | None = None) -> Finding:
    """`asked_at`: where its server says how it is, if not at the port itself."""
    host = reachable(host)
    address = join_address(host, port)
    if port == 0:
        return ok(check, "any free one")
    if is_free(host, port):
        return ok(check, f"{address} is free")
    state = readiness(asked_at or address, timeout_s=KNOCK_TIMEOUT_S)
    if state == SERVING:
        return ok(check, f"{address} is taken by a gRPC server that is serving")
    if state != UNREACHABLE:
        return warn(check, f"{address}: a gRPC server, not serving", "it loads or drains")
    return fail(
        check,
        f"{address} is taken by something that speaks no gRPC health",
        f"stop it (`ss -ltnp 'sport = :{port}'` names it) or choose another port",
    )


def _scheduler_port(settings: Settings) -> Finding:
    check = "scheduler port"
    finding = _port(check, settings.scheduler_host, settings.scheduler_port)
    if finding.state is State.FAIL and "scheduler_port" not in settings.model_fields_set:
        # Nobody asked for the default in particular.
        return ok(check, f"{finding.detail}; `radixd up` takes a free one instead")
    return finding


def _http_port(settings: Settings) -> Finding:
    check = "HTTP port"
    host, port = reachable(settings.http_host or settings.host), settings.http_port
    if port < 0:
        return ok(check, "none; --http-port gives one")
    address = join_address(host, port)
    if port == 0:
        return ok(check, "any free one")
    if is_free(host, port):
        return ok(check, f"{address} is free")
    detail = f"{address} is taken by {_http_server(host, port)}"
    if not settings.asks_for("http_port"):
        # Nobody asked for the default in particular.
        return ok(check, f"{detail}; `radixd up` takes a free one instead")
    return warn(check, detail, "unless that is radixd itself, choose another with --http-port")


def _http_server(host: str, port: int) -> str:
    connection = http.client.HTTPConnection(host, port, timeout=KNOCK_TIMEOUT_S)
    try:
        connection.request("HEAD", "/")
        name = connection.getresponse().getheader("Server")
    except (OSError, http.client.HTTPException):
        return "something that speaks no HTTP"
    finally:
        connection.close()
    return f"an HTTP server ({name})" if name else "an HTTP server"


def is_free(host: str, port: int) -> bool:
    """Whether nobody listens there, found by trying to listen."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host.strip("[]"), port))
        except OSError as error:
            return error.errno != errno.EADDRINUSE
    return True
