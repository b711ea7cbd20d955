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
from radixd.chassis.setting_sources import API_KEY_VARIABLE, load_settings
from radixd.chassis.settings import Settings


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


def test_slots_are_a_number_or_what_there_is_room_for():
    assert settings_from_argv("x", []).kv_slots == "auto"
    assert settings_from_argv("x", []).cpu_kv_slots == 16384
    for given, slots in (("auto", 16384), ("77", 77)):
        settings = settings_from_argv("x", ["--kv-slots", given])
        assert settings.cpu_kv_slots == slots
        assert settings_from_argv("x", argv_from_settings(settings)) == settings


def test_help_names_what_an_option_takes(capsys):
    with pytest.raises(SystemExit):
        settings_from_argv("x", ["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "Which cached prefix goes first. One of lru, lfu, slru," in text


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
        (["--kv-slots", "many"], "kv_slots: 'many' is neither auto nor a whole number (--kv-slots"),
        (["--kv-slots", "0"], "kv_slots: 0 is below 1 (--kv-slots)"),
        (["--kv-slots", "1.5"], "kv_slots: '1.5' is neither auto nor a whole number"),
        (["--device", "cuda", "--backend", "torch"], "backend: torch computes on the CPU"),
        (["--device", "cpu", "--kv-dtype", "fp8"], "kv_dtype: fp8 needs a GPU: --device cpu"),
        (["--memory-fraction", "0"], "(--memory-fraction)"),
        (["--memory-fraction", "1.01"], "(--memory-fraction)"),
        (["--page-size", "0"], "(--page-size)"),
        (["--pipeline-depth", "3"], "(--pipeline-depth)"),
        (["--step-timeout-s", "nan"], "(--step-timeout-s)"),
        (["--waiting-order", "sjf"], "(--waiting-order)"),
        (["--chunk-sizes", "chat"], "'chat' is not of the form class=tokens (--chunk-sizes)"),
        (["--chunk-sizes", "chat=1,chat=2"], "the class 'chat' comes twice"),
        (["--chunk-sizes", "chat=x"], "chunk_sizes.chat: "),
        (["--chunk-sizes", "chat=x"], "(--chunk-sizes)"),
        (["--chunk-sizes", "chat=0"], "chat: 0 is below 1 (--chunk-sizes)"),
        (["--chunk-sizes", "a b=5"], "'a b' is no name"),
        (["--chunk-sizes", "chat=1,"], "'' is not of the form"),
        (["--public-domains", "a,,b"], "a name is empty"),
        (["--retraction-keep", "some"], "(--retraction-keep)"),
        (["--prefill-share", "0"], "(--prefill-share)"),
        (["--weight-age", "inf"], "(--weight-age)"),
        (["--policy-seed", str(2**63)], "(--policy-seed)"),
        (["--metrics-port", "-2"], "(--metrics-port)"),
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


def test_the_key_of_a_client_is_no_option(monkeypatch):
    monkeypatch.setenv(API_KEY_VARIABLE, "secret")
    assert settings_from_argv("x", []) == Settings()
    assert API_KEY_VARIABLE not in environment_for_child()


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
        ("port: 1\nkv_slots: 5\nport: 2", "config: {file}: the key 'port' comes twice"),
        ("chunk_sizes: {chat: 5, chat: 6}", "config: {file}: the key 'chat' comes twice"),
        ("chunk_sizes: {chat: many}", "chunk_sizes.chat: "),
        ("[" * 10_000, "config: {file}: "),
        ("log_level: 2026-99-99", "config: {file}: month must be in 1..12"),
        ("chunk_sizes: [5]", "({file})"),
        ("public_domains: [a, '']", "({file})"),
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
        ({"max_length": (4 << 20) + 1}, "max_length"),
        ({"low_watermark": 0.96}, "low_watermark"),
        ({"high_watermark": 0.5}, "low_watermark"),
        ({"scheduler_port": 7, "metrics_port": 7}, "metrics_port"),
    ],
)
def test_what_can_serve_nobody_is_refused_at_the_start(flags, field):
    with pytest.raises(InvalidRequest) as refused:
        load_settings(flags)
    assert refused.value.field == field


def test_a_default_metrics_port_makes_way():
    settings = load_settings({"scheduler_port": 50054})
    assert settings.metrics_port == 50054
    assert not settings.asks_for("metrics_port")


@pytest.mark.parametrize("way", ["flag", "variable", "file"])
def test_chunk_sizes_and_public_domains_come_in_every_way(monkeypatch, tmp_path, way):
    argv = []
    if way == "flag":
        argv = ["--chunk-sizes", "chat=64, own.class=8", "--public-domains", "a, b"]
    elif way == "variable":
        monkeypatch.setenv("RADIXD_CHUNK_SIZES", "chat=64,own.class=8")
        monkeypatch.setenv("RADIXD_PUBLIC_DOMAINS", "a,b")
    else:
        file = tmp_path / "radixd.yaml"
        file.write_text("chunk_sizes:\n  chat: 64\n  own.class: 8\npublic_domains: [a, b]\n")
        argv = ["--config", str(file)]
    settings = settings_from_argv("x", argv)
    assert settings.chunk_sizes == {"chat": 64, "own.class": 8}
    assert settings.public_domains == ("a", "b")
    for name in [name for name in os.environ if name.startswith("RADIXD_")]:
        monkeypatch.delenv(name)
    assert settings_from_argv("x", argv_from_settings(settings)) == settings
    printed = tmp_path / "printed.yaml"
    printed.write_text(settings_as_yaml(settings))
    assert load_settings({}, printed) == settings


def test_no_workload_class_and_no_public_domain_can_be_said(tmp_path):
    settings = settings_from_argv("x", ["--chunk-sizes=", "--public-domains="])
    assert (settings.chunk_sizes, settings.public_domains) == ({}, ())
    assert "--chunk-sizes=" in argv_from_settings(settings)


def test_help_shows_the_flag_form_of_a_default(capsys):
    with pytest.raises(SystemExit):
        settings_from_argv("x", ["--help"])
    shown = "".join(capsys.readouterr().out.split())
    assert "[chat=512,code=1024,longform=2048]" in shown


def test_files_are_taken_from_here():
    settings = load_settings({"tenants": "t.yaml", "preheat": "p.yaml"})
    assert (settings.tenants, settings.preheat) == (Path.cwd() / "t.yaml", Path.cwd() / "p.yaml")


def test_merged_yaml_keys_are_no_repetition(tmp_path):
    file = tmp_path / "radixd.yaml"
    file.write_text("chunk_sizes: {<<: &base {chat: 5, code: 6}, chat: 7}\n")
    assert load_settings({}, file).chunk_sizes == {"chat": 7, "code": 6}


def test_a_relative_run_dir_is_taken_from_here():
    assert load_settings({"run_dir": "rd"}).worker_address == f"ipc://{Path.cwd()}/rd/worker.ipc"
