"""`radixd doctor` on who would compute."""

import shutil

import pytest

from radixd.chassis.backends import NATIVE, TORCH
from radixd.chassis.settings import Settings
from radixd.cli import doctor_backend
from radixd.cli.doctor_finding import State
from tests.gpu_worker.kernel_tables import NOT_HERE, TABLES

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="needs a C++ compiler"
)


@pytest.fixture
def _no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-c++")


@needs_compiler
@pytest.mark.parametrize(
    "options", [{}, {"backend": "native"}, {"weights": "int4", "kv_dtype": "int8"}]
)
def test_compiled_code_where_it_can_be_had(options: dict[str, str]) -> None:
    found, kind = doctor_backend.backend(Settings(**options))
    assert (found.state, found.check, kind) == (State.OK, "backend", NATIVE)
    name, _, why_no_gpu = found.detail.partition(" (")
    assert name == f"native {TABLES[0]}"
    assert why_no_gpu == (
        "" if "backend" in options else "TRITON_INTERPRET=1 keeps kernels on the CPU)"
    )


@needs_compiler
@pytest.mark.parametrize("kernels", [*TABLES, *NOT_HERE])
def test_the_kernels_asked_for(kernels: str) -> None:
    found, _ = doctor_backend.backend(Settings(cpu_kernels=kernels))
    if kernels in TABLES:
        assert (found.state, found.detail) == (State.OK, f"native {kernels}")
    else:
        assert found.state is State.FAIL
        assert f"cannot run the kernels {kernels}" in found.detail


@pytest.mark.usefixtures("_no_compiler")
def test_torch_and_why() -> None:
    found, kind = doctor_backend.backend(Settings())
    assert (found.state, kind) == (State.WARN, TORCH)
    assert found.detail == "torch, the slower one: no C++ compiler: no-such-c++"
    assert "g++" in found.advice


@pytest.mark.usefixtures("_no_compiler")
@pytest.mark.parametrize(
    ("options", "detail"),
    [
        ({"backend": "native"}, "backend: native cannot be had: "),
        ({"device": "cpu", "weights": "int8"}, "weights: int8 needs a GPU or the native backend: "),
        ({"device": "cpu", "kv_dtype": "int8"}, "kv_dtype: int8 needs a GPU or the native "),
    ],
)
def test_what_only_compiled_code_has(options: dict[str, str], detail: str) -> None:
    found, kind = doctor_backend.backend(Settings(**options))
    assert (found.state, kind) == (State.FAIL, None)
    assert found.detail.startswith(detail)
    assert found.detail.endswith("no C++ compiler: no-such-c++")
    assert "g++" in found.advice


def test_a_gpu_that_cannot_be_had() -> None:
    """The tests interpret kernels, so that on no machine there is one."""
    found, kind = doctor_backend.backend(Settings(device="cuda"))
    assert (found.state, kind) == (State.FAIL, None)
    assert found.detail.startswith("device: cuda cannot be had: TRITON_INTERPRET=1 keeps kernels")
    assert found.advice.startswith("--device cpu")


@pytest.mark.usefixtures("_no_compiler")
def test_nothing_is_looked_for_that_is_not_asked_for() -> None:
    assert doctor_backend.backend(Settings(backend="torch"))[0].detail == "torch"
    assert doctor_backend.backend(Settings(fake_worker=True))[0].state is State.OK


def test_a_build_that_takes_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_backend, "MOST_SECONDS", 0.001)
    found, _ = doctor_backend.backend(Settings())
    assert found.state is State.WARN
    assert "took more than" in found.detail


def test_interpreted_kernels_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Settings(backend="triton", device="cpu")
    assert doctor_backend.backend(asked)[0].detail == "triton, interpreted on the CPU"
    monkeypatch.delenv("TRITON_INTERPRET")
    refused, _ = doctor_backend.backend(asked)
    assert refused.state is State.FAIL
    assert refused.detail.startswith("backend: triton cannot be had: kernels are interpreted on")
