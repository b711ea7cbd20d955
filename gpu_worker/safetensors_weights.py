"""Weights of a Hugging Face folder: safetensors, in one file or in several with an index.

A reader of our own maps the files and knows bfloat16, which numpy does not.  Not here: their
directories (radixd.chassis.safetensors_file), quantised safetensors.
"""

import json
import math
import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpu_worker.blocks import BlockKind, Blocks, FloatArray
from gpu_worker.weights import check_finite, check_shape, widen_bfloat16
from protos.errors import ModelError
from radixd.chassis.safetensors_file import read_directory

_FLOATS: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tensor:
    """One entry of the directory of a file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    raw: memoryview


class SafetensorsWeights:
    """WeightReader of a folder."""

    def __init__(self, folder: Path, on_bytes: Callable[[int], None]) -> None:
        self._folder = folder
        self._on_bytes = on_bytes
        self._tensors = _directory(folder)

    def has(self, name: str) -> bool:
        """See WeightReader."""
        return name in self._tensors

    def block_kind(self, name: str) -> BlockKind | None:
        """See WeightReader: there are only floats."""
        return None

    def read_blocks(self, name: str, shape: tuple[int, int]) -> Blocks | None:
        """See WeightReader: there are only floats."""
        return None

    def read(self, name: str, shape: tuple[int, ...]) -> FloatArray:
        """See WeightReader."""
        found = self._tensors.get(name)
        if found is None:
            raise ModelError(self._folder, f"tensor {name} is missing")
        check_shape(found.path, name, found.shape, shape)
        if found.dtype not in _FLOATS:
            raise ModelError(found.path, f"tensor {name} holds {found.dtype}, not floats")
        num_values, dtype = math.prod(shape), _FLOATS[found.dtype]
        # Padding rows lie at the end, so what is wanted are the first values.
        stored = np.frombuffer(found.raw, dtype, num_values)
        # A copy in any case: else the array would lie in the mapped file.
        values = widen_bfloat16(stored) if found.dtype == "BF16" else stored.astype(np.float32)
        check_finite(found.path, name, values)
        self._on_bytes(len(found.raw))
        return values.reshape(shape)


_DECODERS_OF_OTHERS = (("language_model.model.", "model."), ("model.language_model.", "model."))
"""How models that can see call the tensors of the decoder in them."""


def _plain_name(name: str) -> str:
    for theirs, plain in _DECODERS_OF_OTHERS:
        if name.startswith(theirs):
            return plain + name.removeprefix(theirs)
    return name.removeprefix("language_model.")


def _directory(folder: Path) -> dict[str, _Tensor]:
    """Every tensor by name, those of a decoder within another model by their names in it."""
    return {_plain_name(name): found for name, found in _all_tensors(folder).items()}


def _all_tensors(folder: Path) -> dict[str, _Tensor]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        paths = sorted(folder.glob("*.safetensors"))
        return {name: found for path in paths for name, found in _open(path).items()}
    try:
        listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        shards = {name: folder / file for name, file in listed.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(index, f"not an index of safetensors: {error}") from None
    files = {path: _open(path) for path in sorted(set(shards.values()))}
    return {name: files[path][name] for name, path in shards.items() if name in files[path]}


def _open(path: Path) -> dict[str, _Tensor]:
    """The tensors of one file, mapped.

    Raises:
        ModelError: the file cannot be read, is truncated or foreign.
    """
    entries = read_directory(path)
    try:
        with path.open("rb") as file:
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise ModelError(path, error.strerror or str(error)) from None
    return {
        name: _Tensor(
            path=path, dtype=entry.dtype, shape=entry.shape, raw=view[entry.start : entry.end]
        )
        for name, entry in entries.items()
    }
