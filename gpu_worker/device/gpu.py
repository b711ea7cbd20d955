"""Whether there is a GPU that the kernels run on, and what it is.

Torch is imported only where the system shows a device at all, as that takes seconds.  Not here:
choosing, and what the GPU is used for.
"""

import glob
import os
import shutil
import sysconfig
import warnings
from dataclasses import dataclass
from pathlib import Path

from protos.errors import first_line

DEVICE_FILES = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dxg")
"""Of NVIDIA's driver, AMD's, and either under Windows."""
LEAST_CAPABILITY = (8, 0)
"""Compute capability of the oldest NVIDIA GPU that has bfloat16; kernels are compiled from there
on."""
COMPILERS = ("gcc", "clang")
_SCHEME = "posix_prefix"
"""Where Triton looks for Python's headers, which that code needs."""
INTERPRETER = "TRITON_INTERPRET"
"""Variable that makes Triton run kernels in numpy, on the CPU."""


class NoGpu(Exception):
    """There is none that can be used; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """The GPU that torch calls "cuda"; AMD's is called so too."""

    name: str
    """With its kind: "cuda: NVIDIA H200", "hip: AMD Instinct MI300X"."""
    total_bytes: int


def check_interpreter() -> None:
    """That kernels are run by numpy rather than compiled.

    Raises:
        NoGpu: they are not.
    """
    if not _is_interpreted():
        raise NoGpu(f"kernels are interpreted on the CPU only where {INTERPRETER}=1 is set")


def find_gpu() -> Gpu:
    """The first GPU that torch sees, after a small tensor was made on it.

    Raises:
        NoGpu: there is none, or it cannot be used.
    """
    if _is_interpreted():
        raise NoGpu(f"{INTERPRETER}=1 keeps kernels on the CPU")
    if not any(map(glob.glob, DEVICE_FILES)):
        raise NoGpu(f"no GPU: none of {', '.join(DEVICE_FILES)} is there")
    if not (os.environ.get("CC") or any(map(shutil.which, COMPILERS))):
        # Triton compiles the code that launches its kernels when they are first run.
        raise NoGpu(f"no C compiler for Triton: neither {' nor '.join(COMPILERS)}, and CC is unset")
    if not (Path(sysconfig.get_paths(_SCHEME)["include"]) / "Python.h").is_file():
        raise NoGpu("no Python.h for Triton: the headers of this Python are not installed")
    try:
        import torch
        import triton  # noqa: F401 (the kernels need it)
    except ImportError as error:
        raise NoGpu(f"{error.name} is not installed") from None
    if torch.version.cuda is None and torch.version.hip is None:
        raise NoGpu(f"torch {torch.__version__} is a build without GPUs")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")  # torch says here what is wrong with the driver
        if not torch.cuda.is_available():
            why = [str(each.message).splitlines()[0] for each in said[:1]]
            raise NoGpu(": ".join(["torch finds no GPU", *why]))
        return _tried()


def _tried() -> Gpu:
    import torch

    try:
        torch.empty(1, device="cuda")  # a GPU that another process holds for itself fails here
        found = torch.cuda.get_device_properties(0)
    except RuntimeError as error:
        raise NoGpu(f"the GPU cannot be used: {first_line(error)}") from None
    is_hip = torch.version.hip is not None
    capability = (found.major, found.minor)
    if not is_hip and capability < LEAST_CAPABILITY:
        raise NoGpu(
            f"{found.name} has compute capability {_dotted(capability)}, "
            f"{_dotted(LEAST_CAPABILITY)} is needed"
        )
    kind = "hip" if is_hip else "cuda"
    return Gpu(name=f"{kind}: {found.name}", total_bytes=found.total_memory)


def _is_interpreted() -> bool:
    return os.environ.get(INTERPRETER) == "1"


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
