"""Whether there is a GPU to use, on machines that torch is made to see."""

import subprocess
import sys
import sysconfig
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gpu_worker.device import gpu
from gpu_worker.device.__main__ import main
from gpu_worker.device.gpu import NoGpu, find_gpu
from tests.arch.source import ROOT


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """One with an H200 that all is well with."""
    (tmp_path / "nvidia0").touch()
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setattr(gpu, "DEVICE_FILES", (f"{tmp_path}/nvidia[0-9]*",))
    monkeypatch.setenv("CC", "gcc")
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(sysconfig, "get_paths", lambda _: {"include": str(tmp_path)})
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)
    h200 = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, total_memory=150 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: h200)
    return monkeypatch


def refusal() -> str:
    with pytest.raises(NoGpu) as caught:
        find_gpu()
    return str(caught.value)


@pytest.mark.usefixtures("machine")
def test_a_gpu_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    found = find_gpu()
    assert (found.name, found.total_bytes) == ("cuda: NVIDIA H200", 150 << 30)
    assert main() == 0
    assert capsys.readouterr().err == "triton, cuda: NVIDIA H200, 150.0 GiB\n"


def test_the_other_vendor(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(torch.version, "cuda", None)
    machine.setattr(torch.version, "hip", "7.1")
    mi300 = SimpleNamespace(name="AMD Instinct MI300X", major=9, minor=4, total_memory=192 << 30)
    machine.setattr(torch.cuda, "get_device_properties", lambda _: mi300)
    assert find_gpu().name == "hip: AMD Instinct MI300X"


def test_no_driver(machine: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    machine.setattr(gpu, "DEVICE_FILES", ("/no/such/device*",))
    assert refusal() == "no GPU: none of /no/such/device* is there"
    assert main() == 1
    assert capsys.readouterr().err == "no GPU: none of /no/such/device* is there\n"


def test_no_compiler(machine: pytest.MonkeyPatch) -> None:
    machine.delenv("CC")
    machine.setenv("PATH", "/no/such/folder")
    assert refusal() == "no C compiler for Triton: neither gcc nor clang, and CC is unset"


def test_no_headers(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "Python.h").unlink()
    wanted = "no Python.h for Triton: the headers of this Python are not installed"
    assert refusal() == wanted


def test_a_build_of_torch_for_the_cpu(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(torch.version, "cuda", None)
    assert refusal() == f"torch {torch.__version__} is a build without GPUs"


def test_a_driver_that_torch_complains_about(machine: pytest.MonkeyPatch) -> None:
    def is_available() -> bool:
        warnings.warn("the NVIDIA driver is too old\nPlease update", stacklevel=1)
        return False

    machine.setattr(torch.cuda, "is_available", is_available)
    assert refusal() == "torch finds no GPU: the NVIDIA driver is too old"


def test_a_gpu_that_somebody_else_holds(machine: pytest.MonkeyPatch) -> None:
    def empty(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: all devices are busy\nmore")

    machine.setattr(torch, "empty", empty)
    assert refusal() == "the GPU cannot be used: CUDA error: all devices are busy"


def test_a_gpu_without_bfloat16(machine: pytest.MonkeyPatch) -> None:
    old = SimpleNamespace(name="Tesla V100", major=7, minor=0, total_memory=16 << 30)
    machine.setattr(torch.cuda, "get_device_properties", lambda _: old)
    assert refusal() == "Tesla V100 has compute capability 7.0, 8.0 is needed"


def test_nothing_heavy_is_imported_where_there_is_no_device() -> None:
    code = """
import os, sys
from gpu_worker.device import gpu
os.environ.pop("TRITON_INTERPRET", None)
gpu.DEVICE_FILES = ("/no/such/device*",)
try:
    gpu.find_gpu()
except gpu.NoGpu as error:
    print(error, *sorted({"torch", "triton", "numpy"} & set(sys.modules)))
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert done.stdout == "no GPU: none of /no/such/device* is there\n", done.stderr
