"""What each family of models does that a plain Llama does not, from its config.json.

A family is a `model_type`.  Its defaults are those of the library the files were written with, as
files leave out what equals them.  Not here: what all families share (folder_config).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu_worker.model_config import ExpertRules

Raw = Mapping[str, Any]

_FULL, _SLIDING = "full_attention", "sliding_attention"


class Unsupported(Exception):
    """What a model asks for and we do not compute."""


class UnknownFamily(Unsupported):
    """A model of a family that is none of ours; transformers may compute it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How to read one kind of config.json."""

    habits: Callable[[Raw], dict[str, Any]]
    """Fields of ModelConfig beyond a plain Llama's; raises Unsupported, KeyError, ValueError."""
    defaults: Raw = field(default_factory=dict)
    activation_key: str = "hidden_act"
    activation: str = "silu"
    """The only one computed."""


def _biases(raw: Raw) -> dict[str, Any]:
    has_bias = bool(raw.get("attention_bias"))
    return {"qkv_bias": has_bias, "attention_out_bias": has_bias}


def _llama(raw: Raw) -> dict[str, Any]:
    window = raw.get("sliding_window")
    if window and int(window) < int(raw["max_position_embeddings"]):
        raise Unsupported(f"sliding_window {window} is not supported in a llama")
    return _biases(raw) | {"mlp_bias": bool(raw.get("mlp_bias"))}


def _mistral(raw: Raw) -> dict[str, Any]:
    if raw.get("layer_types"):
        raise Unsupported("layer_types are not supported in a mistral")
    return {"windows": _narrow(raw, [_SLIDING] * int(raw["num_hidden_layers"]))}


def _qwen2(raw: Raw) -> dict[str, Any]:
    return {"qkv_bias": True, "windows": _late_windows(raw)}


def _qwen3(raw: Raw) -> dict[str, Any]:
    return _biases(raw) | {"head_norms": True, "windows": _late_windows(raw)}


def _qwen3_moe(raw: Raw) -> dict[str, Any]:
    num_layers = int(raw["num_hidden_layers"])
    dense = set(raw.get("mlp_only_layers") or ())
    step = int(raw["decoder_sparse_step"])
    sparse = [i for i in range(num_layers) if i not in dense and (i + 1) % step == 0]
    kind = _SLIDING if raw.get("use_sliding_window") else _FULL
    return _biases(raw) | {
        "head_norms": True,
        "windows": _narrow(raw, [kind] * num_layers),
        "experts": ExpertRules(
            num_experts=int(raw.get("num_local_experts") or raw["num_experts"]),
            num_chosen=int(raw["num_experts_per_tok"]),
            intermediate_size=int(raw["moe_intermediate_size"]),
            renormalised=bool(raw["norm_topk_prob"]),
            layers=tuple(sparse),
        ),
    }


def _gemma2(raw: Raw) -> dict[str, Any]:
    kinds = raw.get("layer_types") or _every(2, raw)
    return _gemma(raw, kinds) | {
        "attention_soft_cap": float(raw["attn_logit_softcapping"] or 0.0),
    }


def _gemma3(raw: Raw) -> dict[str, Any]:
    if raw.get("attn_logit_softcapping"):
        raise Unsupported("attn_logit_softcapping is not supported in a gemma3")
    kinds = raw.get("layer_types") or _every(int(raw["sliding_window_pattern"]), raw)
    return _gemma(raw, kinds) | {"head_norms": True}


def _gemma(raw: Raw, kinds: list[str]) -> dict[str, Any]:
    if raw.get("use_bidirectional_attention"):
        raise Unsupported("use_bidirectional_attention is not supported")
    return _biases(raw) | {
        "windows": _windows(raw, kinds),
        "query_scale": float(raw["query_pre_attn_scalar"]) ** -0.5,
        "logit_soft_cap": float(raw["final_logit_softcapping"] or 0.0),
        "norm_offset": 1.0,
        "sandwich_norms": True,
        "embedding_factor": float(raw["hidden_size"]) ** 0.5,
        "gate": "gelu_tanh",
    }


def _every(period: int, raw: Raw) -> list[str]:
    """The last of each `period` layers sees all."""
    return [_SLIDING if (i + 1) % period else _FULL for i in range(int(raw["num_hidden_layers"]))]


def _late_windows(raw: Raw) -> tuple[int, ...]:
    """Windows of all layers but the first few, where they are asked for at all."""
    kinds = raw.get("layer_types")
    if not kinds:
        first = int(raw["max_window_layers"])
        kinds = [_SLIDING if i >= first else _FULL for i in range(int(raw["num_hidden_layers"]))]
    return _narrow(raw, kinds if raw.get("use_sliding_window") else [_FULL] * len(kinds))


def _narrow(raw: Raw, kinds: list[str]) -> tuple[int, ...]:
    """Windows, or none where nothing is ever outside of them."""
    if int(raw["sliding_window"] or 0) >= int(raw["max_position_embeddings"]):
        return ()
    return _windows(raw, kinds)


def _windows(raw: Raw, kinds: list[str]) -> tuple[int, ...]:
    unknown = set(kinds) - {_FULL, _SLIDING}
    if unknown:
        raise Unsupported(f"layer type {min(unknown)} is not supported")
    if len(kinds) != int(raw["num_hidden_layers"]):
        raise Unsupported(f"{len(kinds)} layer types, {raw['num_hidden_layers']} layers")
    window = int(raw["sliding_window"] or 0)
    windows = tuple(window if kind == _SLIDING else 0 for kind in kinds)
    return windows if any(windows) else ()


_QWEN: dict[str, Any] = {
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "use_sliding_window": False,
}
_GEMMA: dict[str, Any] = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
    "tie_word_embeddings": True,
}
_GEMMA2 = Family(
    habits=_gemma2,
    defaults=_GEMMA
    | {"vocab_size": 256000, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
    activation_key="hidden_activation",
    activation="gelu_pytorch_tanh",
)
_GEMMA3 = Family(
    habits=_gemma3,
    defaults=_GEMMA
    | {
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "final_logit_softcapping": None,
        "sliding_window_pattern": 6,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
    },
    activation_key="hidden_activation",
    activation="gelu_pytorch_tanh",
)

FAMILIES: Mapping[str, Family] = {
    "llama": Family(habits=_llama, defaults={"max_position_embeddings": 2048}),
    "mistral": Family(
        habits=_mistral, defaults={"max_position_embeddings": 131_072, "sliding_window": 4096}
    ),
    "qwen2": Family(habits=_qwen2, defaults=_QWEN),
    "qwen3": Family(habits=_qwen3, defaults=_QWEN | {"head_dim": 128}),
    "qwen3_moe": Family(
        habits=_qwen3_moe,
        defaults=_QWEN
        | {
            "decoder_sparse_step": 1,
            "moe_intermediate_size": 768,
            "num_experts_per_tok": 8,
            "num_experts": 128,
            "norm_topk_prob": False,
        },
    ),
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA3,
}
"""By model_type.  A "gemma3" holds a "gemma3_text" beside its eyes; see folder_config."""
