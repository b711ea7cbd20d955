"""A server with a certificate, by the ways its clients take: the command line, gRPC and HTTPS."""

import json
import ssl
import subprocess
import sys
from pathlib import Path

import grpc
import httpx2
import pytest

from protos.radixd.v1 import inference_pb2 as pb
from protos.radixd.v1 import inference_pb2_grpc
from tests.certificates import make_authority, make_signed
from tests.system.stack import launched


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(folder):
    return make_authority(folder, "authority")


@pytest.fixture(scope="module")
def client_certificate(folder, authority):
    return make_signed(folder, "client", authority)


@pytest.fixture(scope="module")
def stack(folder, authority):
    server = make_signed(folder, "server", authority)
    files = ("--tls-cert", str(server.cert), "--tls-key", str(server.key))
    with launched("--fake-worker", *files, "--tls-client-ca", str(authority.cert)) as running:
        yield running


def radixd(*words: str) -> subprocess.CompletedProcess[str]:
    code = "from radixd.cli.app import main; raise SystemExit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60
    )


def generate(*words: str) -> subprocess.CompletedProcess[str]:
    return radixd("generate", "--prompt", "x", "--max-tokens", "3", "--json", *words)


def test_the_command_line_gets_in(stack, authority, client_certificate):
    assert stack.address.startswith("grpcs://")
    assert stack.http.startswith("https://")
    trust = ("--tls-ca", str(authority.cert))
    shown = ("--tls-cert", str(client_certificate.cert), "--tls-key", str(client_certificate.key))
    done = generate("--target", stack.address, *trust, *shown)
    assert json.loads(done.stdout)["usage"]["completion_tokens"] == 3, done.stderr
    plain = stack.address.removeprefix("grpcs://")
    assert generate("--target", plain, *trust, *shown).returncode == 0, "files ask for it as well"
    # Who started the server needs no certificate, by the line that it says it with.
    hint = stack.wait_for_line("  radixd chat --target ")
    done = generate("--target", hint.split()[-1])
    assert json.loads(done.stdout)["usage"]["completion_tokens"] == 3, done.stderr


def test_a_benchmark_gets_in(stack, authority, client_certificate):
    trust = ("--tls-ca", str(authority.cert))
    shown = ("--tls-cert", str(client_certificate.cert), "--tls-key", str(client_certificate.key))
    done = radixd("bench", "--workload", "w1", "--json", "--target", stack.address, *trust, *shown)
    assert json.loads(done.stdout)["out_tok_s"] > 0, done.stderr
    done = radixd("bench", "--workload", "w1", "--target", stack.address, *trust)
    assert (done.returncode, done.stdout) == (1, "")
    assert "a client's certificate" in done.stderr
    done = radixd("bench", "--workload", "w1", "--fake-worker", *trust)
    assert done.returncode == 1
    assert "go with --target" in done.stderr


def test_who_cannot_get_in_is_told_why(stack, folder, authority, client_certificate):
    trust = ("--tls-ca", str(authority.cert))
    shown = ("--tls-cert", str(client_certificate.cert))
    for words, problem in (
        ((stack.address.removeprefix("grpcs://"),), "perhaps it wants encryption"),
        ((stack.address, *trust), "a client's certificate"),
        ((stack.address,), "not signed by anybody we trust"),
        ((stack.address, "--tls-ca", str(folder / "none.pem")), "--tls-ca: "),
        ((stack.address, *trust, *shown), "give both"),
        (
            (stack.address, *trust, *shown, "--tls-key", str(authority.key)),
            "is not the key of",
        ),
    ):
        done = generate("--target", *words)
        assert (done.returncode, done.stdout) == (1, "")
        assert problem in done.stderr
        assert len([line for line in done.stderr.splitlines() if "radixd: " in line]) == 1


async def test_stubs_and_browsers_get_in(stack, authority, client_certificate):
    credentials = grpc.ssl_channel_credentials(
        authority.cert.read_bytes(),
        client_certificate.key.read_bytes(),
        client_certificate.cert.read_bytes(),
    )
    address = stack.address.removeprefix("grpcs://")
    async with grpc.aio.secure_channel(address, credentials) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        request = pb.GenerateUnaryRequest(text="x", sampling=pb.SamplingParams(max_tokens=3))
        assert (await stub.GenerateUnary(request, timeout=20)).usage.completion_tokens == 3
    context = ssl.create_default_context(cafile=str(authority.cert))
    context.load_cert_chain(client_certificate.cert, client_certificate.key)
    async with httpx2.AsyncClient(verify=context, base_url=stack.http, trust_env=False) as http:
        answer = await http.post("/v1/completions", json={"prompt": "x", "max_tokens": 3})
        assert answer.json()["usage"]["completion_tokens"] == 3


async def test_http_without_a_clients_certificate_is_refused(stack, authority):
    context = ssl.create_default_context(cafile=str(authority.cert))
    async with httpx2.AsyncClient(verify=context, base_url=stack.http, trust_env=False) as http:
        with pytest.raises(httpx2.TransportError):
            await http.get("/health")
    async with httpx2.AsyncClient(trust_env=False) as http:
        with pytest.raises(httpx2.TransportError):
            await http.get(stack.http.replace("https", "http") + "/health")


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--host", "0.0.0.0"), "host: 0.0.0.0 is reached from other machines"),
        (("--http-host", "0.0.0.0"), "http_host: 0.0.0.0 is reached from other machines"),
        (("--tls-cert", "none.pem"), "tls_key: is missing beside tls_cert"),
        (("--tls-cert", "none.pem", "--tls-key", "none.key"), "none.pem: No such file"),
    ],
)
def test_a_start_that_is_not_meant_is_one_line(flags: tuple[str, ...], problem: str):
    for command in (("radixd.cli.app", "up"), ("tokenizer_svc", None)):
        module, word = command
        if word is not None:
            done = radixd(word, "--fake-worker", "--port", "0", *flags)
        else:
            argv = [sys.executable, "-m", module, "--fake-worker", "--port", "0", *flags]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        assert done.returncode in (1, 2)
        (line,) = done.stderr.splitlines()
        assert problem in line
        assert "Traceback" not in line


def test_the_sockets_of_a_start_go_with_it(folder: Path, authority):
    server = make_signed(folder, "short", authority)
    files = ("--tls-cert", str(server.cert), "--tls-key", str(server.key))
    with launched("--fake-worker", *files) as running:
        hint = running.wait_for_line("  radixd chat --target ")
        socket = Path(hint.split()[-1].removeprefix("unix:"))
        assert socket.is_socket()
        assert socket.parent.stat().st_mode & 0o077 == 0
    assert not socket.exists()
