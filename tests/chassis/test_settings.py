"""One schema: flags, variables and YAML keys; precedence; errors that name the option."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from protos.errors import InvalidRequest
from radixd.chassis.command import (
    argv_from_settings,
    environment_for_child,
    settings_as_yaml,
    settings_from_argv,
)
from radixd.chassis.settings import Settings, load_settings


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    for name in [name for name in os.environ if name.upper().startswith("RADIXD_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def refused(capsys):
    """Runs a command line that must be refused; gives its one line."""

    def run(*argv: str) -> str:
        with pytest.raises(SystemExit) as caught:
            settings_from_argv("radixd up", list(argv))
        assert caught.value.code == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        assert captured.err.startswith("radixd up: ")
        return captured.err

    return run


def test_defaults_need_nothing():
    assert settings_from_argv("radixd up", []) == Settings()


def test_flags_beat_variables_beat_file_beat_defaults(monkeypatch, tmp_path):
    file = tmp_path / "radixd.yaml"
    file.write_text("port: 1\nscheduler_port: 1\nkv_slots: 1\n")
    monkeypatch.setenv("RADIXD_PORT", "2")
    monkeypatch.setenv("RADIXD_SCHEDULER_PORT", "2")
    settings = settings_from_argv("x", ["--config", str(file), "--port", "3"])
    assert (settings.port, settings.scheduler_port, settings.kv_slots) == (3, 2, 1)
    assert settings.page_size == 1


def test_every_field_is_a_flag_in_kebab_case():
    settings = settings_from_argv(
        "x", ["--fake-worker", "--no-restart-worker", "--max-batch-tokens=7", "--run-dir", "/r"]
    )
    assert (settings.fake_worker, settings.restart_worker) == (True, False)
    assert settings.max_batch_tokens == 7
    assert str(settings.run_dir) == "/r"


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--port", "65536"], "less than or equal to 65535 (--port)"),
        (["--port", "x"], "port: "),
        (["--port"], "--port: expected one argument"),
        (["--prot", "1"], "--prot: unknown option"),
        (["--po", "1"], "--po: unknown option"),
        (["up"], "up: unknown option"),
        (["--device", "gpu"], "(--device)"),
        (["--page-size", "0"], "(--page-size)"),
        (["--pipeline-depth", "3"], "(--pipeline-depth)"),
        (["--step-timeout-s", "nan"], "(--step-timeout-s)"),
        (["--waiting-order", "sjf"], "(--waiting-order)"),
        (["--config", "no/such.yaml"], "config: no/such.yaml: No such file"),
    ],
)
def test_a_bad_flag_is_one_line_that_names_it(refused, argv, text):
    assert text in refused(*argv)


def test_a_bad_variable_is_named(refused, monkeypatch):
    monkeypatch.setenv("RADIXD_KV_SLOTS", "many")
    assert "kv_slots: " in (line := refused())
    assert "(RADIXD_KV_SLOTS)" in line


def test_a_misspelt_variable_is_refused(refused, monkeypatch):  # field case 91
    monkeypatch.setenv("RADIXD_KV_SLOT", "100")
    assert "RADIXD_KV_SLOT: unknown option" in refused()


def test_what_kubernetes_sets_for_a_service_is_not_taken_for_an_option(refused, monkeypatch):
    monkeypatch.setenv("RADIXD_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("RADIXD_FRONT_SERVICE_PORT_GRPC", "50051")
    monkeypatch.setenv("RADIXD_PORT_50051_TCP_ADDR", "10.0.0.1")
    assert settings_from_argv("x", []) == Settings()
    monkeypatch.setenv("RADIXD_PORT", "tcp://10.0.0.1:50051")
    assert "(RADIXD_PORT)" in refused()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("kv_slot: 5", "kv_slot: unknown option ({file})"),
        ("kv_slots: many", "({file})"),
        ("- kv_slots", "{file}: a mapping of option names was expected"),
        ("a: [", "config: {file}: "),
        ("kv-slots: 5", "kv-slots: unknown option ({file})"),
    ],
)
def test_a_bad_file_is_named_with_the_key(refused, tmp_path, content, text):
    file = tmp_path / "radixd.yaml"
    file.write_text(content)
    assert text.format(file=file) in refused("--config", str(file))


def test_an_empty_file_is_no_options(tmp_path):
    file = tmp_path / "radixd.yaml"
    file.write_text("")
    assert load_settings({}, file) == Settings()


def test_load_settings_raises_for_callers_of_its_own():
    with pytest.raises(InvalidRequest) as caught:
        load_settings({"port": -1})
    assert caught.value.field == "port"


def test_print_config_is_a_file_that_config_takes(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        settings_from_argv("x", ["--port", "7", "--run-dir", "/r", "--print-config"])
    assert caught.value.code == 0
    printed = capsys.readouterr().out
    assert yaml.safe_load(printed)["port"] == 7
    file = tmp_path / "radixd.yaml"
    file.write_text(printed)
    again = settings_from_argv("x", ["--config", str(file)])
    assert again == settings_from_argv("x", ["--port", "7", "--run-dir", "/r"])
    assert settings_as_yaml(again) == printed


def test_help_shows_every_option(capsys):
    with pytest.raises(SystemExit) as caught:
        settings_from_argv("radixd up", ["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in shown
        assert field.description


def test_a_child_gets_the_same_settings(monkeypatch):
    monkeypatch.setenv("RADIXD_MAX_RUNNING", "5")
    argv = ["--model=-odd", "--port=7", "--fake-worker", "--no-restart-worker", "--run-dir=/r"]
    settings = settings_from_argv("x", argv)
    passed_on = argv_from_settings(settings)
    assert "--max-running=5" in passed_on
    environment = environment_for_child()
    assert "RADIXD_MAX_RUNNING" not in environment
    assert "PATH" in environment
    monkeypatch.delenv("RADIXD_MAX_RUNNING")
    assert settings_from_argv("x", passed_on) == settings


def test_run_folders_differ_by_scheduler_port():  # field case 130
    one, two = Settings(scheduler_port=1), Settings(scheduler_port=2)
    assert one.ipc_dir != two.ipc_dir
    assert one.worker_address == f"ipc://{one.ipc_dir}/worker.ipc"
    assert Settings(worker_endpoint="tcp://[::1]:9").worker_address == "tcp://[::1]:9"


def test_the_scheduler_refuses_a_bad_option_in_one_line():
    result = subprocess.run(
        [sys.executable, "-m", "scheduler_svc", "--worker-endpoint", "tcp://0.0.0.0:1"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert result.returncode == 2
    assert result.stderr.startswith("scheduler_svc: worker_endpoint: tcp://0.0.0.0:1")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        ({"page_size": 3}, "page_size"),
        ({"kv_slots": 10, "page_size": 16}, "kv_slots"),
        ({"max_length": 1}, "max_length"),
    ],
)
def test_what_can_serve_nobody_is_refused_at_the_start(flags, field):
    with pytest.raises(InvalidRequest) as refused:
        load_settings(flags)
    assert refused.value.field == field


def test_a_relative_run_dir_is_taken_from_here():
    assert load_settings({"run_dir": "rd"}).worker_address == f"ipc://{Path.cwd()}/rd/worker.ipc"
