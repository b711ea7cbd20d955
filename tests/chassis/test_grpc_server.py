"""Ports, health, reflection, endings: what every server of ours does alike."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import stat

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.errors import InvalidRequest
from radixd.chassis.grpc_server import (
    MAX_CONNECTIONS,
    PUBLIC_SERVER_OPTIONS,
    SERVER_OPTIONS,
    add_health_and_reflection,
    check_port_is_free,
    create_server,
    join_address,
    listen,
    listen_locally,
    set_serving,
    stop_gracefully,
    wait_for_stop_signal,
)
from radixd.chassis.readiness import NOT_SERVING, SERVING, UNREACHABLE, readiness


@pytest.mark.parametrize(
    ("host", "address"),
    [("127.0.0.1", "127.0.0.1:5"), ("::1", "[::1]:5"), ("[::1]", "[::1]:5"), ("box", "box:5")],
)
def test_addresses(host, address):
    assert join_address(host, 5) == address


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "[::1]", "localhost"])  # field case 132
async def test_hosts_of_every_kind_work(host):
    server = create_server()
    health = await add_health_and_reflection(server, ["some.Service"])
    port = listen(server, host, 0)
    await server.start()
    address = join_address(host, port)
    assert await asyncio.to_thread(readiness, address) == NOT_SERVING
    await set_serving(health, ["some.Service"], serving=True)
    assert await asyncio.to_thread(readiness, address) == SERVING
    assert await asyncio.to_thread(readiness, address, service="some.Service") == SERVING
    await stop_gracefully(server, health, grace_s=0)
    assert await asyncio.to_thread(readiness, address, timeout_s=0.5) == UNREACHABLE


async def test_a_second_server_on_the_port_is_refused():
    first, second = create_server(), create_server()
    port = listen(first, "127.0.0.1", 0)
    await first.start()
    with pytest.raises(InvalidRequest) as caught:
        listen(second, "127.0.0.1", port, option="scheduler_port")
    assert str(caught.value) == (
        f"scheduler_port: 127.0.0.1:{port} is already in use; "
        "stop the process that holds it or choose another port"
    )
    await first.stop(0)
    check_port_is_free("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "text"),
    [("no.such.host.invalid", "no such host"), ("192.0.2.1", "is not an address of this machine")],
)
def test_hosts_that_cannot_be_listened_on(host, text):
    with pytest.raises(InvalidRequest, match=text):
        check_port_is_free(host, 0)


async def test_noise_on_the_port_does_not_disturb_it():  # field case 126
    server = create_server()
    health = await add_health_and_reflection(server, [])
    port = listen(server, "127.0.0.1", 0)
    await server.start()
    await set_serving(health, [], serving=True)
    for noise in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", os.urandom(1024)):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(noise)
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionError):
                while await reader.read(4096):
                    pass
        writer.close()
    assert await asyncio.to_thread(readiness, f"127.0.0.1:{port}") == SERVING
    await server.stop(0)


def test_defaults_that_bite_are_overridden():
    options = dict(SERVER_OPTIONS)
    assert options["grpc.so_reuseport"] == 0
    assert options["grpc.keepalive_permit_without_calls"] == 1
    assert options["grpc.http2.min_ping_interval_without_data_ms"] <= 5000
    assert options["grpc.max_receive_message_length"] == 32 << 20


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_stop_signal_is_awaited(number):
    before = signal.getsignal(number)
    waiting = asyncio.create_task(wait_for_stop_signal())
    await asyncio.sleep(0)
    os.kill(os.getpid(), number)
    assert await waiting == number.name
    signal.signal(number, before)


async def test_port_zero_gives_different_ports():
    server = create_server()
    ports = {listen(server, "127.0.0.1", 0) for _ in range(3)}
    assert len(ports) == 3
    with socket.create_connection(("127.0.0.1", ports.pop()), timeout=5):
        await server.stop(0)


async def test_who_connects_once_too_often_is_turned_away_and_others_stay():
    options = dict(PUBLIC_SERVER_OPTIONS) | {"grpc.max_allowed_incoming_connections": 3}
    assert dict(PUBLIC_SERVER_OPTIONS)["grpc.max_allowed_incoming_connections"] == MAX_CONNECTIONS
    server = create_server(options=list(options.items()))
    health = await add_health_and_reflection(server, [])
    port = listen(server, "127.0.0.1", 0)
    await server.start()
    await set_serving(health, [], serving=True)

    async def is_answered(stub: health_pb2_grpc.HealthStub) -> bool:
        try:
            await stub.Check(health_pb2.HealthCheckRequest(), timeout=5)
        except grpc.aio.AioRpcError:
            return False
        return True

    async with contextlib.AsyncExitStack() as stack:
        stubs = []
        for _ in range(4):
            channel = grpc.aio.insecure_channel(
                f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)]
            )
            await stack.enter_async_context(channel)
            stubs.append(health_pb2_grpc.HealthStub(channel))
        assert [await is_answered(stub) for stub in stubs] == [True, True, True, False]
        assert await is_answered(stubs[0])
    await server.stop(0)


async def test_a_local_socket_is_for_its_user_alone_in_any_folder(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir(mode=0o755)
    server, before = create_server(), os.umask(0)
    try:
        listen_locally(server, folder / "front.sock")
    finally:
        os.umask(before)
    assert stat.S_IMODE((folder / "front.sock").stat().st_mode) == 0o600
    await server.stop(0)


async def test_a_client_that_left_before_its_reply_is_no_error_in_the_log(caplog):
    create_server()
    log = logging.getLogger("grpc._cython.cygrpc")
    for error in (grpc.aio.InternalError("a batch failed"), ZeroDivisionError("a defect")):
        log.error("raised in core", exc_info=error)
    assert [record.exc_info[0] for record in caplog.records] == [ZeroDivisionError]
