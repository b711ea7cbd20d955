"""Compiles the C++ of this package into a shared library, once for each state of it and processor.

`python -m gpu_worker.native.build` does it ahead of time; else the first start does.  The library
lies in the user's cache, under a key of sources and flags, and is never changed.  Not here: what is
in it.
"""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog

from protos.errors import RadixdError
from radixd.chassis.model_source import cache_dir

_log = structlog.get_logger(__name__)

_SOURCES = Path(__file__).parent / "src"
_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = (
    "-std=c++20",
    "-O3",
    "-fPIC",
    "-pthread",
    "-fvisibility=hidden",
    # A product and a sum are two roundings wherever they stand, or a row's bits would depend on
    # which copy of a template computed them.
    "-ffp-contract=off",
    "-Wall",
    "-Wextra",
)
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_ISA_FLAGS = {
    "kernels_avx2.cpp": _AVX2,
    "kernels_avx512.cpp": (
        *_AVX2,
        *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"),
        # What the headers of GCC 12 leave undefined on purpose.
        *("-Wno-uninitialized", "-Wno-maybe-uninitialized"),
    ),
}
"""Instruction sets of single files; the rest must run anywhere."""
_MOST_SECONDS = 300.0


class NativeUnavailable(RadixdError):
    """Why the compiled backend cannot be had here; one line."""

    reason = "NATIVE_UNAVAILABLE"


def built_library() -> Path:
    """The shared library, compiled now if it is not there yet.

    Raises:
        NativeUnavailable: there is no compiler, it failed, or nowhere to put the result.
    """
    try:
        path = _cache() / _key() / "libradixd.so"
        if path.is_file():  # whoever built it: nothing is needed to run it
            return path
        compiler = _compiler()
        _log.info("compiling_native_backend", compiler=compiler[0], path=str(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        # In the same folder, so that renaming is atomic: two starts at once do no harm.
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            os.replace(_compile(compiler, Path(folder)), path)
    except OSError as error:
        raise NativeUnavailable(f"{error.filename}: {error.strerror}") from None
    return path


def _cache() -> Path:
    try:
        return cache_dir() / "native"
    except RuntimeError as error:  # a user without a home
        raise NativeUnavailable(str(error)) from None


def _compiler() -> list[str]:
    """The command that compiles: what CXX says, options included, or the first that is found."""
    asked_for = shlex.split(os.environ.get("CXX", ""))
    for command in [asked_for] if asked_for else [[name] for name in _COMPILERS]:
        if shutil.which(command[0]) is not None:
            return command
    raise NativeUnavailable(f"no C++ compiler: {' '.join(asked_for) or ', '.join(_COMPILERS)}")


def _key() -> str:
    """Names everything the library follows from, save for the compiler that happens to be here: a
    library that came with an image is good without one."""
    digest = hashlib.blake2b(digest_size=12)
    facts = (platform.machine(), os.environ.get("CXX", ""), _FLAGS, _ISA_FLAGS)
    digest.update(repr(facts).encode() + Path(__file__).read_bytes())
    for path in sorted([*_SOURCES.glob("*.h"), *_SOURCES.glob("*.cpp")]):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _compile(compiler: list[str], folder: Path) -> Path:
    units = _units(folder)
    objects = [folder / f"{source.stem}.o" for source, _ in units]
    commands = [
        [*compiler, *_FLAGS, *flags, f"-I{_SOURCES}", "-c", str(source), "-o", str(object_)]
        for (source, flags), object_ in zip(units, objects, strict=True)
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(_run, commands))
    library = folder / "libradixd.so"
    _run([*compiler, "-shared", "-pthread", "-o", str(library), *map(str, objects)])
    return library


def _units(folder: Path) -> list[tuple[Path, tuple[str, ...]]]:
    """What is compiled with which flags: each file of an instruction set, and the rest as one, as
    most of the time goes into the standard headers that all of them include."""
    rest = folder / "portable.cpp"
    names = [path.name for path in sorted(_SOURCES.glob("*.cpp"))]
    lines = [f'#include "{name}"\n' for name in names if name not in _ISA_FLAGS]
    rest.write_text("".join(lines), encoding="utf-8")
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    units = [(_SOURCES / name, flags if is_x86 else ()) for name, flags in _ISA_FLAGS.items()]
    return [(rest, ()), *units]


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_MOST_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise NativeUnavailable(f"{command[0]} took more than {_MOST_SECONDS:.0f} s") from None
    except OSError as error:
        raise NativeUnavailable(f"{command[0]}: {error.strerror}") from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line]
        raise NativeUnavailable(f"{command[0]} failed: {(lines or ['no message'])[0]}")


def main() -> int:
    """Builds and says where; 1 where it cannot be done, which is no fault: torch computes then."""
    try:
        print(f"native backend: {built_library()}", file=sys.stderr)
    except NativeUnavailable as error:
        print(f"native backend: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
