"""Shape and constants of a Llama-family model, from config.json or from GGUF metadata.

Refuses what the model code would compute wrongly: a clear line at start beats wrong tokens later.
Not here: tensors, tokenizers.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protos.errors import ModelError
from radixd.chassis.gguf_file import GgufFile

_MODEL_TYPES = ("llama", "mistral")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are stretched for contexts longer than those first trained on."""

    kind: str
    """"linear" or "llama3"."""
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_length: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Everything the model code needs to know besides the weights."""

    vocab_size: int
    """Ids the tokenizer knows.  Rows of the weights above it are padding and never sampled."""
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    max_length: int
    """Longest context the model was made for, in tokens."""
    tied_embeddings: bool
    eos_token_ids: tuple[int, ...]

    @property
    def num_groups(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def num_parameters(self) -> int:
        """Numbers in the matrices; norms and padding rows are not worth counting."""
        attention = 2 * self.head_dim * (self.num_heads + self.num_kv_heads)
        layer = self.hidden_size * (attention + 3 * self.intermediate_size)
        vocabularies = 1 if self.tied_embeddings else 2
        return self.num_layers * layer + vocabularies * self.vocab_size * self.hidden_size


def config_from_folder(folder: Path) -> ModelConfig:
    """The configuration of a Hugging Face folder.

    Raises:
        ModelError: config.json is missing, malformed or describes a model we do not compute.
    """
    path = folder / "config.json"
    raw = _read_json(path)
    _refuse_unsupported(path, raw)
    try:
        num_heads = int(raw["num_attention_heads"])
        hidden_size = int(raw["hidden_size"])
        return _checked(
            path,
            ModelConfig(
                vocab_size=_folder_vocab_size(folder, int(raw["vocab_size"])),
                hidden_size=hidden_size,
                intermediate_size=int(raw["intermediate_size"]),
                num_layers=int(raw["num_hidden_layers"]),
                num_heads=num_heads,
                num_kv_heads=int(raw.get("num_key_value_heads") or num_heads),
                head_dim=int(raw.get("head_dim") or hidden_size // num_heads),
                norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
                rope_theta=_rope_theta(raw),
                rope_scaling=_rope_scaling(path, raw),
                max_length=int(raw.get("max_position_embeddings", 2048)),
                tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
                eos_token_ids=_folder_eos(folder, raw),
            ),
        )
    except KeyError as error:
        raise ModelError(path, f"{error.args[0]} is missing") from None
    except (TypeError, ValueError) as error:
        raise ModelError(path, f"a value is malformed: {error}") from None


def config_from_gguf(file: GgufFile) -> ModelConfig:
    """The configuration in the metadata of a GGUF file.

    Raises:
        ModelError: a value is missing, or the model is not one we compute.
    """
    architecture = file.text("general.architecture")
    if architecture != "llama":
        raise ModelError(file.path, f"architecture {architecture} is not supported, only llama")
    if file.integer("llama.expert_count", 0):
        raise ModelError(file.path, "mixtures of experts are not supported")
    num_heads = file.integer("llama.attention.head_count")
    hidden_size = file.integer("llama.embedding_length")
    head_dim = file.integer("llama.attention.key_length", hidden_size // max(num_heads, 1))
    if file.integer("llama.rope.dimension_count", head_dim) != head_dim:
        raise ModelError(file.path, "rotary embedding of a part of the head is not supported")
    eos_keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    eos = [file.integer(key) for key in eos_keys if key in file.metadata]
    vocab_size = file.array_length("tokenizer.ggml.tokens")
    return _checked(
        file.path,
        ModelConfig(
            vocab_size=vocab_size or file.tensor("token_embd.weight").shape[0],
            hidden_size=hidden_size,
            intermediate_size=file.integer("llama.feed_forward_length"),
            num_layers=file.integer("llama.block_count"),
            num_heads=num_heads,
            num_kv_heads=file.integer("llama.attention.head_count_kv", num_heads),
            head_dim=head_dim,
            norm_eps=file.number("llama.attention.layer_norm_rms_epsilon"),
            rope_theta=file.number("llama.rope.freq_base", 10000.0),
            rope_scaling=_gguf_scaling(file),
            max_length=file.integer("llama.context_length"),
            tied_embeddings="output.weight" not in file.tensors,
            eos_token_ids=tuple(dict.fromkeys(eos)),
        ),
    )


def _checked(path: Path, config: ModelConfig) -> ModelConfig:
    for field in ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads",
                  "num_kv_heads", "head_dim", "max_length"):  # fmt: skip
        if getattr(config, field) < 1:
            raise ModelError(path, f"{field} is {getattr(config, field)}")
    if config.num_heads % config.num_kv_heads:
        raise ModelError(
            path, f"{config.num_heads} heads do not divide among {config.num_kv_heads} KV heads"
        )
    if config.head_dim % 2:
        raise ModelError(path, f"head_dim {config.head_dim} is odd")
    return config


def _refuse_unsupported(path: Path, raw: Mapping[str, Any]) -> None:
    model_type = raw.get("model_type")
    if model_type not in _MODEL_TYPES:
        raise ModelError(
            path, f"model_type {model_type} is not supported, only {' and '.join(_MODEL_TYPES)}"
        )
    if raw.get("quantization_config"):
        raise ModelError(path, "quantized safetensors are not supported")
    if raw.get("hidden_act", "silu") != "silu":
        raise ModelError(path, f"hidden_act {raw['hidden_act']} is not supported, only silu")
    for key in ("attention_bias", "mlp_bias"):
        if raw.get(key):
            raise ModelError(path, f"{key} is not supported")
    window = raw.get("sliding_window")
    if window and int(window) < int(raw.get("max_position_embeddings", 2048)):
        raise ModelError(path, f"sliding_window {window} is not supported")


def _rope_theta(raw: Mapping[str, Any]) -> float:
    parameters = raw.get("rope_parameters") or {}
    return float(parameters.get("rope_theta") or raw.get("rope_theta") or 10000.0)


def _rope_scaling(path: Path, raw: Mapping[str, Any]) -> RopeScaling | None:
    # Newer files keep theta and scaling together in rope_parameters.
    found = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = found.get("rope_type") or found.get("type") or "default"
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling(kind=kind, factor=float(found["factor"]))
    if kind == "llama3":
        return RopeScaling(
            kind=kind,
            factor=float(found["factor"]),
            low_freq_factor=float(found["low_freq_factor"]),
            high_freq_factor=float(found["high_freq_factor"]),
            original_max_length=int(found["original_max_position_embeddings"]),
        )
    raise ModelError(path, f"rope scaling {kind} is not supported")


def _gguf_scaling(file: GgufFile) -> RopeScaling | None:
    kind = file.text("llama.rope.scaling.type", "none")
    factor = file.number("llama.rope.scaling.factor", 1.0)
    if kind == "none" or factor == 1.0:
        return None
    if kind == "linear":
        return RopeScaling(kind=kind, factor=factor)
    raise ModelError(file.path, f"rope scaling {kind} is not supported")


def _folder_vocab_size(folder: Path, num_embeddings: int) -> int:
    """Ids that the tokenizer beside the weights knows; embeddings are often padded beyond."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return num_embeddings
    tokenizer = _read_json(path)
    vocab = (tokenizer.get("model") or {}).get("vocab") or {}
    if isinstance(vocab, list):  # unigram models list (token, score)
        highest = len(vocab) - 1
    else:
        highest = max(map(int, vocab.values()), default=-1)
    added = (int(token["id"]) for token in tokenizer.get("added_tokens") or [])
    known = max(highest, max(added, default=-1)) + 1
    return min(known, num_embeddings) if known else num_embeddings


def _folder_eos(folder: Path, raw: Mapping[str, Any]) -> tuple[int, ...]:
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
