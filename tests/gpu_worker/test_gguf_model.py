"""A Llama written as GGUF computes what the same weights compute in transformers."""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from gpu_worker.backend_choice import BackendOptions
from gpu_worker.gguf_weights import rope_row_order
from gpu_worker.loading import load_engine
from gpu_worker.model_engine import EngineLimits
from protos.errors import ModelError
from radixd.chassis.model_source import resolve_model
from tests.gpu_worker.backends import EXACT
from tests.gpu_worker.driver import Driver, Part
from tests.gpu_worker.tiny_models import make_oracle, oracle_logits, random_tokens

PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
LIMITS = EngineLimits(num_slots=200, max_rows=4, poison=True)


def interleave(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Row 2i of each head is its row i, row 2i + 1 its row half + i: written row by row."""
    out = np.empty_like(weight)
    head_dim = weight.shape[0] // num_heads
    for head in range(num_heads):
        for index in range(head_dim // 2):
            first = head * head_dim
            out[first + 2 * index] = weight[first + index]
            out[first + 2 * index + 1] = weight[first + head_dim // 2 + index]
    return out


def ggml_name(name: str) -> str:
    fixed = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in fixed:
        return fixed[name]
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{PARTS[part]}.weight"


def write(
    oracle: LlamaForCausalLM,
    path: Path,
    quantise: Callable[[str, np.ndarray], gguf.GGMLQuantizationType],
    **extra: object,
) -> None:
    """The oracle as GGUF, its large matrices quantised; the oracle takes the quantised values."""
    config = oracle.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_token_list([f"t{index}" for index in range(config.vocab_size)])
    writer.add_eos_token_id(2)
    for key, value in extra.items():
        assert isinstance(value, int)
        writer.add_uint32(key.replace("__", "."), value)
    for name, weight in oracle.state_dict().items():
        kind = quantise(name, weight.numpy())
        raw = gguf.quants.quantize(weight.numpy(), kind)
        weight.copy_(torch.from_numpy(gguf.quants.dequantize(raw, kind).copy()))
        values = gguf.quants.dequantize(raw, kind)
        for part, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if part in name:
                values = interleave(values, getattr(config, heads))
        raw = gguf.quants.quantize(values, kind)
        writer.add_tensor(ggml_name(name), raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantised(name: str, weight: np.ndarray) -> gguf.GGMLQuantizationType:
    if weight.ndim == 1:
        return gguf.GGMLQuantizationType.F32
    kinds = [gguf.GGMLQuantizationType[kind] for kind in ("Q8_0", "Q4_0", "Q4_1", "F16", "BF16")]
    return kinds[sum(name.encode()) % len(kinds)]


def all_f32(_name: str, _weight: np.ndarray) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType.F32


@pytest.mark.parametrize("options", EXACT)
@pytest.mark.parametrize("quantise", [all_f32, quantised])
def test_logits_equal_those_of_the_same_weights(
    quantise: Callable[[str, np.ndarray], gguf.GGMLQuantizationType],
    options: BackendOptions,
    tmp_path: Path,
) -> None:
    oracle = make_oracle(hidden_size=96, intermediate_size=64, head_dim=32)
    write(oracle, tmp_path / "tiny.gguf", quantise)
    engine = load_engine(resolve_model(str(tmp_path / "tiny.gguf")), LIMITS, options)
    hello = engine.hello()
    assert (hello.model_id, hello.vocab_size, hello.eos_token_ids) == ("tiny", 97, (2,))
    driver = Driver(engine)
    tokens = random_tokens(40, seed=1)
    found = driver.logits(Part(driver.open(0), tokens))
    assert (found - oracle_logits(oracle, tokens)[-1:]).abs().max() < 1e-3


def test_unpermute_inverts_the_layout_of_the_file() -> None:
    rows = np.random.default_rng(0).normal(size=(6 * 8, 5)).astype(np.float32)
    assert (interleave(rows, 6)[rope_row_order(48, 6)] == rows).all()


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        ({"llama__expert_count": 8}, "mixtures of experts"),
        ({"llama__rope__dimension_count": 8}, "part of the head"),
    ],
)
def test_models_computed_wrongly_are_refused(
    extra: dict[str, int], problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "tiny.gguf"
    write(make_oracle(), path, all_f32, **extra)
    with pytest.raises(ModelError, match=problem) as caught:
        load_engine(resolve_model(str(path)), LIMITS)
    assert str(path) in str(caught.value)


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    writer = gguf.GGUFWriter(path, "rwkv6")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelError, match="architecture rwkv6 is not supported"):
        load_engine(resolve_model(str(path)), LIMITS)


def test_truncated_file_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write(make_oracle(), path, all_f32)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ModelError, match="truncated: tensor") as caught:
        load_engine(resolve_model(str(path)), LIMITS)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
