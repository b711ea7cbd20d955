"""The command line as a whole: help, versions, exit codes, text that steers no terminal."""

import json
import subprocess
import sys

import pytest

from radixd.chassis.settings import Settings
from radixd.cli.terminal import finish_name, harmless, snippet
from tests.cli.conftest import Run
from tests.cli.fake_server import FakeServer

COMMANDS = (
    *("up", "chat", "generate", "preheat", "tree", "top", "requests", "explain", "pins", "policy"),
    "sessions",
    *("bench", "doctor", "version"),
)


def test_every_command_has_help(run: Run) -> None:
    listed = run("--help")
    assert listed.code == 0
    for name in COMMANDS:
        assert name in listed.out
        assert run(name, "--help").code == 0, name


def test_up_shows_every_setting(run: Run) -> None:
    ran = run("up", "--help")
    for name in (*Settings.model_fields, "config", "print_config"):
        assert f"--{name.replace('_', '-')}" in ran.out


def test_up_takes_flags_and_refuses_others(run: Run) -> None:
    ran = run("up", "--kv-slots", "77", "--fake-worker", "--print-config")
    assert ran.code == 0
    assert "kv_slots: 77" in ran.out
    assert "fake_worker: true" in ran.out
    ran = run("up", "--no-such-flag")
    assert (ran.code, "--no-such-flag" in ran.err) == (2, True)


def test_version(run: Run) -> None:
    value = json.loads(run("version", "--json").out)
    assert {"radixd", "grpcio", "protobuf", "python", "torch"} <= set(value)
    assert value["radixd"] in run("version").out


def test_wrong_usage_is_exit_code_two(run: Run) -> None:
    assert run("no-such-command").code == 2
    assert run("tree", "--no-such-flag").code == 2


def test_a_wrong_variable_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RADIXD_PORT", "many")
    ran = run("tree")
    assert (ran.code, ran.err.startswith("radixd: port: ")) == (1, True)


def test_as_a_program(server: FakeServer) -> None:
    code = "from radixd.cli.app import main; raise SystemExit(main())"
    argv = [sys.executable, "-c", code, "generate", "--prompt", "x", "--json", "--target"]
    done = subprocess.run(
        [*argv, server.target], capture_output=True, text=True, timeout=30, check=True
    )
    assert json.loads(done.stdout)["text"] == "Hello!"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb\tc", "a\nb\tc"),
        ("\x1b[2J!", "\ufffd[2J!"),
        ("\x9b1m", "\ufffd1m"),
        ("é量🙂", "é量🙂"),
    ],
)
def test_text_of_a_model_cannot_steer_the_terminal(text: str, shown: str) -> None:
    assert harmless(text) == shown


def test_snippets_are_one_short_line() -> None:
    assert snippet("a\nb\x1b", 10) == "a\\nb\\x1b"
    assert snippet("x" * 20, 5) == "xxxx…"


def test_reasons_of_newer_servers_stay_numbers() -> None:
    assert finish_name(1) == "stop"
    assert finish_name(99) == "99"
