"""Models of families that only transformers computes, over our pool: same logits as alone with it,
and a refusal of those whose tokens know of each other by other ways."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from gpu_worker.backend_choice import BackendOptions
from gpu_worker.foreign.attention_seam import ForeignModelRefused
from gpu_worker.foreign.probe import probed, window_of
from gpu_worker.loading import load_engine
from gpu_worker.model_config import ModelConfig
from gpu_worker.model_engine import EngineLimits
from protos.errors import InvalidRequest, ModelError
from radixd.chassis.model_source import ModelSource
from tests.gpu_worker.backends import NATIVE, TORCH
from tests.gpu_worker.driver import Driver, Part
from tests.gpu_worker.family_models import SIZES, VOCAB, WINDOW, save_family, spread
from tests.gpu_worker.tiny_models import random_tokens

KERNELS = BackendOptions(backend="triton", device="cpu")
TOLERANCE = 1e-4

FOREIGN: dict[str, dict[str, Any]] = {
    "gpt2": {},  # learned positions, no rotation, biases
    "opt": {},
    "gpt_bigcode": {},  # one KV head
    "nemotron": {},  # hands nothing on to its attention
    "phi3": {},
    "jetmoe": {},  # views what attention gives in another shape
    "mixtral": {"num_local_experts": 4},
    "olmo3": {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]},
    "deepseek_v3": {  # values narrower than keys
        "q_lora_rank": None,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 12,
        "head_dim": 8,
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 16,
        "n_shared_experts": 1,
    },
}


def oracle_of(model_type: str, **changes: Any) -> PreTrainedModel:
    torch.manual_seed(3)
    sizes = SIZES | FOREIGN.get(model_type, {}) | changes
    config = AutoConfig.for_model(model_type, **sizes)
    return spread(AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval())


def driver_of(source: ModelSource, options: BackendOptions) -> Driver:
    limits = EngineLimits(num_slots=256, max_rows=4, poison=True)
    return Driver(load_engine(source, limits, options))


def check(oracle: PreTrainedModel, driver: Driver) -> None:
    """A prompt in two chunks, the second beside another row's, then a decode of both."""
    tokens, mate_tokens = random_tokens(20, seed=1), random_tokens(9, seed=2)
    with torch.inference_mode():
        wanted = oracle(torch.tensor([tokens])).logits[0]
        mate_wanted = oracle(torch.tensor([mate_tokens])).logits[0]
    assert wanted.std() > 0.1
    row, mate = driver.open(0), driver.open(1)
    nothing = driver.logits(Part(row, tokens[:8], samples=False))
    assert nothing.shape == (0, VOCAB)
    found = driver.logits(Part(row, tokens[8:18]), Part(mate, mate_tokens[:8]))
    pair = torch.stack([wanted[17], mate_wanted[7]])
    torch.testing.assert_close(found, pair, atol=TOLERANCE, rtol=0)
    found = driver.logits(Part(mate, mate_tokens[8:]), Part(row, tokens[18:19]))
    pair = torch.stack([mate_wanted[8], wanted[18]])
    torch.testing.assert_close(found, pair, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("model_type", FOREIGN)
def test_logits_are_those_of_transformers(model_type: str, tmp_path: Path) -> None:
    oracle = oracle_of(model_type)
    check(oracle, driver_of(save_family(oracle, tmp_path), TORCH))


def test_logits_on_the_kernels(tmp_path: Path) -> None:
    oracle = oracle_of("olmo3")
    check(oracle, driver_of(save_family(oracle, tmp_path), KERNELS))


def test_rows_of_padding_are_not_sampled(tmp_path: Path) -> None:
    source = save_family(oracle_of("gpt2"), tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0, "b": 39}}}')
    driver = driver_of(source, TORCH)
    assert driver.engine.hello().vocab_size == 40
    assert driver.logits(Part(driver.open(0), [1, 2, 3])).shape == (1, 40)


@pytest.mark.parametrize(
    ("model_type", "changes", "reason"),
    [
        ("gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2}, "attention has sinks"),
        (
            "llama4_text",
            {
                "num_local_experts": 2,
                "intermediate_size_mlp": 32,
                "attention_chunk_size": 8,
                "layer_types": ["chunked_attention", "full_attention"],
            },
            "others than the latest",
        ),
        ("lfm2", {"layer_types": ["conv", "full_attention"]}, "1 of its 2 layers"),
        ("bert", {"is_decoder": False}, "others than the latest"),
        ("bloom", {}, "0 of its 2 layers"),
        ("mamba", {}, "more than keys and values"),
    ],
)
def test_what_a_pool_cannot_stand_in_for_is_refused(
    model_type: str, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    source = save_family(oracle_of(model_type, **changes), tmp_path)
    with pytest.raises(ModelError, match=reason):
        driver_of(source, TORCH)


def test_scaling_that_moves_is_refused(tmp_path: Path) -> None:
    source = save_family(oracle_of("mixtral"), tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["rope_parameters"] |= {"rope_type": "dynamic", "factor": 2.0}
    path.write_text(json.dumps(config))
    with pytest.raises(ModelError, match="dynamic scaling turns a token by the length around it"):
        driver_of(source, TORCH)


def test_a_missing_tensor_is_refused(tmp_path: Path) -> None:
    source = save_family(oracle_of("gpt2"), tmp_path)
    weights = tmp_path / "model.safetensors"
    tensors = safetensors.torch.load_file(weights)
    del tensors["transformer.h.1.mlp.c_fc.weight"]
    safetensors.torch.save_file(tensors, weights, {"format": "pt"})
    with pytest.raises(ModelError, match=r"tensor transformer.h.1.mlp.c_fc.weight is missing"):
        driver_of(source, TORCH)


def test_options_that_a_foreign_model_cannot_have_are_refused_by_name(tmp_path: Path) -> None:
    source = save_family(oracle_of("gpt2"), tmp_path)
    with pytest.raises(InvalidRequest, match=r"backend.*a family that transformers computes"):
        driver_of(source, NATIVE)
    int8 = BackendOptions(backend="triton", device="cpu", weights="int8")
    with pytest.raises(InvalidRequest, match=r"weights.*transformers computes"):
        driver_of(source, int8)
    with pytest.raises(InvalidRequest, match=r"deterministic.*transformers computes"):
        driver_of(source, replace(TORCH, deterministic=True))


def test_tokens_that_hear_of_each_other_beside_attention_are_found() -> None:
    oracle = oracle_of("gpt2")
    mlp = oracle.transformer.h[1].mlp
    mlp.register_forward_hook(lambda _module, _inputs, out: out + out.mean(1, keepdim=True))
    with pytest.raises(ForeignModelRefused, match="by other ways than attention"):
        probed(oracle, provisional())


def provisional() -> ModelConfig:
    return ModelConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_layers=2,
        num_heads=1,
        num_kv_heads=1,
        head_dim=2,
        norm_eps=0.0,
        rope_theta=0.0,
        rope_scaling=None,
        max_length=128,
        tied_embeddings=False,
        eos_token_ids=(),
    )


def test_what_is_found_out_of_a_model() -> None:
    found = probed(oracle_of("olmo3"), provisional())
    assert (found.num_heads, found.num_kv_heads, found.head_dim) == (4, 2, 16)
    assert found.windows == (WINDOW, 0)
    assert found.query_scale == 0.25


def test_the_window_of_a_mask() -> None:
    assert window_of(lambda _b, _h, q, k: k <= q, 100) == 0
    assert window_of(lambda _b, _h, q, k: (k <= q) & (k > q - 7), 100) == 7
    for strange in (
        lambda _b, _h, q, k: k <= q + 1,
        lambda _b, _h, q, k: (k <= q) & (k // 8 == q // 8),
        lambda _b, _h, q, k: (k <= q) & ((k == 0) | (k > q - 7)),
        lambda _b, _h, q, k: (k <= q) & (k != 3),
        lambda _b, _h, q, k: (k <= q) & (k % 2 == 0),
    ):
        with pytest.raises(ForeignModelRefused):
            window_of(strange, 100)
