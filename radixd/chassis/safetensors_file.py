"""Reads the directory of a safetensors file: names, types, shapes and places of its tensors.

No numpy and no torch, so that a word about a model's size needs neither.  Every place is checked
against the file's size.  Not here: the tensors themselves.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any

from protos.errors import ModelError, first_line

_MAX_HEADER_BYTES = 100_000_000
"""What the format allows."""
_LENGTH_BYTES = 8
_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Of the types whose values are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetensorsEntry:
    """One tensor; its bytes lie inside of the file, for floats as many as the shape says."""

    dtype: str
    """As the format names it: "F32", "BF16"."""
    shape: tuple[int, ...]
    start: int
    """Of its bytes, from the start of the file."""
    end: int


def read_directory(path: Path) -> dict[str, SafetensorsEntry]:
    """Every tensor of a file by name.

    Raises:
        ModelError: the file cannot be read, is truncated or foreign.
    """
    try:
        with path.open("rb") as file:
            num_bytes = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if length > min(num_bytes - _LENGTH_BYTES, _MAX_HEADER_BYTES):
                raise ValueError(f"a header of {length} bytes in a file of {num_bytes}")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        data_start = _LENGTH_BYTES + length
        return {name: _entry(entry, data_start, num_bytes) for name, entry in header.items()}
    except OSError as error:
        reason = error.strerror or str(error)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        reason = first_line(error)
    raise ModelError(path, f"truncated or not safetensors: {reason}")


def _entry(entry: Mapping[str, Any], data_start: int, num_bytes: int) -> SafetensorsEntry:
    start, end = map(index, entry["data_offsets"])
    shape = tuple(map(index, entry["shape"]))
    dtype = str(entry["dtype"])
    if not 0 <= start <= end or min(shape, default=0) < 0:
        raise ValueError(f"bytes {start} to {end} for {list(shape)}")
    if data_start + end > num_bytes:
        raise ValueError(f"cut short by {data_start + end - num_bytes} bytes")
    if dtype in _ITEM_BYTES and end - start != math.prod(shape) * _ITEM_BYTES[dtype]:
        raise ValueError(f"{end - start} bytes for {dtype} {list(shape)}")
    return SafetensorsEntry(
        dtype=dtype, shape=shape, start=data_start + start, end=data_start + end
    )
