"""What config.json says of each family, as the files on hubs have it, the older ones among them."""

import json
from pathlib import Path
from typing import Any

from gpu_worker.folder_config import config_from_folder
from gpu_worker.model_config import ModelConfig, Rope, RopeScaling

_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}


def config_of(folder: Path, raw: dict[str, Any]) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    return config_from_folder(folder)


def test_a_gemma_3_that_can_see_leaves_out_what_is_usual(tmp_path: Path) -> None:
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    raw = {"model_type": "gemma3", "eos_token_id": [1, 106], "text_config": text}
    config = config_of(tmp_path, raw)
    assert (config.vocab_size, config.num_heads, config.num_kv_heads) == (262_208, 8, 4)
    assert (config.head_dim, config.attention_scale, config.max_length) == (256, 1 / 16, 131_072)
    assert config.tied_embeddings
    assert config.eos_token_ids == (1, 106)
    assert config.windows[:6] == (1024,) * 5 + (0,)
    assert config.rope(0) == Rope(theta=1e4)
    assert config.rope(5) == Rope(theta=1e6, scaling=RopeScaling(kind="linear", factor=8.0))
    assert config.embedding_factor == 2560**0.5


def test_a_local_rope_stays_where_the_window_is_never_left(tmp_path: Path) -> None:
    raw = _SIZES | {"model_type": "gemma3_text", "max_position_embeddings": 512, "head_dim": 16}
    config = config_of(tmp_path, raw | {"sliding_window": 512, "sliding_window_pattern": 2})
    assert config.rope(0) == Rope(theta=1e4)
    assert config.rope(1) == Rope(theta=1e6)


def test_a_qwen_2_has_windows_only_where_it_says_so(tmp_path: Path) -> None:
    raw = _SIZES | {"model_type": "qwen2", "sliding_window": 512, "max_window_layers": 9}
    config = config_of(tmp_path, raw)
    assert config.windows == ()
    assert config.beyond_llama == ("biases",)
    config = config_of(tmp_path, raw | {"use_sliding_window": True})
    assert config.windows == (0,) * 9 + (512,) * 3
    config = config_of(tmp_path, raw | {"use_sliding_window": True, "sliding_window": 32768})
    assert config.windows == ()


def test_a_mistral_without_a_window_is_a_llama(tmp_path: Path) -> None:
    raw = _SIZES | {"model_type": "mistral", "max_position_embeddings": 32768}
    assert config_of(tmp_path, raw | {"sliding_window": None}).beyond_llama == ()
    assert config_of(tmp_path, raw).windows == (4096,) * 12


def test_yarn_gives_the_length_it_is_asked_for(tmp_path: Path) -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    raw = _SIZES | {"model_type": "qwen3", "max_position_embeddings": 40960}
    config = config_of(tmp_path, raw | {"rope_scaling": scaling, "rope_theta": 1e6})
    assert config.max_length == 131_072
    assert config.rope_scaling is not None
    assert 1.13 < config.rope_scaling.attention_factor < 1.14
    config = config_of(tmp_path, raw | {"rope_scaling": scaling | {"attention_factor": 1.5}})
    assert config.rope_scaling is not None
    assert config.rope_scaling.attention_factor == 1.5
    scales = {"mscale": 2.0, "mscale_all_dim": 1.0}
    config = config_of(tmp_path, raw | {"rope_scaling": scaling | scales})
    assert config.rope_scaling is not None
    assert 1.12 < config.rope_scaling.attention_factor < 1.13
