"""Checks of `radixd doctor` that look at this machine: Python, packages, model, memory, folders."""

import hashlib
import importlib.util
import os
import stat
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from protos.errors import InvalidRequest, ModelError
from radixd.bench.machine import memory_bytes
from radixd.chassis.model_source import BUILT_IN, SMOLLM2_SHA256, resolve_model
from radixd.chassis.processors import usable_processors
from radixd.chassis.ranks import check_heads
from radixd.chassis.settings import Settings
from radixd.cli.doctor_finding import Finding, fail, ok, warn
from radixd.cli.model_shape import ModelShape, read_shape

MIN_PYTHON = (3, 11)
NEEDED = {"grpcio": (1, 85, 1), "protobuf": (7, 35, 1), "pyzmq": (27,), "structlog": (25,)}
"""The stubs refuse older versions of the first two at import."""

FOR_A_MODEL = ("torch", "transformers", "tokenizers", "safetensors", "gguf")

MAX_SOCKET_PATH_BYTES = 107
"""Limit of Linux for the path of a local socket."""

SERVICES_BYTES = 700 << 20
"""Resident memory of the services beside weights and pool, roughly."""


def python() -> Finding:
    """Version and cores."""
    number = ".".join(str(part) for part in sys.version_info[:3])
    cores = usable_processors()
    if sys.version_info[:2] < MIN_PYTHON:
        return fail("Python", number, "radixd needs 3.11 or newer")
    return ok("Python", f"{number}, {cores} core{'s' if cores != 1 else ''}")


def packages(settings: Settings) -> list[Finding]:
    """What every service needs, and what a model needs."""
    wrong = [_shortfall(name, least) for name, least in NEEDED.items()]
    wrong = [text for text in wrong if text]
    advice = "pip install -e '.[all]'"
    base = ok("packages", ", ".join(f"{name} {_version(name)}" for name in NEEDED))
    if wrong:
        base = fail("packages", "; ".join(wrong), advice)
    missing = [name for name in FOR_A_MODEL if _version(name) is None]
    found = ", ".join(f"{name} {_version(name)}" for name in FOR_A_MODEL if name not in missing)
    if not missing:
        return [base, ok("model packages", found)]
    judge: Callable[[str, str, str], Finding] = warn if settings.fake_worker else fail
    return [base, judge("model packages", f"missing: {', '.join(missing)}", advice)]


def names() -> Finding:
    """Our folder `kernels` shares its import name with a distribution that may hide it."""
    spec = importlib.util.find_spec("kernels")
    home = importlib.util.find_spec("radixd")
    if spec is None or spec.origin is None or home is None or home.origin is None:
        return fail(
            "import names", "the package `kernels` of radixd is not found", "pip install -e ."
        )
    if Path(spec.origin).parents[1] != Path(home.origin).parents[1]:
        advice = "pip uninstall kernels, in this environment"
        return fail("import names", f"`kernels` is another package: {spec.origin}", advice)
    return ok("import names", "`kernels` is ours")


def model(settings: Settings) -> Finding:
    """Whether the model is here and whole, and can be cut for as many ranks as are asked for."""
    if settings.fake_worker:
        return ok("model", "the fake worker needs none")
    if _is_hub_name(settings.model):
        detail = f"{settings.model}: no such file or folder, so a hub name"
        return warn("model", detail, "needs a network, or the model in the hub's cache")
    try:
        path = resolve_model(settings.model, download=_do_not_fetch).path
        shape = read_shape(path)
    except ModelError as error:
        advice = "make install" if settings.model == BUILT_IN else "fetch the file again"
        return fail("model", str(error), advice)
    if settings.model == BUILT_IN and _sha256(path) != SMOLLM2_SHA256:
        return fail("model", f"{path}: checksum differs", "make clean install")
    try:
        check_heads(settings.tp, num_heads=shape.num_heads, num_kv_heads=shape.num_kv_heads)
    except InvalidRequest as error:
        return fail("model", str(error), "--tp with another number")
    return ok("model", f"{path}: {shape.num_parameters / 1e6:.0f} M parameters, readable")


def memory(settings: Settings, *, on_gpu: bool = False) -> Finding:
    """Whether weights and pool fit beside what runs already; a GPU's memory is measured at start,
    by the worker."""
    available = memory_bytes("MemAvailable")
    shape = None if on_gpu else _shape(settings)
    if available is None:
        return warn("memory", "unknown on this system", "see that the pool fits")
    if shape is None:
        return ok("memory", f"{_gib(available)} available")
    kv_bytes = shape.kv_bytes_per_token(settings.kv_dtype)
    pool = settings.cpu_kv_slots * kv_bytes
    needed = pool + shape.weight_bytes + SERVICES_BYTES
    detail = (
        f"about {_gib(needed)} needed ({_gib(pool)} for {settings.cpu_kv_slots} slots of "
        f"{kv_bytes} bytes), {_gib(available)} available"
    )
    if needed <= available:
        return ok("memory", detail)
    spare = max(0, available - shape.weight_bytes - SERVICES_BYTES) // kv_bytes
    return fail("memory", detail, f"--kv-slots {spare}" if spare else "a smaller model")


def run_folder(settings: Settings) -> Finding:
    """Whether the folder of sockets and locks can be made, is private, and has a short name."""
    folder = settings.ipc_dir
    socket_path = folder / "worker.ipc"
    if len(os.fsencode(socket_path)) > MAX_SOCKET_PATH_BYTES:
        detail = f"{socket_path} is longer than {MAX_SOCKET_PATH_BYTES} bytes"
        return fail("run folder", detail, "--run-dir with a shorter path")
    if not folder.exists():
        parent = next(p for p in folder.parents if p.exists())
        if os.access(parent, os.W_OK | os.X_OK):
            return ok("run folder", f"{folder} can be made")
        return fail("run folder", f"{parent} is not writable", "--run-dir elsewhere")
    found = folder.stat()
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return fail("run folder", f"{folder} is not a folder of this user", "--run-dir elsewhere")
    if mode & 0o007:
        return warn("run folder", f"{folder} is open to others ({mode:o})", f"chmod 700 {folder}")
    return ok("run folder", f"{folder} ({mode:o})")


def _is_hub_name(name: str) -> bool:
    path = Path(name).expanduser()
    return (
        name != BUILT_IN and not path.exists() and name.count("/") == 1 and path.suffix != ".gguf"
    )


def _do_not_fetch(requirement: str, folder: Path) -> None:
    raise ModelError(BUILT_IN, f"{requirement} is not installed")


def _shape(settings: Settings) -> ModelShape | None:
    if settings.fake_worker or _is_hub_name(settings.model):
        return None
    try:
        return read_shape(resolve_model(settings.model, download=_do_not_fetch).path)
    except ModelError:
        return None  # already said by the check of the model


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _shortfall(name: str, least: tuple[int, ...]) -> str:
    version = _version(name)
    if version is None:
        return f"{name} is missing"
    found = tuple(int(part) for part in version.split(".")[: len(least)] if part.isdigit())
    wanted = ".".join(str(part) for part in least)
    return f"{name} {version} is older than {wanted}" if found < least else ""


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
