"""Addresses as people write them, and errors as one line."""

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2

from protos.radixd.v1 import admin_pb2
from radixd.chassis.setting_sources import API_KEY_VARIABLE, load_settings
from radixd.cli.client import (
    Client,
    CommandError,
    default_target,
    parse_target,
    server_address,
)
from tests.cli.conftest import Run
from tests.cli.fake_server import FakeServer, invalid_field


@pytest.mark.parametrize(
    ("written", "target"),
    [
        ("localhost:50051", "localhost:50051"),
        ("grpc://localhost:50051", "localhost:50051"),
        ("grpc://localhost:50051/", "localhost:50051"),
        ("[::1]:50051", "[::1]:50051"),
        ("grpc://[::1]:50051", "[::1]:50051"),
        ("grpcs://localhost:50051/", "localhost:50051"),
        ("dns:///radixd.example:50051", "dns:///radixd.example:50051"),
        (" 10.0.0.1:80 ", "10.0.0.1:80"),
        ("unix:/run/radixd.sock", "unix:/run/radixd.sock"),
    ],
)
def test_addresses_of_every_form(written: str, target: str) -> None:
    # field case 126
    assert parse_target(written) == target


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("http://localhost:3000", "HTTP"),
        ("https://localhost:3000", "HTTP"),
        ("ftp://localhost:21", "scheme ftp"),
        ("::1:50051", "[::1:50051]:PORT"),
        ("localhost", "HOST:PORT"),
        ("localhost:", "HOST:PORT"),
        (":50051", "HOST:PORT"),
        ("localhost:70000", "HOST:PORT"),
        ("localhost:x", "HOST:PORT"),
        ("", "HOST:PORT"),
    ],
)
def test_addresses_that_are_none(written: str, hint: str) -> None:
    with pytest.raises(CommandError) as refused:
        parse_target(written)
    assert hint in str(refused.value)


def test_every_form_reaches_the_server(server: FakeServer) -> None:
    # field case 126
    forms = ["127.0.0.1:{}", "grpc://127.0.0.1:{}", "dns:///localhost:{}", "localhost:{}"]
    for form in forms:
        with Client(form.format(server.port)) as client:
            assert client.stats().model.name == "tiny"


def test_ipv6_reaches_the_server() -> None:
    # field cases 126, 132
    with FakeServer("[::1]") as server, Client(f"[::1]:{server.port}") as client:
        assert client.stats().model.name == "tiny"


def test_default_target_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RADIXD_HOST", raising=False)
    monkeypatch.delenv("RADIXD_PORT", raising=False)
    assert default_target() == "127.0.0.1:50051"
    monkeypatch.setenv("RADIXD_PORT", "6000")
    assert default_target() == "127.0.0.1:6000"


@pytest.mark.parametrize(
    ("host", "address"),
    [("0.0.0.0", "127.0.0.1:7"), ("::", "[::1]:7"), ("[::1]", "[::1]:7"), ("gpu-1", "gpu-1:7")],
)
def test_a_wildcard_is_reached_on_the_loopback(host: str, address: str) -> None:
    assert server_address(load_settings({"host": host, "port": 7})) == address


def test_nobody_there(run: Run) -> None:
    ran = run("tree", "--target", "127.0.0.1:1")
    assert ran.code == 1
    assert ran.out == ""
    assert ran.err == "radixd: no radixd answers at 127.0.0.1:1; start one with `radixd up`\n"


@pytest.mark.parametrize(
    ("num_pieces", "complaint"),
    [
        (0, "no radixd answers at {}; start one with `radixd up`"),
        (1, "the radixd at {} went away in the middle of its answer"),
    ],
)
def test_a_server_that_goes_away_was_there(
    server: FakeServer, run: Run, num_pieces: int, complaint: str
) -> None:
    server.inference.breaks_after = num_pieces
    ran = run("generate", "--prompt", "x", "--target", server.target)
    assert ran.code == 1
    assert ran.err.splitlines()[-1] == f"radixd: {complaint.format(server.target)}"


def test_a_refusal_is_one_line(server: FakeServer, run: Run) -> None:
    detail = invalid_field("sampling.temperature", "must be a number")
    server.inference.refusal = (
        grpc.StatusCode.INVALID_ARGUMENT,
        "sampling.temperature: must be\na number",
        [detail],
    )
    ran = run("generate", "--prompt", "x", "--temperature", "nan", "--target", server.target)
    assert ran.code == 1
    assert ran.err == "radixd: sampling.temperature: must be a number (INVALID_ARGUMENT)\n"


def test_details_add_what_the_message_lacks(server: FakeServer, run: Run) -> None:
    retry = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=2))
    server.inference.refusal = (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "as many wait as may wait",
        [invalid_field("prompt", "too long"), retry],
    )
    ran = run("generate", "--prompt", "x", "--target", server.target)
    assert ran.err == (
        "radixd: as many wait as may wait; prompt: too long; try again in 2 s "
        "(RESOURCE_EXHAUSTED)\n"
    )


def test_an_unavailable_server_that_answers_speaks_for_itself(server: FakeServer, run: Run) -> None:
    server.inference.refusal = (grpc.StatusCode.UNAVAILABLE, "the model is loading", [])
    ran = run("generate", "--prompt", "x", "--target", server.target)
    assert ran.err == "radixd: the model is loading (UNAVAILABLE)\n"


def test_an_error_without_details(server: FakeServer, run: Run) -> None:
    server.inference.bare_error = (grpc.StatusCode.INTERNAL, "a defect")
    ran = run("generate", "--prompt", "x", "--target", server.target)
    assert (ran.code, ran.err) == (1, "radixd: a defect (INTERNAL)\n")


def test_messages_beyond_four_megabytes(server: FakeServer) -> None:
    # field case 122
    text = "x" * (6 << 20)
    server.admin.tree.nodes.append(admin_pb2.TreeNode(parent=-1, text=text))
    with Client(server.target) as client:
        assert client.dump_tree(10).nodes[0].text == text


COMMANDS_WITH_A_KEY = (
    ("generate", "--prompt", "x"),
    ("preheat", "x"),
    ("tree",),
    ("top", "--once", "--interval", "0.1"),
    ("requests",),
    ("pins",),
    ("pins", "--unpin-all"),
    ("sessions",),
    ("sessions", "--close", "s"),
    ("policy",),
    ("policy", "chunk_size=1"),
)


@pytest.mark.parametrize("argv", COMMANDS_WITH_A_KEY, ids=" ".join)
def test_the_key_goes_with_every_call(
    server: FakeServer, run: Run, monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...]
) -> None:
    monkeypatch.delenv(API_KEY_VARIABLE, raising=False)
    run(*argv, "--target", server.target)
    assert set(server.keys.seen) == {None}
    server.keys.seen.clear()
    monkeypatch.setenv(API_KEY_VARIABLE, "sk-env")
    run(*argv, "--target", server.target)
    assert set(server.keys.seen) == {"Bearer sk-env"}
    server.keys.seen.clear()
    run(*argv, "--api-key", "sk-flag", "--target", server.target)
    assert set(server.keys.seen) == {"Bearer sk-flag"}


def test_a_key_that_cannot_be_one_is_not_quoted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = "a key has neither blanks nor characters beyond ASCII"
    ran = run("tree", "--api-key", "geheim niß", "--target", "127.0.0.1:1")
    assert (ran.code, ran.err) == (1, f"radixd: --api-key: {problem}\n")
    monkeypatch.setenv(API_KEY_VARIABLE, "se\ncret")
    ran = run("tree", "--target", "127.0.0.1:1")
    assert (ran.code, ran.err) == (1, f"radixd: RADIXD_API_KEY: {problem}\n")


def test_a_server_that_wants_a_key_says_how_to_give_one(server: FakeServer, run: Run) -> None:
    server.inference.refusal = (grpc.StatusCode.UNAUTHENTICATED, "a known key is needed", [])
    ran = run("generate", "--prompt", "x", "--target", server.target)
    assert ran.err == (
        "radixd: a known key is needed; set RADIXD_API_KEY or give --api-key (UNAUTHENTICATED)\n"
    )
