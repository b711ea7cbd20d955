"""A model's configuration from the metadata of a GGUF file.

Refuses what the model code would compute wrongly.  Not here: tensors, tokenizers.
"""

from gpu_worker.model_config import ModelConfig, RopeScaling, checked
from protos.errors import ModelError
from radixd.chassis.gguf_file import GgufFile


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
    return checked(
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


def _gguf_scaling(file: GgufFile) -> RopeScaling | None:
    kind = file.text("llama.rope.scaling.type", "none")
    factor = file.number("llama.rope.scaling.factor", 1.0)
    if kind == "none" or factor == 1.0:
        return None
    if kind == "linear":
        return RopeScaling(kind=kind, factor=factor)
    raise ModelError(file.path, f"rope scaling {kind} is not supported")
