"""Reads GGUF files, mapped into memory: metadata, the tensor directory and raw tensor bytes.

No numpy and no torch, so that the front may use it for the vocabulary alone.  Long arrays are
skipped when the file is opened and decoded only when asked for.  Every length and offset is
checked against the file's size before it is used.  Not here: dequantising, writing.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from protos.errors import ModelError

MAGIC = b"GGUF"

_STRING, _ARRAY = 8, 9
_SCALARS = {  # value type -> struct code
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_BLOCKS = {  # tensor type -> (name, elements a block, bytes a block)
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2),
    26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8), 29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
}  # fmt: skip
_MAX_ENTRIES = 1 << 20
_MAX_KEY_BYTES = 1 << 16
_MAX_DIMENSIONS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufArray:
    """Where an array of metadata lies; `GgufFile.strings` and `numbers` decode it."""

    element_type: int
    length: int
    offset: int
    """Of the first element, in bytes from the start of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """One entry of the tensor directory."""

    name: str
    shape: tuple[int, ...]
    """Outermost dimension first, as torch and numpy write it."""
    type_id: int
    type_name: str
    offset: int
    """In bytes from the start of the file."""
    num_bytes: int


MetadataValue = int | float | bool | str | GgufArray


class GgufFile:
    """An open GGUF file of version 2 or 3.

    Raises:
        ModelError: on opening, when the file is missing, truncated or foreign; names the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map = _open_map(path)
        self._view = memoryview(self._map)
        self._cursor = 0
        try:
            self.metadata: Mapping[str, MetadataValue] = {}
            self.tensors: Mapping[str, GgufTensor] = {}
            self._parse()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Gives the mapping back; slices that still live keep it until they die."""
        self._view.release()
        try:
            self._map.close()
        except BufferError:  # a caller still holds a slice: the map ends with it
            return

    def text(self, key: str, default: str | None = None) -> str:
        """A string of the metadata.

        Raises:
            ModelError: it is missing and has no default, or is no string.
        """
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self._wrong(f"metadata {key} is not a string")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer of the metadata.

        Raises:
            ModelError: it is missing and has no default, or is no integer.
        """
        value = self._value(key, default)
        if not isinstance(value, int):
            raise self._wrong(f"metadata {key} is not an integer")
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        """A number of the metadata.

        Raises:
            ModelError: it is missing and has no default, or is no number.
        """
        value = self._value(key, default)
        if not isinstance(value, int | float):
            raise self._wrong(f"metadata {key} is not a number")
        return float(value)

    def array_length(self, key: str) -> int:
        """Number of elements of an array, without decoding it; 0 where there is none."""
        value = self.metadata.get(key)
        return value.length if isinstance(value, GgufArray) else 0

    def strings(self, key: str) -> list[str]:
        """The strings of an array such as tokenizer.ggml.tokens; bad UTF-8 is replaced.

        Raises:
            ModelError: there is no such array of strings.
        """
        found = self._array(key)
        if found.element_type != _STRING:
            raise self._wrong(f"metadata {key} is not an array of strings")
        out, unpack, view, end = [], _U64.unpack_from, self._view, found.offset
        for _ in range(found.length):  # bounds were checked when the file was opened
            start = end + 8
            end = start + unpack(view, end)[0]
            out.append(str(view[start:end], "utf-8", "replace"))
        return out

    def numbers(self, key: str) -> list[int] | list[float]:
        """The numbers of an array such as tokenizer.ggml.scores.

        Raises:
            ModelError: there is no such array of numbers.
        """
        found = self._array(key)
        if found.element_type == _STRING:
            raise self._wrong(f"metadata {key} is not an array of numbers")
        code = _SCALARS[found.element_type]
        return list(struct.unpack_from(f"<{found.length}{code}", self._view, found.offset))

    def tensor(self, name: str) -> GgufTensor:
        """The directory entry of a tensor.

        Raises:
            ModelError: there is none of this name.
        """
        found = self.tensors.get(name)
        if found is None:
            raise self._wrong(f"tensor {name} is missing")
        return found

    def tensor_bytes(self, name: str) -> memoryview:
        """The bytes of a tensor, as they are in the file, without a copy."""
        found = self.tensor(name)
        return self._view[found.offset : found.offset + found.num_bytes]

    def _value(self, key: str, default: MetadataValue | None) -> MetadataValue:
        value = self.metadata.get(key, default)
        if value is None:
            raise self._wrong(f"metadata {key} is missing")
        return value

    def _array(self, key: str) -> GgufArray:
        found = self.metadata.get(key)
        if not isinstance(found, GgufArray):
            raise self._wrong(f"metadata {key} is missing or not an array")
        return found

    def _wrong(self, problem: str) -> ModelError:
        return ModelError(self.path, problem)

    def _parse(self) -> None:
        if self._view[:4] != MAGIC:
            raise self._wrong("not a GGUF file")
        self._cursor = 4
        version = self._scalar("I")
        if version not in (2, 3):
            hint = " (big-endian)" if version > 0xFFFF else ""
            raise self._wrong(f"GGUF version {version}{hint} is not supported, only 2 and 3")
        num_tensors, num_values = int(self._scalar("Q")), int(self._scalar("Q"))
        if max(num_tensors, num_values) > _MAX_ENTRIES:
            raise self._wrong(f"damaged header: {num_tensors} tensors, {num_values} values")
        metadata: dict[str, MetadataValue] = {}
        for _ in range(num_values):
            key = self._string(_MAX_KEY_BYTES)
            metadata[key] = self._metadata_value(key)
        self.metadata = metadata
        entries = [self._tensor_entry() for _ in range(num_tensors)]
        alignment = self.integer("general.alignment", 32)
        if alignment < 1 or alignment & (alignment - 1):
            raise self._wrong(f"general.alignment {alignment} is not a power of two")
        base = -(-self._cursor // alignment) * alignment
        self.tensors = self._place(entries, base)

    def _place(self, entries: list[GgufTensor], base: int) -> dict[str, GgufTensor]:
        """Directory by name, with offsets from the start of the file, all inside it."""
        tensors: dict[str, GgufTensor] = {}
        for entry in entries:
            end = base + entry.offset + entry.num_bytes
            if end > len(self._view):
                raise self._wrong(
                    f"truncated: tensor {entry.name} ends at byte {end}, "
                    f"the file at byte {len(self._view)}"
                )
            if entry.name in tensors:
                raise self._wrong(f"tensor {entry.name} appears twice")
            tensors[entry.name] = GgufTensor(
                name=entry.name,
                shape=entry.shape,
                type_id=entry.type_id,
                type_name=entry.type_name,
                offset=base + entry.offset,
                num_bytes=entry.num_bytes,
            )
        return tensors

    def _tensor_entry(self) -> GgufTensor:
        name = self._string(_MAX_KEY_BYTES)
        num_dimensions = int(self._scalar("I"))
        if num_dimensions > _MAX_DIMENSIONS:
            raise self._wrong(f"tensor {name} has {num_dimensions} dimensions")
        innermost_first = [int(self._scalar("Q")) for _ in range(num_dimensions)]
        type_id, offset = int(self._scalar("I")), int(self._scalar("Q"))
        if type_id not in _BLOCKS:
            raise self._wrong(f"tensor {name} is of unknown type {type_id}")
        type_name, block_elements, block_bytes = _BLOCKS[type_id]
        num_elements = 1
        for size in innermost_first:
            num_elements *= size
        if innermost_first and innermost_first[0] % block_elements:
            raise self._wrong(
                f"tensor {name}: rows of {innermost_first[0]} are not whole {type_name} blocks"
            )
        return GgufTensor(
            name=name,
            shape=tuple(reversed(innermost_first)),
            type_id=type_id,
            type_name=type_name,
            offset=offset,
            num_bytes=num_elements // block_elements * block_bytes,
        )

    def _metadata_value(self, key: str) -> MetadataValue:
        kind = int(self._scalar("I"))
        if kind == _STRING:
            return self._string(len(self._view))
        if kind == _ARRAY:
            return self._skip_array(key)
        if kind not in _SCALARS:
            raise self._wrong(f"metadata {key} is of unknown type {kind}")
        return self._scalar(_SCALARS[kind])

    def _skip_array(self, key: str) -> GgufArray:
        element_type, length = int(self._scalar("I")), int(self._scalar("Q"))
        found = GgufArray(element_type=element_type, length=length, offset=self._cursor)
        if element_type in _SCALARS:
            self._need(length * struct.calcsize("<" + _SCALARS[element_type]))
        elif element_type == _STRING:
            self._skip_strings(length)
        else:
            raise self._wrong(f"metadata {key} is an array of unsupported type {element_type}")
        return found

    def _skip_strings(self, count: int) -> None:
        # A hundred thousand tokens go through here at every start, hence the local names.
        unpack, view, end, cursor = _U64.unpack_from, self._view, len(self._view), self._cursor
        for _ in range(count):
            if cursor + 8 > end:
                raise self._cut_short(cursor + 8)
            cursor += 8 + unpack(view, cursor)[0]
        if cursor > end:
            raise self._cut_short(cursor)
        self._cursor = cursor

    def _string(self, limit: int) -> str:
        size = int(self._scalar("Q"))
        if size > limit:
            raise self._wrong(f"truncated or damaged: a string of {size} bytes")
        start = self._cursor
        self._need(size)
        return str(self._view[start : start + size], "utf-8", "replace")

    def _scalar(self, code: str) -> int | float | bool:
        start = self._cursor
        self._need(struct.calcsize("<" + code))
        value: int | float | bool = struct.unpack_from("<" + code, self._view, start)[0]
        return value

    def _need(self, num_bytes: int) -> None:
        """Moves past the next bytes, which must be there."""
        if self._cursor + num_bytes > len(self._view):
            raise self._cut_short(self._cursor + num_bytes)
        self._cursor += num_bytes

    def _cut_short(self, needed: int) -> ModelError:
        return self._wrong(
            f"truncated: the header needs {needed} bytes, the file has {len(self._view)}"
        )


_U64 = struct.Struct("<Q")


def _open_map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise ModelError(path, "the file is empty")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelError(path, (error.strerror or str(error)).lower()) from None
