"""Small random Llama models, as transformers builds them: the oracle, and the same on disk."""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from gpu_worker.backend_choice import BackendOptions
from gpu_worker.loading import load_engine
from gpu_worker.model_engine import EngineLimits, ModelEngine
from radixd.chassis.model_source import ModelSource
from tests.gpu_worker.backends import TORCH

VOCAB = 97


def make_oracle(seed: int = 0, **changes: object) -> LlamaForCausalLM:
    """A model with random weights, spread wide enough that attention is not flat."""
    torch.manual_seed(seed)
    values: dict[str, object] = {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "initializer_range": 0.15,
        "attn_implementation": "eager",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return LlamaForCausalLM(LlamaConfig(**(values | changes))).eval()


def save(oracle: LlamaForCausalLM, folder: Path) -> ModelSource:
    """The model as a Hugging Face folder."""
    oracle.save_pretrained(folder)
    return ModelSource(model_id="tiny", path=folder, kind="huggingface")


def make_engine(
    oracle: LlamaForCausalLM,
    folder: Path,
    options: BackendOptions = TORCH,
    *,
    num_slots: int = 1024,
    max_length: int = 0,
) -> ModelEngine:
    """An engine on the same weights; unwritten slots are poisoned with NaN."""
    limits = EngineLimits(num_slots=num_slots, max_rows=16, max_length=max_length, poison=True)
    return load_engine(save(oracle, folder), limits, options)


def oracle_logits(oracle: LlamaForCausalLM, tokens: list[int]) -> torch.Tensor:
    """[len(tokens), vocab] logits after each token."""
    with torch.inference_mode():
        logits: torch.Tensor = oracle(torch.tensor([tokens])).logits[0]
        return logits


def random_tokens(count: int, seed: int, vocab: int = VOCAB) -> list[int]:
    """Token ids drawn with a seed of their own."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab, (count,), generator=generator).tolist()
