"""The GGUF reader against the library that defines the format, and against damaged files."""

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protos.errors import ModelError
from radixd.chassis import gguf_file
from radixd.chassis.gguf_file import GgufFile

TOKENS = ["<s>", "量子", "a b", "", "é"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A small file with every kind of content."""
    path = tmp_path / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(3)
    writer.add_rope_freq_base(1e5)
    writer.add_add_bos_token(True)
    writer.add_token_list(TOKENS)
    writer.add_token_scores([0.5, -1.0, 2.0, 0.0, 1.5])
    writer.add_token_types([1, 2, 3, 1, 1])
    writer.add_chat_template("{{ messages }}")
    rng = np.random.default_rng(0)
    writer.add_tensor("plain", rng.normal(size=(3, 5)).astype(np.float32))
    q4 = gguf.quants.quantize(
        rng.normal(size=(4, 64)).astype(np.float32), gguf.GGMLQuantizationType.Q4_1
    )
    writer.add_tensor("packed", q4, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.add_tensor("vector", rng.normal(size=7).astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def refusal(path: Path) -> str:
    """The one line that opening ends with."""
    with pytest.raises(ModelError) as caught:
        GgufFile(path).close()
    line = str(caught.value)
    assert line.startswith(f"{path}: ")
    assert "\n" not in line
    return line


def test_metadata(path: Path) -> None:
    with GgufFile(path) as file:
        assert file.text("general.architecture") == "llama"
        assert file.integer("llama.block_count") == 3
        assert file.number("llama.rope.freq_base") == 1e5
        assert file.number("llama.block_count") == 3.0
        assert file.metadata["tokenizer.ggml.add_bos_token"] is True
        assert file.array_length("tokenizer.ggml.tokens") == 5
        assert file.array_length("tokenizer.ggml.merges") == 0
        assert file.strings("tokenizer.ggml.tokens") == TOKENS
        assert file.numbers("tokenizer.ggml.scores") == [0.5, -1.0, 2.0, 0.0, 1.5]
        assert file.numbers("tokenizer.ggml.token_type") == [1, 2, 3, 1, 1]
        assert file.integer("absent", 9) == 9
        assert file.text("absent", "none") == "none"


def test_tensors_are_those_of_the_library(path: Path) -> None:
    oracle = gguf.GGUFReader(path)
    with GgufFile(path) as file:
        assert list(file.tensors) == ["plain", "packed", "vector"]
        assert file.tensor("packed").shape == (4, 64)
        assert file.tensor("plain").shape == (3, 5)
        for tensor in oracle.tensors:
            found = file.tensor(tensor.name)
            assert found.type_name == tensor.tensor_type.name
            assert found.offset == tensor.data_offset
            assert bytes(file.tensor_bytes(tensor.name)) == tensor.data.tobytes()


def test_types_are_those_of_the_library() -> None:
    for type_id, (name, *block) in gguf_file._BLOCKS.items():
        kind = gguf.GGMLQuantizationType(type_id)
        assert kind.name == name
        assert gguf.GGML_QUANT_SIZES[kind] == tuple(block)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda file: file.text("llama.block_count"), "is not a string"),
        (lambda file: file.integer("general.architecture"), "is not an integer"),
        (lambda file: file.number("general.architecture"), "is not a number"),
        (lambda file: file.integer("absent"), "metadata absent is missing"),
        (lambda file: file.strings("absent"), "missing or not an array"),
        (lambda file: file.strings("tokenizer.ggml.scores"), "not an array of strings"),
        (lambda file: file.numbers("tokenizer.ggml.tokens"), "not an array of numbers"),
        (lambda file: file.tensor_bytes("absent"), "tensor absent is missing"),
    ],
)
def test_what_is_not_there_is_named(path: Path, call: object, problem: str) -> None:
    assert callable(call)
    with GgufFile(path) as file, pytest.raises(ModelError, match=problem) as caught:
        call(file)
    assert str(path) in str(caught.value)


def test_slice_outlives_the_file(path: Path) -> None:
    with GgufFile(path) as file:
        whole = file.tensor_bytes("plain")
    assert len(whole) == 60
    assert any(whole)


def test_every_truncation_is_refused(path: Path) -> None:
    data = path.read_bytes()
    with GgufFile(path) as file:
        last = file.tensor("vector")
    for size in range(last.offset + last.num_bytes):
        path.write_bytes(data[:size])
        line = refusal(path)
        assert "truncated" in line or "not a GGUF file" in line or "is empty" in line


def test_missing_file_and_folder(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "absent.gguf")
    assert "directory" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"PK\3\4" + bytes(100), "not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1 is not supported"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 40, 0), "damaged header"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 62), "a string of"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"k", 77), "unknown type 77"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 9, 1), "unsupported type 9"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 8, 1 << 60), "truncated"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 1, 0, 1, b"t", 9), "9 dimensions"),
        (
            b"GGUF" + struct.pack("<IQQQ1sIQIQ", 3, 1, 0, 1, b"t", 1, 32, 4, 0),
            "unknown type 4",
        ),
        (
            b"GGUF" + struct.pack("<IQQQ1sIQIQ", 3, 1, 0, 1, b"t", 1, 33, 2, 0),
            "not whole Q4_0 blocks",
        ),
        (
            b"GGUF" + struct.pack("<IQQQ1sIQIQ", 3, 1, 0, 1, b"t", 1, 1 << 60, 0, 0),
            "truncated: tensor t",
        ),
    ],
)
def test_foreign_and_damaged_files(data: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    assert problem in refusal(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 700), value=st.binary(min_size=1, max_size=8))
def test_any_damage_is_refused_or_in_bounds(path: Path, position: int, value: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[position : position + len(value)] = value
    damaged = path.with_name("damaged.gguf")
    damaged.write_bytes(data)
    try:
        file = GgufFile(damaged)
    except ModelError:
        return
    with file:
        for name, tensor in file.tensors.items():
            assert len(file.tensor_bytes(name)) == tensor.num_bytes
            assert tensor.offset + tensor.num_bytes <= len(data)
