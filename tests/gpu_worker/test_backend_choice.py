"""Which backend the worker takes, and what it says where one cannot be had."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gpu_worker.backend_choice import BackendOptions
from gpu_worker.loading import load_engine
from gpu_worker.model_engine import EngineLimits
from protos.errors import InvalidRequest
from radixd.chassis.model_source import ModelSource
from tests.arch.source import ROOT
from tests.gpu_worker.backends import NATIVE, TORCH, needs_compiler
from tests.gpu_worker.tiny_models import make_oracle, save

LIMITS = EngineLimits(num_slots=32, max_rows=2)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    return save(make_oracle(), tmp_path_factory.mktemp("tiny"))


@needs_compiler
def test_compiled_code_is_the_first_choice(model: ModelSource) -> None:
    for options, name in ((BackendOptions(), "native"), (NATIVE, "native"), (TORCH, "torch")):
        with capture_logs() as events:
            load_engine(model, LIMITS, options)
        (loaded,) = [event for event in events if event["event"] == "model_loaded"]
        assert loaded["backend"].split()[0] == name
        assert not [event for event in events if event["log_level"] == "warning"]


def test_torch_computes_where_nothing_can_be_compiled(
    model: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-c++")
    with capture_logs() as events:
        engine = load_engine(model, LIMITS, BackendOptions())
    assert engine.hello().weights == "float32"
    (warning,) = [event for event in events if event["log_level"] == "warning"]
    assert warning["event"] == "native_backend_unavailable"
    assert warning["reason"] == "no C++ compiler: no-such-c++"
    assert warning["instead"] == "torch"
    (loaded,) = [event for event in events if event["event"] == "model_loaded"]
    assert loaded["backend"] == "torch"


@pytest.mark.parametrize(
    ("options", "field", "problem"),
    [
        (BackendOptions(backend="native"), "backend", "no C"),
        (BackendOptions(weights="int8"), "weights", "int8 needs a GPU or the native backend"),
        (BackendOptions(weights="int4"), "weights", "int4 needs a GPU or the native backend"),
        (BackendOptions(kv_dtype="int8"), "kv_dtype", "int8 needs a GPU or the native backend"),
    ],
)
def test_what_only_compiled_code_has_is_refused_without_it(
    options: BackendOptions,
    field: str,
    problem: str,
    model: ModelSource,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CXX", "no-such-c++")
    with pytest.raises(InvalidRequest, match=problem) as caught:
        load_engine(model, LIMITS, options)
    assert field in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (BackendOptions(backend="torch", weights="int8"), "weights"),
        (BackendOptions(backend="torch", weights="int4"), "weights"),
        (BackendOptions(backend="torch", kv_dtype="int8"), "kv_dtype"),
    ],
)
def test_torch_has_one_precision(options: BackendOptions, field: str, model: ModelSource) -> None:
    with pytest.raises(InvalidRequest, match="the native backend: torch was asked") as caught:
        load_engine(model, LIMITS, options)
    assert field in str(caught.value)


@needs_compiler
def test_sizes_without_kernels_are_computed_by_torch(tmp_path: Path) -> None:
    """A head of 8 is no whole vector of the kernels."""
    source = save(make_oracle(head_dim=8), tmp_path)
    with capture_logs() as events:
        load_engine(source, LIMITS, BackendOptions())
    reasons = [event["reason"] for event in events if event["log_level"] == "warning"]
    assert reasons == ["head_dim is not a multiple of 16"]
    with pytest.raises(InvalidRequest, match="head_dim is not a multiple of 16"):
        load_engine(source, LIMITS, NATIVE)


@needs_compiler
def test_the_compiled_backend_loads_no_torch(model: ModelSource) -> None:
    code = f"""
import sys
from gpu_worker.__main__ import build_engine
from radixd.chassis.settings import Settings
for options in ({{}}, {{"weights": "int8", "kv_dtype": "int8"}}, {{"weights": "auto"}}):
    engine = build_engine(Settings(model={str(model.path)!r}, kv_slots=64, **options))
    assert engine.hello().kind == "model"
heavy = {{"torch", "transformers", "triton", "gguf", "safetensors.torch"}}
print("imported", *sorted(heavy & set(sys.modules)))
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert done.stdout.splitlines()[-1:] == ["imported"], done.stdout + done.stderr


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        (
            ("--backend", "native"),
            "backend: native cannot be had: no C++ compiler: no-such-c++",
        ),
        (
            ("--device", "cuda"),
            "device: cuda cannot be had: TRITON_INTERPRET=1 keeps kernels on the CPU",
        ),
    ],
)
def test_the_worker_says_in_one_line_that_it_cannot(
    flags: tuple[str, str], wanted: str, model: ModelSource
) -> None:
    command = [sys.executable, "-m", "gpu_worker", "--model", str(model.path), "--kv-slots", "64"]
    done = subprocess.run(
        [*command, *flags],
        capture_output=True,
        text=True,
        timeout=50,
        cwd=ROOT,
        env=os.environ | {"CXX": "no-such-c++"},
    )
    assert done.returncode == 2
    assert done.stderr == f"gpu_worker: {wanted}\n"


def test_kernels_are_interpreted_where_that_is_asked_for(
    model: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = BackendOptions(backend="triton", weights="int8", kv_dtype="fp8", device="cpu")
    with capture_logs() as events:
        hello = load_engine(model, LIMITS, asked).hello()
    (loaded,) = [event for event in events if event["event"] == "model_loaded"]
    assert loaded["backend"] == "triton cpu"
    assert (hello.device, hello.weights, hello.kv_dtype) == ("cpu", "int8", "fp8")
    other = replace(asked, weights="auto")
    hello_of_other = load_engine(model, LIMITS, other).hello()
    assert hello_of_other.weights == "float32"
    assert hello_of_other.model_hash != hello.model_hash
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(InvalidRequest, match="backend: triton cannot be had: kernels are interp"):
        load_engine(model, LIMITS, asked)


def test_auto_says_why_it_computes_on_the_cpu(model: ModelSource) -> None:
    with capture_logs() as events:
        load_engine(model, LIMITS)
        load_engine(model, LIMITS, BackendOptions(device="cpu"))
    (event,) = [event for event in events if event["event"] == "gpu_not_used"]
    assert event["reason"] == "TRITON_INTERPRET=1 keeps kernels on the CPU"
