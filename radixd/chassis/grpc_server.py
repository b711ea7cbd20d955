"""How every gRPC server and client here is set up: options, ports, health, reflection, the end.

Knows nothing of any service.  Defaults of gRPC that have cost others days are overridden here.
"""

import asyncio
import contextlib
import errno
import logging
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from protos.errors import InvalidRequest
from radixd.chassis.run_folder import make_private_folder

MAX_MESSAGE_BYTES = 32 << 20
MAX_CONNECTIONS = 4096
"""Of one public port, at once."""

_COMMON_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
]

SERVER_OPTIONS: list[tuple[str, Any]] = [
    *_COMMON_OPTIONS,
    # On by default: a forgotten process would share the port and take half of the connections.
    ("grpc.so_reuseport", 0),
    # Clients that ping are thrown out by default.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    # Half-open connections end, so that what their clients held is given back.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
]

PUBLIC_SERVER_OPTIONS: list[tuple[str, Any]] = [
    *SERVER_OPTIONS,
    # A connection has this many calls; more wait at the client, unseen, so it is more than what
    # one client may have by default.
    ("grpc.max_concurrent_streams", 2048),
    # Keys, names and traces are short; above the first size calls are refused by and by, above
    # the second all are.
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.absolute_max_metadata_size", 32 << 10),
    # Who pings more often than every 5 s without a call is warned twice and then thrown out.
    ("grpc.http2.max_ping_strikes", 2),
    # A client comes back by itself when it has something to ask.
    ("grpc.max_connection_idle_ms", 15 * 60_000),
    # Who connects and says nothing holds a socket no longer than this.
    ("grpc.server_handshake_timeout_ms", 20_000),
    ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
]
"""Of a server that strangers reach."""

CLIENT_OPTIONS: list[tuple[str, Any]] = [
    *_COMMON_OPTIONS,
    # A proxy in the environment is meant for the web, not for a service beside us.
    ("grpc.enable_http_proxy", 0),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # The default backs off to two minutes; a restarted neighbor is to be found at once.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Time one attempt to connect may take.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 200),
]


_GRPC_LOGGER = "grpc._cython.cygrpc"


def _is_no_farewell(record: logging.LogRecord) -> bool:
    """gRPC logs a client that left before its reply as an error of ours, with a traceback."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, grpc.aio.InternalError)


def create_server(
    *, interceptors: Sequence[Any] = (), options: Sequence[tuple[str, Any]] = SERVER_OPTIONS
) -> grpc.aio.Server:
    """A server with our options and no port yet."""
    logging.getLogger(_GRPC_LOGGER).addFilter(_is_no_farewell)
    return grpc.aio.server(options=list(options), interceptors=list(interceptors))


def join_address(host: str, port: int) -> str:
    """ "host:port", with brackets around an IPv6 host."""
    host = host.strip("[]")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_port_is_free(host: str, port: int, *, option: str = "port") -> None:
    """Refuses a port that cannot be listened on.

    Raises:
        InvalidRequest: names `option`, the address, what is wrong and what to do.
    """
    address = join_address(host, port)
    try:
        found = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError):
        raise InvalidRequest(option, f"{address}: no such host") from None
    problems = [_problem_of_binding(family, where) for family, _, _, _, where in found]
    taken = errno.EADDRINUSE in problems
    if not taken and None in problems:
        return
    if taken:
        text = f"{address} is already in use; stop the process that holds it or choose another port"
    elif errno.EACCES in problems:
        text = f"{address} may not be used by this user; choose a port above 1023"
    else:
        text = f"{address} is not an address of this machine"
    raise InvalidRequest(option, text)


def listen(
    server: grpc.aio.Server,
    host: str,
    port: int,
    *,
    option: str = "port",
    credentials: grpc.ServerCredentials | None = None,
) -> int:
    """Adds the port (0: any free one) and returns the one in force; encrypted with credentials.

    Raises:
        InvalidRequest: names `option`, the address, what is wrong and what to do.
    """
    check_port_is_free(host, port, option=option)
    address = join_address(host, port)
    try:
        if credentials is None:
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, credentials)
    except RuntimeError:
        bound = 0
    if not bound:
        raise InvalidRequest(option, f"{address} cannot be listened on")
    return bound


def listen_locally(server: grpc.aio.Server, path: Path) -> None:
    """Adds a socket for this user on this machine, whose folder keeps all others out.

    Raises:
        InvalidRequest: of `run_dir`; says what is wrong.
    """
    make_private_folder(path.parent)
    try:
        server.add_insecure_port(f"unix:{path}")
        path.chmod(0o600)  # the folder may be one that others can enter
    except (RuntimeError, OSError):
        problem = f"{path} cannot be listened on; choose another folder, or a shorter one"
        raise InvalidRequest("run_dir", problem) from None


async def add_health_and_reflection(
    server: grpc.aio.Server, service_names: Sequence[str]
) -> health_aio.HealthServicer:
    """Adds both standard services; health says NOT_SERVING for all until `set_serving`."""
    servicer = health_aio.HealthServicer()
    await set_serving(servicer, service_names, serving=False)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    reflection.enable_server_reflection(
        (*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME), server
    )
    return servicer


async def set_serving(
    servicer: health_aio.HealthServicer, service_names: Sequence[str], *, serving: bool
) -> None:
    """Sets the health of the server as a whole ("") and of each service."""
    for name in ("", *service_names):
        await set_service_serving(servicer, name, serving=serving)


async def set_service_serving(
    servicer: health_aio.HealthServicer, service_name: str, *, serving: bool
) -> None:
    """Sets the health of one service, or of the server as a whole ("")."""
    statuses = health_pb2.HealthCheckResponse
    await servicer.set(service_name, statuses.SERVING if serving else statuses.NOT_SERVING)


async def wait_for_stop_signal() -> str:
    """Returns the name of the first SIGINT or SIGTERM; a second one kills the process."""
    loop = asyncio.get_running_loop()
    received: asyncio.Future[str] = loop.create_future()

    def note(signal_number: signal.Signals) -> None:
        if not received.done():
            received.set_result(signal_number.name)

    handled = (signal.SIGINT, signal.SIGTERM)
    for number in handled:
        loop.add_signal_handler(number, note, number)
    try:
        return await received
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)


async def stop_gracefully(
    server: grpc.aio.Server, servicer: health_aio.HealthServicer, *, grace_s: float
) -> None:
    """Turns health to NOT_SERVING, refuses new calls, lets running ones finish in the time."""
    await servicer.enter_graceful_shutdown()
    with contextlib.suppress(asyncio.CancelledError):
        await server.stop(grace_s)


def _problem_of_binding(family: int, where: Any) -> int | None:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # As gRPC does it: a port in TIME_WAIT is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(where)
            probe.listen(1)
    except OSError as error:
        return error.errno
    return None
