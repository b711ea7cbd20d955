"""A tiny random model of every family with a path of its own, as transformers builds it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from radixd.chassis.model_source import ModelSource

VOCAB = 97
WINDOW = 6
"""Shorter than what the tests compute."""

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
_MIXTURE = {
    "moe_intermediate_size": 24,
    "num_experts": 6,
    "num_experts_per_tok": 2,
}

FAMILIES: Mapping[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "mistral": {"model_type": "mistral", "sliding_window": WINDOW},
    "qwen2": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "max_window_layers": 1,
        "rope_parameters": _YARN,
    },
    "qwen3": {"model_type": "qwen3", "attention_bias": True, "tie_word_embeddings": True},
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        **_MIXTURE,
        "norm_topk_prob": True,
        "mlp_only_layers": [1],
    },
    "qwen3_moe_sparse": {
        "model_type": "qwen3_moe",
        **_MIXTURE,
        "num_experts_per_tok": 3,
        "decoder_sparse_step": 2,
        "use_sliding_window": True,
        "sliding_window": WINDOW,
    },
    "gemma2": {
        "model_type": "gemma2",
        "sliding_window": WINDOW,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 1.5,
        "final_logit_softcapping": 2.0,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "sliding_window": WINDOW,
        "query_pre_attn_scalar": 8,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e4},
        },
    },
}


def family_oracle(family: str, **changes: Any) -> PreTrainedModel:
    """The model of a family, with weights of norms and biases that are not trivial."""
    torch.manual_seed(3)
    config = AutoConfig.for_model(**(SIZES | FAMILIES[family] | changes))
    oracle = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    return spread(oracle)


def spread(oracle: PreTrainedModel) -> PreTrainedModel:
    """Norms and biases, which begin as ones and zeros, moved at random."""
    with torch.no_grad():
        for parameter in oracle.parameters():
            if parameter.ndim == 1:
                parameter += 0.3 * torch.randn_like(parameter)
    return oracle


def save_family(oracle: PreTrainedModel, folder: Path) -> ModelSource:
    """The model as a Hugging Face folder."""
    oracle.save_pretrained(folder)
    return ModelSource(model_id="tiny", path=folder, kind="huggingface")
