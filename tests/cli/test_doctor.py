"""`radixd doctor`: each thing that can be wrong is named, with advice."""

import json
import math
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from protos.errors import ModelError
from radixd.chassis.setting_sources import load_settings
from radixd.chassis.settings import Settings
from radixd.cli import doctor_checks, doctor_server
from radixd.cli.doctor_finding import State
from radixd.cli.model_shape import read_shape
from tests.cli.conftest import Run
from tests.cli.fake_server import FakeServer


def settings(**flags: Any) -> Settings:
    return load_settings(flags)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def gguf(path: Path, values: dict[str, int | str | list[str]], dims: list[int]) -> Path:
    """A GGUF file with these values and one tensor."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    data = b"GGUF" + struct.pack("<IQQ", 3, 1, len(values))
    for name, value in values.items():
        data += text(name)
        if isinstance(value, str):
            data += struct.pack("<I", 8) + text(value)
        elif isinstance(value, list):
            data += struct.pack("<IIQ", 9, 8, len(value)) + b"".join(text(v) for v in value)
        else:
            data += struct.pack("<II", 4, value)
    data += text("token_embd.weight") + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    data += struct.pack("<IQ", 0, 0)
    weights = bytes(4 * math.prod(dims))
    path.write_bytes(data + bytes(-len(data) % 32) + weights)
    return path


LLAMA: dict[str, int | str | list[str]] = {
    "general.architecture": "llama",
    "tokenizer.ggml.tokens": ["a", "bc", ""],
    "llama.block_count": 3,
    "llama.embedding_length": 64,
    "llama.attention.head_count": 8,
    "llama.attention.head_count_kv": 2,
}


def folder(path: Path) -> Path:
    """A Hugging Face folder with one tensor of 2 by 3."""
    config = {"num_hidden_layers": 3, "num_attention_heads": 8, "hidden_size": 64}
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensor = {"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
    header = json.dumps(tensor).encode()
    data = struct.pack("<Q", len(header)) + header + bytes(24)
    (path / "model.safetensors").write_bytes(data)
    return path


def test_shape_of_a_gguf(tmp_path: Path) -> None:
    shape = read_shape(gguf(tmp_path / "m.gguf", LLAMA, [10, 20]))
    assert (shape.num_layers, shape.num_kv_heads, shape.head_dim) == (3, 2, 8)
    assert shape.num_parameters == 200
    assert shape.kv_bytes_per_token("fp32") == 2 * 3 * 2 * 8 * 4
    assert shape.kv_bytes_per_token("int8") == 2 * 3 * 2 * (8 + 4)


def test_shape_of_a_folder(tmp_path: Path) -> None:
    shape = read_shape(folder(tmp_path))
    assert (shape.num_kv_heads, shape.head_dim, shape.num_parameters) == (8, 8, 6)
    text = {"num_hidden_layers": 26, "hidden_size": 64}
    (tmp_path / "config.json").write_text(json.dumps({"text_config": text}))
    shape = read_shape(tmp_path)
    assert (shape.num_layers, shape.num_kv_heads, shape.head_dim) == (26, 4, 256)


def test_damaged_models_are_named(tmp_path: Path) -> None:
    whole = gguf(tmp_path / "whole.gguf", LLAMA, [10, 20]).read_bytes()
    broken = tmp_path / "broken.gguf"
    for size in range(0, len(whole), 7):
        broken.write_bytes(whole[:size])
        with pytest.raises(ModelError, match=r"broken\.gguf"):
            read_shape(broken)
    other = gguf(tmp_path / "other.gguf", {"general.architecture": "bert"}, [1])
    with pytest.raises(ModelError, match=r"bert\.attention\.head_count is missing"):
        read_shape(other)
    short = folder(tmp_path) / "model.safetensors"
    short.write_bytes(short.read_bytes()[:-5])
    with pytest.raises(ModelError, match="cut short by 5 bytes"):
        read_shape(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json: No such file"):
        read_shape(tmp_path)


def test_heads_that_are_none_or_no_number_are_named(tmp_path: Path) -> None:
    none = gguf(tmp_path / "m.gguf", LLAMA | {"llama.attention.head_count_kv": 0}, [10, 20])
    config = json.loads((folder(tmp_path) / "config.json").read_text())
    for wrong in ({"num_key_value_heads": [2, 4, 2]}, {"num_attention_heads": "8", "head_dim": 8}):
        (tmp_path / "config.json").write_text(json.dumps(config | wrong))
        for model in (none, tmp_path):
            found = doctor_checks.model(settings(model=str(model)))
            assert found.state is State.FAIL
            assert f"{model}: not a model of the Llama family" in found.detail


def test_model_findings(tmp_path: Path) -> None:
    model = gguf(tmp_path / "m.gguf", LLAMA, [10, 20])
    assert doctor_checks.model(settings(model=str(model))).state is State.OK
    assert doctor_checks.model(settings(fake_worker=True)).state is State.OK
    hub = doctor_checks.model(settings(model="someone/some-model"))
    assert (hub.state, "network" in hub.advice) == (State.WARN, True)
    model.write_bytes(b"not a model")
    damaged = doctor_checks.model(settings(model=str(model)))
    assert damaged.state is State.FAIL
    assert str(model) in damaged.detail


def test_ranks_that_the_heads_do_not_divide_among(tmp_path: Path) -> None:
    model = str(gguf(tmp_path / "m.gguf", LLAMA, [10, 20]))
    assert doctor_checks.model(settings(model=model, tp=4)).state is State.OK
    odd = doctor_checks.model(settings(model=model, tp=3))
    assert (odd.state, odd.detail) == (State.FAIL, "tp: 8 heads do not divide among 3 ranks")


def test_the_model_in_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    found = doctor_checks.model(settings())
    assert (found.state, "135 M parameters" in found.detail) == (State.OK, True), found
    monkeypatch.setattr(doctor_checks, "SMOLLM2_SHA256", "0" * 64)
    altered = doctor_checks.model(settings())
    assert (altered.state, "checksum differs" in altered.detail) == (State.FAIL, True)


def test_memory_findings(tmp_path: Path) -> None:
    model = str(gguf(tmp_path / "m.gguf", LLAMA, [10, 20]))
    assert doctor_checks.memory(settings(model=model, kv_slots=1000)).state is State.OK
    huge = doctor_checks.memory(settings(model=model, kv_slots=10**12))
    assert huge.state is State.FAIL
    assert huge.advice.startswith("--kv-slots ")
    on_gpu = doctor_checks.memory(settings(model=model, kv_slots=10**12), on_gpu=True)
    assert (on_gpu.state, "needed" in on_gpu.detail) == (State.OK, False)


def test_run_folder_findings(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    assert doctor_checks.run_folder(settings(run_dir=private)).state is State.OK
    assert doctor_checks.run_folder(settings(run_dir=tmp_path / "new" / "er")).state is State.OK
    private.chmod(0o755)
    opened = doctor_checks.run_folder(settings(run_dir=private))
    assert (opened.state, opened.advice) == (State.WARN, f"chmod 700 {private}")
    long = doctor_checks.run_folder(settings(run_dir=tmp_path / ("x" * 100)))
    assert (long.state, "107 bytes" in long.detail) == (State.FAIL, True)
    file = tmp_path / "file"
    file.touch()
    assert doctor_checks.run_folder(settings(run_dir=file)).state is State.FAIL


def test_ports_free_and_taken(server: FakeServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        mute_port = mute.getsockname()[1]
        findings = doctor_server.ports(
            settings(port=server.port, scheduler_port=mute_port, http_port=free_port())
        )
    public, scheduler, http = findings
    assert (public.state, "serving" in public.detail) == (State.OK, True)
    assert scheduler.state is State.FAIL
    assert "speaks no gRPC" in scheduler.detail
    assert (http.state, "is free" in http.detail) == (State.OK, True)


def test_a_taken_default_is_no_fault() -> None:
    # field case 130
    with socket.create_server(("127.0.0.1", 0)) as mute:
        default = settings().model_copy(update={"scheduler_port": mute.getsockname()[1]})
        default.model_fields_set.discard("scheduler_port")
        _, scheduler, _ = doctor_server.ports(default)
    assert (scheduler.state, "takes a free one" in scheduler.detail) == (State.OK, True)


def test_health_findings(server: FakeServer) -> None:
    port = settings(port=server.port)
    assert doctor_server.health(port, None).state is State.OK
    server.admin.stats.worker_connected = False
    away = doctor_server.health(port, server.target)
    assert (away.state, "worker is away" in away.detail) == (State.FAIL, True)
    nobody = free_port()
    assert doctor_server.health(settings(port=nobody), None).state is State.OK
    named = doctor_server.health(port, f"127.0.0.1:{nobody}")
    assert (named.state, "no radixd answers" in named.detail) == (State.FAIL, True)


def test_the_command(run: Run, server: FakeServer, tmp_path: Path) -> None:
    argv = ["doctor", "--fake-worker", "--port", str(free_port()), "--run-dir", str(tmp_path / "r")]
    argv += ["--scheduler-port", str(free_port()), "--http-port", str(free_port())]
    ran = run(*argv, "--json")
    value = json.loads(ran.out)
    assert (ran.code, value["ok"]) == (0, True), ran.out
    assert all(set(f) == {"check", "state", "detail", "advice"} for f in value["findings"])
    ran = run(*argv, "--target", "127.0.0.1:1")
    assert ran.code == 1
    assert "fail" in ran.out
    assert "no radixd answers at 127.0.0.1:1" in ran.out
