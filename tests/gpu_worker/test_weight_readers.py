"""Readers of weights against values that libraries wrote: every type, blocks, what is refused."""

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import safetensors.torch
import torch
from gguf import GGMLQuantizationType as Type

from gpu_worker.blocks import dequantise
from gpu_worker.gguf_weights import GgufWeights, rope_row_order
from gpu_worker.model_config import ModelConfig
from gpu_worker.safetensors_weights import SafetensorsWeights
from gpu_worker.weights import LAYER_MATRICES, mostly_int4
from protos.errors import ModelError
from radixd.chassis.gguf_file import GgufFile
from tests.arch.source import ROOT

CONFIG = ModelConfig(
    vocab_size=10,
    hidden_size=256,
    intermediate_size=512,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    norm_eps=1e-5,
    rope_theta=1e4,
    rope_scaling=None,
    max_length=64,
    tied_embeddings=True,
    eos_token_ids=(),
)
SHAPE = (12, 256)
Q4_0 = np.dtype([("scale", "<f2"), ("values", "u1", 16)])


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def write(path: Path, tensors: dict[str, tuple[np.ndarray, Type]]) -> GgufWeights:
    """A file of raw tensors, opened."""
    writer = gguf.GGUFWriter(path, "llama")
    for name, (raw, kind) in tensors.items():
        writer.add_tensor(name, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufWeights(GgufFile(path), CONFIG, lambda _: None)


def quantised(kind: Type, *shape: int) -> np.ndarray:
    return gguf.quants.quantize(normal(*shape), kind)


KINDS = [Type[kind] for kind in ("F32", "F16", "BF16", "F64", "Q4_0", "Q4_1", "Q8_0", "Q5_0")]


@pytest.mark.parametrize("kind", [*KINDS, Type.Q6_K], ids=lambda kind: kind.name)
def test_every_type_has_the_values_of_the_library(kind: Type, tmp_path: Path) -> None:
    if kind is Type.F64:
        raw: np.ndarray = normal(*SHAPE).astype(np.float64)
        wanted = raw.astype(np.float32)
    elif kind is Type.Q6_K:  # the library cannot write these; small scales keep them finite
        raw = np.random.default_rng(0).integers(0, 60, (SHAPE[0], 210), np.uint8)
        wanted = gguf.quants.dequantize(raw, kind)
    else:
        raw = quantised(kind, *SHAPE)
        wanted = gguf.quants.dequantize(raw, kind)
    reader = write(tmp_path / "a.gguf", {"blk.1.ffn_up.weight": (raw, kind)})
    name = "model.layers.1.mlp.up_proj.weight"
    found = reader.read(name, SHAPE)
    assert (found.dtype, found.shape) == (np.float32, SHAPE)
    assert found.flags.c_contiguous
    assert found.flags.writeable
    assert np.array_equal(found, wanted)
    blocks = reader.read_blocks(name, SHAPE)
    kept = {"Q4_0": "int4", "Q4_1": "int4", "Q8_0": "int8"}.get(kind.name)
    assert reader.block_kind(name) == kept
    assert (blocks and blocks.kind) == kept
    assert blocks is None or np.array_equal(dequantise(blocks), wanted)


@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.Q8_0, Type.Q4_1, Type.Q5_0])
@pytest.mark.parametrize(("part", "heads"), [("q", 4), ("k", 2), ("v", 0)])
def test_rows_of_queries_and_keys_are_put_in_order(
    kind: Type, part: str, heads: int, tmp_path: Path
) -> None:
    shape = (64 * (heads or 2), 256)
    raw = quantised(kind, *shape)
    reader = write(tmp_path / "a.gguf", {f"blk.0.attn_{part}.weight": (raw, kind)})
    wanted = gguf.quants.dequantize(raw, kind)
    wanted = wanted[rope_row_order(shape[0], heads)] if heads else wanted
    name = f"model.layers.0.self_attn.{part}_proj.weight"
    assert np.array_equal(reader.read(name, shape), wanted)
    blocks = reader.read_blocks(name, shape)
    assert blocks is None or np.array_equal(dequantise(blocks), wanted)


@pytest.mark.parametrize("kind", [Type.F32, Type.Q8_0])
def test_padding_rows_of_a_vocabulary_are_cut(kind: Type, tmp_path: Path) -> None:
    raw = quantised(kind, *SHAPE)
    reader = write(tmp_path / "a.gguf", {"token_embd.weight": (raw, kind)})
    wanted = gguf.quants.dequantize(raw, kind)[:10]
    found = reader.read("model.embed_tokens.weight", (10, 256))
    assert np.array_equal(found, wanted)
    with pytest.raises(ModelError, match=r"has shape \(12, 256\), expected \(13, 256\)"):
        reader.read_blocks("model.embed_tokens.weight", (13, 256))


@pytest.mark.parametrize("scale", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("field", ["scale", "minimum"])
def test_blocks_that_are_not_finite_are_refused(scale: float, field: str, tmp_path: Path) -> None:
    raw = quantised(Type.Q4_1, *SHAPE)
    dtype = np.dtype([("scale", "<f2"), ("minimum", "<f2"), ("values", "u1", 16)])
    raw.view(dtype)[field][5, 3] = scale
    reader = write(tmp_path / "a.gguf", {"token_embd.weight": (raw, Type.Q4_1)})
    name = "model.embed_tokens.weight"
    assert reader.read_blocks(name, SHAPE) is None
    with (
        np.errstate(invalid="ignore"),
        pytest.raises(ModelError, match=r"token_embd\.weight holds values that are not finite"),
    ):
        reader.read(name, SHAPE)


def test_scales_whose_minimum_overflows_are_read_as_floats(tmp_path: Path) -> None:
    raw = np.zeros((12, 8), Q4_0)
    raw["scale"], raw["values"] = 9000.0, 0x97
    plain = raw.view(np.uint8).reshape(12, -1)
    reader = write(tmp_path / "a.gguf", {"token_embd.weight": (plain, Type.Q4_0)})
    assert reader.read_blocks("model.embed_tokens.weight", SHAPE) is None
    found = reader.read("model.embed_tokens.weight", SHAPE)
    assert found[3, :32].tolist() == [-9000.0] * 16 + [9000.0] * 16


@pytest.mark.parametrize(
    ("kinds", "mostly"), [("Q4_1", True), ("Q8_0", False), ("F32", False), ("mixed", True)]
)
def test_files_made_mostly_of_4_bits(kinds: str, mostly: bool, tmp_path: Path) -> None:
    names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    assert len(names) == len(LAYER_MATRICES)
    tensors = {}
    for layer in range(2):
        for index, name in enumerate(names):
            wide = kinds == "mixed" and index < 3
            kind = Type.Q8_0 if wide else Type["Q4_0" if kinds == "mixed" else kinds]
            tensors[f"blk.{layer}.{name}.weight"] = (quantised(kind, 2, 32), kind)
    assert mostly_int4(CONFIG, write(tmp_path / "a.gguf", tensors)) == mostly


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_safetensors_of_every_float(dtype: torch.dtype, tmp_path: Path) -> None:
    stored = torch.from_numpy(normal(*SHAPE)).to(dtype)
    stored[0, :4] = torch.tensor([0.0, -0.0, 6e-8, -1e-40], dtype=dtype)
    other = torch.ones(3)
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(
        {"model.embed_tokens.weight": stored, "a": other}, path, {"format": "pt"}
    )
    read_bytes: list[int] = []
    reader = SafetensorsWeights(tmp_path, read_bytes.append)
    found = reader.read("model.embed_tokens.weight", (10, 256))
    assert (found.dtype, found.flags.writeable) == (np.float32, True)
    assert np.array_equal(found, stored.to(torch.float32).numpy()[:10])
    assert read_bytes == [stored.numel() * stored.element_size()]
    assert reader.read("a", (3,)).tolist() == [1, 1, 1]
    assert reader.has("a")
    assert not reader.has("__metadata__")
    assert reader.block_kind("a") is reader.read_blocks("a", (1, 3)) is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_safetensors_that_are_not_finite_are_refused(value: float, tmp_path: Path) -> None:
    stored = torch.zeros(4, 8, dtype=torch.bfloat16)
    stored[2, 5] = value
    safetensors.torch.save_file({"a": stored}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="tensor a holds values that are not finite"):
        SafetensorsWeights(tmp_path, lambda _: None).read("a", (4, 8))


@pytest.mark.parametrize(
    "entry",
    ["3", "{}", '{"dtype":"F32","shape":[2],"data_offsets":[0,9]}',
     '{"dtype":"F32","shape":[2],"data_offsets":[4,12]}',
     '{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}',
     '{"dtype":"F32","shape":[2],"data_offsets":[8,0]}',
     '{"dtype":"F32","shape":[2],"data_offsets":["0","8"]}',
     '{"dtype":"F32","shape":2,"data_offsets":[0,8]}',
     '{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}'],
)  # fmt: skip
def test_directories_that_point_elsewhere_are_refused(entry: str, tmp_path: Path) -> None:
    header = f'{{"a":{entry}}}'.encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(ModelError, match="truncated or not safetensors") as caught:
        SafetensorsWeights(tmp_path, lambda _: None)
    assert "\n" not in str(caught.value)
    good = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    path.write_bytes(len(good).to_bytes(8, "little") + good + bytes(8))
    assert SafetensorsWeights(tmp_path, lambda _: None).read("a", (2,)).tolist() == [0, 0]


def test_reading_needs_neither_torch_nor_the_libraries() -> None:
    code = (
        "import sys, gpu_worker.native.packing, gpu_worker.weight_choice\n"
        "import gpu_worker.gguf_weights, gpu_worker.safetensors_weights\n"
        "import gpu_worker.accuracy_tokens\n"
        "heavy = {'torch', 'transformers', 'tokenizers', 'gguf', 'safetensors'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=50
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
