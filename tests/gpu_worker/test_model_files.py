"""Hugging Face folders that cannot be served: each gets one line that names file and fault."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from gpu_worker.backend_choice import BackendOptions
from gpu_worker.folder_config import config_from_folder
from gpu_worker.loading import load_engine
from gpu_worker.model_engine import EngineLimits
from protos.errors import ModelError
from radixd.chassis.model_source import ModelSource, resolve_model
from tests.gpu_worker.backends import EXACT
from tests.gpu_worker.tiny_models import make_oracle, save

LIMITS = EngineLimits(num_slots=64, max_rows=4)
MISTRAL: dict[str, Any] = {"model_type": "mistral"}
QWEN3: dict[str, Any] = {
    "model_type": "qwen3",
    "use_sliding_window": True,
    "sliding_window": 9,
}
MIXTURE: dict[str, Any] = {"model_type": "qwen3_moe"}
GEMMA2: dict[str, Any] = {"model_type": "gemma2"}


@pytest.fixture
def source(tmp_path: Path) -> ModelSource:
    return save(make_oracle(), tmp_path / "tiny")


def refusal(source: ModelSource) -> str:
    """The one line that loading ends with."""
    with pytest.raises(ModelError) as caught:
        load_engine(resolve_model(str(source.path)), LIMITS)
    line = str(caught.value)
    assert "\n" not in line
    assert str(source.path) in line
    return line


def edit_config(source: ModelSource, **changes: Any) -> None:
    path = source.path / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | changes), encoding="utf-8")


def edit_weights(source: ModelSource, edit: Callable[[dict[str, torch.Tensor]], None]) -> None:
    path = source.path / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    edit(tensors)
    safetensors.torch.save_file(tensors, path)


@pytest.mark.parametrize("keep", [0, 3, 8, 100, -1])
def test_truncated_weights(source: ModelSource, keep: int) -> None:
    path = source.path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    assert "model.safetensors: truncated or not safetensors" in refusal(source)


def test_foreign_weights(source: ModelSource) -> None:
    (source.path / "model.safetensors").write_bytes(b"PK\3\4" + bytes(5000))
    assert "model.safetensors: truncated or not safetensors" in refusal(source)


def test_missing_tensor(source: ModelSource) -> None:
    edit_weights(source, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    assert "tensor model.layers.1.mlp.up_proj.weight is missing" in refusal(source)


def test_tensor_of_another_shape(source: ModelSource) -> None:
    name = "model.layers.0.self_attn.k_proj.weight"
    edit_weights(source, lambda tensors: tensors.update({name: torch.zeros(32, 48)}))
    assert f"tensor {name} has shape (32, 48), expected (16, 48)" in refusal(source)


def test_tensor_of_integers(source: ModelSource) -> None:
    name = "model.norm.weight"
    zeros = torch.zeros(48, dtype=torch.int8)
    edit_weights(source, lambda tensors: tensors.update({name: zeros}))
    assert f"tensor {name} holds I8, not floats" in refusal(source)


def test_missing_shard(source: ModelSource) -> None:
    index = {"weight_map": {"model.norm.weight": "model-2-of-2.safetensors"}}
    path = source.path / "model.safetensors.index.json"
    path.write_text(json.dumps(index), encoding="utf-8")
    assert "model-2-of-2.safetensors" in refusal(source)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 3}', "{"])
def test_damaged_index(source: ModelSource, text: str) -> None:
    path = source.path / "model.safetensors.index.json"
    path.write_text(text, encoding="utf-8")
    assert "not an index of safetensors" in refusal(source)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model_type": "gpt9"}, "model_type gpt9 is not supported, only llama, mistral, qwen2,"),
        ({"model_type": "gpt9"}, "transformers cannot read it: "),
        ({"model_type": "t5"}, "transformers knows no decoder of it"),
        ({"model_type": "gpt2"}, "tensor transformer.h.0.attn.c_attn.bias is missing"),
        ({"model_type": ["llama"]}, "model_type ['llama'] is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act gelu"),
        ({"attention_bias": True}, "tensor model.layers.0.self_attn.q_proj.bias is missing"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized safetensors"),
        ({"sliding_window": 64}, "sliding_window 64"),
        ({"rope_parameters": {"rope_type": "longrope", "factor": 4.0}}, "rope scaling longrope"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}, "rope scaling dynamic"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "factor is missing"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        (MISTRAL | {"layer_types": ["full_attention"] * 2}, "layer_types"),
        (MISTRAL | {"sliding_window": -1}, "sliding_window is -1"),
        (QWEN3 | {"layer_types": ["full_attention"] * 3}, "3 layer types, 2 layers"),
        (QWEN3 | {"layer_types": ["chunked_attention"] * 2}, "layer type chunked_attention"),
        (MIXTURE | {"num_experts": 4, "num_experts_per_tok": 5}, "5 of 4 experts"),
        (MIXTURE | {"num_experts": 0}, "0 experts"),
        (MIXTURE | {"decoder_sparse_step": 0}, "malformed"),
        (GEMMA2 | {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        (GEMMA2 | {"hidden_activation": "silu"}, "hidden_activation silu"),
        ({"model_type": "gemma3_text", "attn_logit_softcapping": 5.0}, "attn_logit_softcapping"),
        ({"model_type": "gemma3"}, "expected (262208, 2304)"),
        ({"model_type": "gemma3", "text_config": 3}, "malformed"),
        ({"num_key_value_heads": 2}, "3 heads do not divide among 2 KV heads"),
        ({"num_hidden_layers": 0}, "num_layers is 0"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"hidden_size": "wide"}, "malformed"),
    ],
)
def test_models_computed_wrongly(
    source: ModelSource, changes: dict[str, Any], problem: str
) -> None:
    edit_config(source, **changes)
    line = refusal(source)
    assert source.path.name in line
    assert problem in line


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"model_type": "llama"}'])
def test_damaged_config(source: ModelSource, text: str) -> None:
    (source.path / "config.json").write_text(text, encoding="utf-8")
    assert "config.json" in refusal(source)


@pytest.mark.parametrize("options", EXACT)
def test_pool_beyond_memory_is_one_line(source: ModelSource, options: BackendOptions) -> None:
    message = f"no memory for the weights and {1 << 50} slots"
    with pytest.raises(ModelError, match=message) as caught:
        load_engine(source, EngineLimits(num_slots=1 << 50, max_rows=4), options)
    assert "\n" not in str(caught.value)


def test_end_of_sequence_ids(source: ModelSource) -> None:
    assert config_from_folder(source.path).eos_token_ids == (2,)
    path = source.path / "generation_config.json"
    path.write_text('{"eos_token_id": [7, 9]}', encoding="utf-8")
    assert config_from_folder(source.path).eos_token_ids == (7, 9)
    path.unlink()
    edit_config(source, eos_token_id=None)
    assert config_from_folder(source.path).eos_token_ids == ()


def test_older_files_keep_rope_at_the_top(source: ModelSource) -> None:
    edit_config(
        source,
        rope_parameters=None,
        rope_theta=5e5,
        rope_scaling={"type": "linear", "factor": 2.0},
    )
    config = config_from_folder(source.path)
    assert config.rope_theta == 5e5
    assert config.rope_scaling is not None
    assert (config.rope_scaling.kind, config.rope_scaling.factor) == ("linear", 2.0)


def test_length_is_capped_by_the_model(source: ModelSource) -> None:
    for asked, given in ((0, 512), (100, 100), (9999, 512)):
        limits = EngineLimits(num_slots=64, max_rows=4, max_length=asked)
        assert load_engine(source, limits).hello().max_length == given


def test_hash_tells_models_apart(source: ModelSource, tmp_path: Path) -> None:
    first = load_engine(source, LIMITS).hello().model_hash
    assert load_engine(source, LIMITS).hello().model_hash == first
    other = save(make_oracle(seed=1), tmp_path / "other")
    assert load_engine(other, LIMITS).hello().model_hash != first
    edit_config(source, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    assert load_engine(source, LIMITS).hello().model_hash != first
