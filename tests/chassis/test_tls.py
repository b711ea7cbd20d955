"""Certificates: what is refused at the start, what is taken while the server runs."""

import asyncio
import os
import ssl
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.errors import InvalidRequest
from radixd.chassis.grpc_server import add_health_and_reflection, create_server, listen
from radixd.chassis.setting_sources import load_settings
from radixd.chassis.tls import ServerTls, TlsFiles, tls_files
from tests.certificates import Certificate, make_authority, make_signed


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Certificate:
    return make_authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture
def server(tmp_path, authority) -> Certificate:
    return make_signed(tmp_path, "server", authority)


def problem(**files: Path) -> str:
    with pytest.raises(InvalidRequest) as caught:
        ServerTls(TlsFiles(**files))
    return str(caught.value)


def test_what_cannot_be_used_is_named(tmp_path, server, authority):
    nothing, text = tmp_path / "nothing.pem", tmp_path / "text.pem"
    text.write_text("no PEM at all")
    assert problem(cert=nothing, key=server.key) == (
        f"tls_cert: {nothing}: No such file or directory"
    )
    assert problem(cert=server.cert, key=nothing) == (
        f"tls_key: {nothing}: No such file or directory"
    )
    assert problem(cert=text, key=server.key) == f"tls_cert: {text}: holds no certificate in PEM"
    assert problem(cert=server.key, key=server.key).startswith("tls_cert: ")
    assert problem(cert=server.cert, key=text).startswith(f"tls_key: {text}: holds no private key")
    assert problem(cert=server.cert, key=authority.key) == (
        f"tls_key: {authority.key}: is not the key of {server.cert}"
    )
    assert problem(cert=server.cert, key=server.key, client_ca=text) == (
        f"tls_client_ca: {text}: holds no certificate in PEM"
    )
    assert problem(cert=tmp_path, key=server.key) == f"tls_cert: {tmp_path}: Is a directory"


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(tmp_path, server):
    locked = tmp_path / "locked.key"
    command = f"openssl ec -in {server.key} -aes256 -passout pass:secret -out {locked}"
    assert os.system(f"{command} 2>{os.devnull}") == 0
    assert "one with a password" in problem(cert=server.cert, key=locked)


def test_options_that_need_one_another():
    assert tls_files(load_settings({})) is None
    for flags, name in (
        ({"tls_cert": "a"}, "tls_key"),
        ({"tls_key": "a"}, "tls_cert"),
        ({"tls_client_ca": "a"}, "tls_client_ca"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            load_settings(flags)
        assert caught.value.field == name


async def ask(port: int, ca: Certificate, client: Certificate | None = None) -> str:
    """SERVING, or why there is no connection."""
    shown = (None, None)
    if client is not None:
        shown = (client.key.read_bytes(), client.cert.read_bytes())
    credentials = grpc.ssl_channel_credentials(ca.cert.read_bytes(), *shown)
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(
        f"127.0.0.1:{port}", credentials, options=options
    ) as channel:
        try:
            stub = health_pb2_grpc.HealthStub(channel)
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=10)
        except grpc.aio.AioRpcError as error:
            return error.code().name
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


async def serve(tls: ServerTls) -> tuple[grpc.aio.Server, int]:
    server = create_server()
    await add_health_and_reflection(server, [])
    port = listen(server, "127.0.0.1", 0, credentials=tls.grpc_credentials())
    await server.start()
    return server, port


async def test_grpc_takes_a_renewed_certificate_for_new_connections(tmp_path, server, authority):
    other = make_authority(tmp_path, "other")
    tls = ServerTls(TlsFiles(cert=server.cert, key=server.key))
    running, port = await serve(tls)
    assert await ask(port, authority) == "NOT_SERVING"
    assert await ask(port, other) == "UNAVAILABLE"
    make_signed(tmp_path, "renewed", other).copy_to(server)
    assert await ask(port, authority) == "NOT_SERVING", "nobody has looked yet"
    tls.reload()
    assert await ask(port, other) == "NOT_SERVING"
    assert await ask(port, authority) == "UNAVAILABLE"
    server.key.write_text("half")
    with pytest.raises(InvalidRequest):
        tls.reload()
    assert await ask(port, other) == "NOT_SERVING", "what was in force stays"
    await running.stop(0)


async def test_grpc_asks_for_a_clients_certificate(tmp_path, server, authority):
    clients = make_authority(tmp_path, "clients")
    client = make_signed(tmp_path, "client", clients)
    files = TlsFiles(cert=server.cert, key=server.key, client_ca=clients.cert)
    running, port = await serve(ServerTls(files))
    assert await ask(port, authority, client) == "NOT_SERVING"
    assert await ask(port, authority) == "UNAVAILABLE"
    assert await ask(port, authority, server) == "UNAVAILABLE", "signed by somebody else"
    await running.stop(0)


async def hand_shake(port: int, ca: Certificate, client: Certificate | None = None) -> str:
    """The name in the certificate that a plain TLS client sees, or its error."""
    context = ssl.create_default_context(cafile=str(ca.cert))
    if client is not None:
        context.load_cert_chain(client.cert, client.key)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        shown = dict(pair[0] for pair in writer.get_extra_info("peercert")["subject"])
        # A client learns that it was refused only when it reads.
        said = await reader.read()
        writer.close()
    except OSError as error:
        return type(error).__name__
    return f"{shown['commonName']} {said.decode()}"


async def test_http_takes_renewed_certificates_for_new_connections(tmp_path, server, authority):
    clients, others = make_authority(tmp_path, "clients"), make_authority(tmp_path, "others")
    client = make_signed(tmp_path, "client", clients)
    new_client = make_signed(tmp_path, "new-client", others)
    tls = ServerTls(TlsFiles(cert=server.cert, key=server.key, client_ca=clients.cert))

    async def greet(reader, writer):
        writer.write(b"hello")
        writer.close()

    listener = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=tls.ssl_context())
    port = listener.sockets[0].getsockname()[1]
    assert await hand_shake(port, authority, client) == "server hello"
    assert await hand_shake(port, authority) != "server hello"
    make_signed(tmp_path, "renewed", authority).copy_to(server)
    others.copy_to(clients)
    tls.reload()
    assert await hand_shake(port, authority, new_client) == "renewed hello"
    assert await hand_shake(port, authority, client) != "renewed hello"
    listener.close()
