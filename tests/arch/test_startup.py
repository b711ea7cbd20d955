"""What a process of ours may need to start, tried in processes of their own."""

import json
import os
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

from tests.arch.source import ROOT, house

_BLOCK = """
import importlib, pkgutil, sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"{name} is kept out of this process", name=name)

sys.meta_path.insert(0, Block())
for top in TOPS:
    package = importlib.import_module(top)
    for found in pkgutil.walk_packages(getattr(package, "__path__", []), top + "."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
print("all imported")
"""


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a fresh interpreter at the root of the project."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170)


def import_without(blocked: set[str], tops: list[str]) -> subprocess.CompletedProcess[str]:
    """Imports whole packages in a process where some libraries cannot be imported."""
    return run_python(f"BLOCKED = {blocked!r}\nTOPS = {tops!r}\n" + _BLOCK)


@pytest.mark.parametrize("top", ["protos", "scheduler_svc", "radixd"])
def test_base_install_needs_no_model_libraries(top: str) -> None:
    blocked = {"torch", "triton", "transformers", "tokenizers", "safetensors", "gguf", "llguidance"}
    result = import_without(blocked, [top])
    assert "all imported" in result.stdout, result.stderr


def test_front_needs_no_torch() -> None:
    result = import_without({"torch", "triton", "gguf", "safetensors.torch"}, ["tokenizer_svc"])
    assert "all imported" in result.stdout, result.stderr


def test_worker_needs_no_grpc() -> None:
    result = import_without({"grpc", "grpc_health", "grpc_reflection"}, ["gpu_worker"])
    assert "all imported" in result.stdout, result.stderr


@pytest.mark.parametrize(
    ("service", "argv", "event", "absent"),
    [
        ("tokenizer_svc", ["--model=smollm2", "--port=0"], "front_ready", {"numpy", "zmq"}),
        ("scheduler_svc", ["--scheduler-port=0"], "scheduler_ready", {"tokenizers", "jinja2"}),
    ],
)
def test_a_running_service_has_imported_nothing_heavy(
    tmp_path: Path, service: str, argv: list[str], event: str, absent: set[str]
) -> None:
    """Installed as they are here: what a library pulls in by itself counts as well."""
    command = [sys.executable, "-m", "tests.arch.telling_service", service, *argv]
    with subprocess.Popen(
        [*command, f"--run-dir={tmp_path}"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={key: text for key, text in os.environ.items() if not key.startswith("RADIXD_")},
    ) as process:
        assert process.stderr is not None
        assert any(event in line for line in process.stderr), f"{service} ended"
        process.terminate()
        told, _ = process.communicate(timeout=30)
    imported = set(json.loads(told))
    assert {service, "grpc", "structlog"} <= imported
    assert not imported & (absent | {"torch", "triton", "transformers", "safetensors", "gguf"})


def test_a_fake_worker_needs_no_arrays() -> None:
    code = """
        import sys
        from gpu_worker.__main__ import build_engine
        from radixd.chassis.settings import Settings
        build_engine(Settings(fake_worker=True))
        print("imported", *sorted({"torch", "numpy", "grpc"} & set(sys.modules)))
    """
    assert run_python(code).stdout == "imported\n"


def test_up_waits_for_no_other_command() -> None:
    """Nothing runs before the launcher has imported what it needs."""
    code = """
        import sys
        import radixd.cli.app, radixd.cli.up
        unneeded = {"typer", "rich", "structlog", "numpy", "zmq"}
        print("imported", *sorted(unneeded & set(sys.modules)))
    """
    assert run_python(code).stdout == "imported\n"


def test_a_blocked_library_is_noticed() -> None:
    result = import_without({"structlog"}, ["structlog"])
    assert result.returncode != 0
    assert "kept out of this process" in result.stderr


def test_transformers_takes_our_kernels_for_no_other() -> None:
    """`transformers` probes for a distribution of that name and must find it unusable."""
    code = """
        import kernels, transformers
        from transformers.utils import is_kernels_available
        assert "reference" in kernels.__doc__, kernels.__file__
        print("usable" if is_kernels_available() else "not theirs")
    """
    result = run_python(code)
    assert "not theirs" in result.stdout, result.stderr or result.stdout


def test_the_version_is_none_that_transformers_would_take_for_theirs() -> None:
    """Where no version attribute is found, the version of the project may be taken instead."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"].split(".")[:2] != ["0", "18"]


def test_kernels_is_a_docstring_alone() -> None:
    (kernels,) = (module for module in house() if module.name == "kernels")
    assert len(kernels.tree.body) == 1
    assert "__version__" not in kernels.text
