"""A model's configuration from a Hugging Face folder.

Refuses what the model code would compute wrongly: a clear line at start beats wrong tokens later.
Not here: what families differ in (families), tensors, tokenizers.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_worker.families import FAMILIES, UnknownFamily, Unsupported
from gpu_worker.model_config import ModelConfig, Rope, RopeScaling, checked
from protos.errors import ModelError

Raw = Mapping[str, Any]


def config_from_folder(folder: Path) -> ModelConfig:
    """The configuration of a Hugging Face folder.

    Raises:
        ModelError: config.json is missing, malformed or describes a model we do not compute.
    """
    path = folder / "config.json"
    try:
        whole = _read_json(path)
        try:
            return checked(path, _config(folder, _text_part(whole)))
        except UnknownFamily as error:
            return checked(path, _foreign(folder, whole, error))
    except Unsupported as error:
        raise ModelError(path, str(error)) from None
    except KeyError as error:
        raise ModelError(path, f"{error.args[0]} is missing") from None
    except (TypeError, ValueError, AttributeError, OverflowError, ZeroDivisionError) as error:
        raise ModelError(path, f"a value is malformed: {error}") from None


def _text_part(raw: Raw) -> Raw:
    """What describes the decoder, with the defaults of its family.

    Raises:
        Unsupported: the model is not of a family we know, or is quantised.
    """
    text = raw
    if raw.get("model_type") == "gemma3":  # a decoder that can see; images are never given
        text = {
            "model_type": "gemma3_text",
            **raw.get("text_config", {}),
            **{key: raw[key] for key in ("tie_word_embeddings", "eos_token_id") if key in raw},
        }
    if _is_quantised(raw):
        raise Unsupported("quantized safetensors are not supported")
    model_type = text.get("model_type")
    family = FAMILIES.get(str(model_type))
    if family is None:
        known = ", ".join(FAMILIES)
        raise UnknownFamily(f"model_type {model_type} is not supported, only {known}")
    activation = text.get(family.activation_key, family.activation)
    if activation != family.activation:
        key = family.activation_key
        raise Unsupported(f"{key} {activation} is not supported, only {family.activation}")
    return {**family.defaults, **text}


def _foreign(folder: Path, raw: Raw, why_not_ours: UnknownFamily) -> ModelConfig:
    """The configuration of a model that transformers is to compute.

    Raises:
        Unsupported: it cannot; says why we cannot, and why transformers cannot.
    """
    from gpu_worker.foreign.attention_seam import ForeignModelRefused  # late: takes seconds
    from gpu_worker.foreign.foreign_config import foreign_config

    try:
        return foreign_config(
            folder, num_known_ids=_num_known_ids(folder), eos_token_ids=_eos(folder, raw)
        )
    except ForeignModelRefused as error:
        raise Unsupported(f"{why_not_ours}; {error}") from None


def _is_quantised(raw: Raw) -> bool:
    text = raw.get("text_config") or {}
    return bool(raw.get("quantization_config") or text.get("quantization_config"))


def _config(folder: Path, raw: Raw) -> ModelConfig:
    num_heads = int(raw["num_attention_heads"])
    hidden_size = int(raw["hidden_size"])
    rope, local_rope = _ropes(raw)
    return ModelConfig(
        vocab_size=_vocab_size(folder, int(raw["vocab_size"])),
        hidden_size=hidden_size,
        intermediate_size=int(raw["intermediate_size"]),
        num_layers=int(raw["num_hidden_layers"]),
        num_heads=num_heads,
        num_kv_heads=int(raw.get("num_key_value_heads") or num_heads),
        head_dim=int(raw.get("head_dim") or hidden_size // num_heads),
        norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope_theta=rope.theta,
        rope_scaling=rope.scaling,
        local_rope=local_rope,
        max_length=_max_length(raw, rope.scaling),
        tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
        eos_token_ids=_eos(folder, raw),
        **FAMILIES[raw["model_type"]].habits(raw),
    )


def _ropes(raw: Raw) -> tuple[Rope, Rope | None]:
    """The rotary embedding, and that of layers with a window where it is another.

    Newer files keep theta and scaling together in rope_parameters, for each type of layers where
    they differ.
    """
    parameters = raw.get("rope_parameters") or {}
    theta = float(raw.get("rope_theta") or 1e4)
    local_theta = raw.get("rope_local_base_freq")
    if "full_attention" in parameters or "sliding_attention" in parameters:
        full = parameters.get("full_attention") or {}
        sliding = parameters.get("sliding_attention") or {}
        return _rope(raw, full, theta), _rope(raw, sliding, float(local_theta or 1e4))
    rope = _rope(raw, parameters or raw.get("rope_scaling") or {}, theta)
    return rope, None if local_theta is None else Rope(theta=float(local_theta))


def _rope(raw: Raw, parameters: Raw, theta: float) -> Rope:
    part = parameters.get("partial_rotary_factor", raw.get("partial_rotary_factor"))
    if part not in (None, 1, 1.0):
        raise Unsupported(f"partial_rotary_factor {part} is not supported")
    return Rope(
        theta=float(parameters.get("rope_theta") or theta), scaling=_scaling(raw, parameters)
    )


def _scaling(raw: Raw, found: Raw) -> RopeScaling | None:
    kind = found.get("rope_type") or found.get("type") or "default"
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling(kind=kind, factor=float(found["factor"]))
    original = found.get("original_max_position_embeddings") or raw["max_position_embeddings"]
    if kind == "llama3":
        return RopeScaling(
            kind=kind,
            factor=float(found["factor"]),
            low_freq_factor=float(found["low_freq_factor"]),
            high_freq_factor=float(found["high_freq_factor"]),
            original_max_length=int(original),
        )
    if kind == "yarn":
        factor = float(found["factor"])
        return RopeScaling(
            kind=kind,
            factor=factor,
            original_max_length=int(original),
            beta_fast=float(found.get("beta_fast") or 32.0),
            beta_slow=float(found.get("beta_slow") or 1.0),
            truncate=bool(found.get("truncate", True)),
            attention_factor=_yarn_attention(found, factor),
        )
    raise Unsupported(f"rope scaling {kind} is not supported")


def _yarn_attention(found: Raw, factor: float) -> float:
    """0.1 ln(factor) + 1 unless the file says otherwise (Peng et al., YaRN, 2023)."""
    if found.get("attention_factor") is not None:
        return float(found["attention_factor"])

    def growth(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0

    above, below = found.get("mscale"), found.get("mscale_all_dim")
    if above and below:
        return growth(float(above)) / growth(float(below))
    return growth(1.0)


def _max_length(raw: Raw, scaling: RopeScaling | None) -> int:
    stated = int(raw["max_position_embeddings"])
    if scaling is None or scaling.kind != "yarn":
        return stated
    # Whoever asks for YaRN does so for its length; files often state the one before it.
    return max(stated, int(scaling.original_max_length * scaling.factor))


def _vocab_size(folder: Path, num_embeddings: int) -> int:
    """Ids that may be sampled; embeddings are often padded beyond."""
    return min(_num_known_ids(folder) or num_embeddings, num_embeddings)


def _num_known_ids(folder: Path) -> int:
    """Ids that the tokenizer beside the weights knows; 0: there is none that says so."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return 0
    tokenizer = _read_json(path)
    vocab = (tokenizer.get("model") or {}).get("vocab") or {}
    if isinstance(vocab, list):  # unigram models list (token, score)
        highest = len(vocab) - 1
    else:
        highest = max(map(int, vocab.values()), default=-1)
    added = (int(token["id"]) for token in tokenizer.get("added_tokens") or [])
    return max(highest, max(added, default=-1)) + 1


def _eos(folder: Path, raw: Raw) -> tuple[int, ...]:
    path = folder / "generation_config.json"
    generation = _read_json(path) if path.is_file() else {}
    found = generation.get("eos_token_id")
    if found is None:
        found = raw.get("eos_token_id")
    if found is None:
        return ()
    return tuple(int(token) for token in (found if isinstance(found, list) else [found]))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(path, (error.strerror or str(error)).lower()) from None
    except ValueError as error:
        raise ModelError(path, f"not valid JSON: {error}") from None
    if not isinstance(loaded, dict):
        raise ModelError(path, "a JSON object was expected")
    return loaded
