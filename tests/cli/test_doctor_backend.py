"""`radixd doctor` on who would compute."""

import shutil

import pytest

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
    found = doctor_backend.backend(Settings(**options))
    assert (found.state, found.check) == (State.OK, "backend")
    assert found.detail == f"native {TABLES[0]}"


@needs_compiler
@pytest.mark.parametrize("kernels", [*TABLES, *NOT_HERE])
def test_the_kernels_asked_for(kernels: str) -> None:
    found = doctor_backend.backend(Settings(cpu_kernels=kernels))
    if kernels in TABLES:
        assert (found.state, found.detail) == (State.OK, f"native {kernels}")
    else:
        assert found.state is State.FAIL
        assert f"cannot run the kernels {kernels}" in found.detail


@pytest.mark.usefixtures("_no_compiler")
def test_torch_and_why() -> None:
    found = doctor_backend.backend(Settings())
    assert found.state is State.WARN
    assert found.detail == "torch, the slower one: no C++ compiler: no-such-c++"
    assert "g++" in found.advice


@pytest.mark.usefixtures("_no_compiler")
@pytest.mark.parametrize(
    "options", [{"backend": "native"}, {"weights": "int8"}, {"kv_dtype": "int8"}]
)
def test_what_only_compiled_code_has(options: dict[str, str]) -> None:
    found = doctor_backend.backend(Settings(**options))
    assert found.state is State.FAIL
    assert found.detail == "native cannot be had: no C++ compiler: no-such-c++"


@pytest.mark.usefixtures("_no_compiler")
def test_nothing_is_looked_for_that_is_not_asked_for() -> None:
    assert doctor_backend.backend(Settings(backend="torch")).detail == "torch, as --backend says"
    assert doctor_backend.backend(Settings(fake_worker=True)).state is State.OK
    wrong = doctor_backend.backend(Settings(backend="torch", weights="int8"))
    assert wrong.state is State.FAIL
    assert "--weights int8" in wrong.detail


def test_a_build_that_takes_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_backend, "MOST_SECONDS", 0.001)
    found = doctor_backend.backend(Settings())
    assert found.state is State.WARN
    assert "took more than" in found.detail
