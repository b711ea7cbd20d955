"""The directory of a safetensors file, and files that only look like one."""

import json
from pathlib import Path
from typing import Any

import pytest

from protos.errors import ModelError
from radixd.chassis.safetensors_file import SafetensorsEntry, read_directory

NUM_BYTES = 24


def write(path: Path, header: bytes, num_bytes: int = NUM_BYTES) -> Path:
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(num_bytes))
    return path


def entry(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, NUM_BYTES]} | changes


def test_every_tensor_with_its_place(tmp_path: Path) -> None:
    half = entry(dtype="F16", shape=[4], data_offsets=[0, 8])
    odd = entry(dtype="F8_E4M3", shape=[], data_offsets=[23, 24])
    header = json.dumps({"__metadata__": {"format": "pt"}, "a": half, "b": odd}).encode()
    first = 8 + len(header)
    assert read_directory(write(tmp_path / "m", header)) == {
        "a": SafetensorsEntry(dtype="F16", shape=(4,), start=first, end=first + 8),
        "b": SafetensorsEntry(dtype="F8_E4M3", shape=(), start=first + 23, end=first + 24),
    }


def test_a_file_that_is_cut_short(tmp_path: Path) -> None:
    path = write(tmp_path / "m", json.dumps({"a": entry()}).encode())
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelError, match="truncated or not safetensors"):
            read_directory(path)
    path.write_bytes(whole[:-5])
    with pytest.raises(ModelError, match="cut short by 5 bytes"):
        read_directory(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"data_offsets": [0, NUM_BYTES - 1]},
        {"data_offsets": [-NUM_BYTES, 0]},
        {"data_offsets": [NUM_BYTES, 0]},
        {"data_offsets": [0, NUM_BYTES, 0]},
        {"data_offsets": ["0", "24"]},
        {"data_offsets": [0.0, 24.0]},
        {"shape": [2.0, 3]},
        {"shape": 6},
        {"shape": [-2, -3]},
        {"dtype": "I8", "shape": [-2]},
    ],
)
def test_an_entry_that_cannot_be(changes: dict[str, Any], tmp_path: Path) -> None:
    path = write(tmp_path / "m", json.dumps({"a": entry(**changes)}).encode())
    with pytest.raises(ModelError, match="truncated or not safetensors") as caught:
        read_directory(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "header", [b"", b"[]", b"3", b"\xff", b'{"a": 3}', b'{"a": {}}', b"[" * 100_000]
)
def test_a_header_that_is_none(header: bytes, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="truncated or not safetensors"):
        read_directory(write(tmp_path / "m", header))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="No such file"):
        read_directory(tmp_path / "m")
