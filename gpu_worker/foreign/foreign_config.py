"""A configuration as transformers reads it, of a family that is none of ours.

What it says of attention is provisional: the model itself is looked at once it is loaded (probe).
Not here: families of ours (families, folder_config).
"""

from pathlib import Path
from typing import Any

from gpu_worker.foreign.attention_seam import ForeignModelRefused
from gpu_worker.model_config import ModelConfig
from protos.errors import first_line

_MOVING = {"dynamic", "longrope"}
"""Scalings whose keys depend on the text they are part of, so that none can be kept."""


def foreign_config(
    folder: Path, *, num_known_ids: int, eos_token_ids: tuple[int, ...]
) -> ModelConfig:
    """The configuration of a folder that transformers can compute.

    num_known_ids: ids that the tokenizer knows, 0: not known.

    Raises:
        ForeignModelRefused: transformers does not know it, or knows it for no decoder.
    """
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    try:
        raw = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever somebody else's code says to a file of anybody's
        raise ForeignModelRefused(f"transformers cannot read it: {first_line(error)}") from None
    if raw.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or raw.is_encoder_decoder:
        raise ForeignModelRefused("transformers knows no decoder of it")
    text = raw.get_text_config(decoder=True)
    moving = _MOVING & set(_rope_types(getattr(text, "rope_parameters", None)))
    if moving:
        raise ForeignModelRefused(f"{min(moving)} scaling turns a token by the length around it")
    num_heads, hidden_size = _number(text, "num_attention_heads"), _number(text, "hidden_size")
    num_embeddings = _number(text, "vocab_size")
    return ModelConfig(
        vocab_size=min(num_known_ids or num_embeddings, num_embeddings),
        hidden_size=hidden_size,
        intermediate_size=getattr(text, "intermediate_size", None) or 4 * hidden_size,
        num_layers=_number(text, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=getattr(text, "num_key_value_heads", None) or num_heads,
        head_dim=getattr(text, "head_dim", None) or hidden_size // num_heads,
        norm_eps=0.0,
        rope_theta=0.0,
        rope_scaling=None,
        max_length=_number(text, "max_position_embeddings"),
        tied_embeddings=bool(getattr(text, "tie_word_embeddings", False)),
        eos_token_ids=eos_token_ids,
        foreign_folder=folder,
    )


def _rope_types(parameters: Any) -> list[str]:
    """Kinds of scaling, of layers of each type where they differ."""
    if not isinstance(parameters, dict):
        return []
    found = [kind for part in parameters.values() for kind in _rope_types(part)]
    return [*found, str(parameters.get("rope_type"))]


def _number(config: Any, name: str) -> int:
    value = getattr(config, name, None)
    if not isinstance(value, int):
        raise ForeignModelRefused(f"its configuration does not say {name}")
    return value
