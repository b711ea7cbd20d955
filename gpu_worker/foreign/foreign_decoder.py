"""A model of transformers as a decoder over our pool: everything but attention is its own.

Fallback for families that gpu_worker.decoder does not compute: correct, batched and cached like
all, but without fused kernels, graphs, quantised products or several GPUs.
Not here: whether a model may be computed so (probe).
"""

import inspect
from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812 (its name everywhere)

from gpu_worker.arithmetic import Arithmetic
from gpu_worker.foreign.attention_seam import AttentionCall, ForeignModelRefused, bind
from gpu_worker.foreign.probe import probed
from gpu_worker.model_config import ModelConfig
from protos.errors import ModelError, first_line

StepT = TypeVar("StepT")


class ForeignModel:
    """A model in memory, and what was found out about it."""

    rope_factors = None

    def __init__(self, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> None:
        """Loads it and looks at it.

        Raises:
            ModelError: it cannot be loaded, or not be computed over a pool; says why.
        """
        assert config.foreign_folder is not None
        path = config.foreign_folder / "config.json"
        try:
            self.module = _loaded(config, device, dtype)
            self.config = probed(self.module, config)
        except ForeignModelRefused as error:
            raise ModelError(path, f"not supported: {error}") from None

    def on(self, arithmetic: Arithmetic[StepT]) -> "ForeignDecoder[StepT]":
        """See LoadedModel."""
        return ForeignDecoder(self.module, arithmetic, self.config.vocab_size)


class ForeignDecoder(Generic[StepT]):
    """StepDecoder on a model of transformers."""

    def __init__(self, module: Any, arithmetic: Arithmetic[StepT], vocab_size: int) -> None:
        self._module = module
        self._arithmetic = arithmetic
        self._vocab_size = vocab_size
        self._keeps = "logits_to_keep" in inspect.signature(module.forward).parameters
        self._step: StepT | None = None
        bind(module, self._attend)

    def states(self, step: StepT) -> torch.Tensor:
        """See StepDecoder; logits in the model's own type, as only the model has its head."""
        token_ids, positions, wanted = self._arithmetic.places(step)
        if not len(token_ids):  # a plan that only frees rows
            return torch.empty(0, self._vocab_size, device=token_ids.device)
        self._step = step
        # The head is the largest matrix: only what is sampled or scored goes through it.
        kept = {"logits_to_keep": wanted} if self._keeps else {}
        out = self._module(
            input_ids=token_ids[None], position_ids=positions[None], use_cache=False, **kept
        )
        logits: torch.Tensor = out.logits[0]
        return logits if self._keeps else logits.index_select(0, wanted)

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """See StepDecoder."""
        if not len(states):
            return states.new_empty(0, self._vocab_size, dtype=torch.float32)
        # Ids that the tokenizer does not know are padding, which must not be sampled.
        return states[:, : self._vocab_size].float().contiguous()

    def _attend(self, call: AttentionCall) -> torch.Tensor:
        """Stores keys and values of the step's tokens, and attends to those of their rows."""
        assert self._step is not None
        value_dim, spare = call.value.shape[2], call.key.shape[2] - call.value.shape[2]
        value = F.pad(call.value, (0, spare)) if spare else call.value
        qkv = torch.cat([call.query, call.key, value], dim=1).flatten(1)
        # The model rotated what is to be rotated; to the arithmetic its angles are all 0.
        query = self._arithmetic.rotate_and_store(call.layer, qkv, None, self._step)
        mixed = self._arithmetic.attend(call.layer, query, self._step)
        return mixed.view(*query.shape)[..., :value_dim]


def _loaded(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()  # its advice is for those who train
    logging.disable_progress_bar()
    try:
        module, found = AutoModelForCausalLM.from_pretrained(
            config.foreign_folder,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever somebody else's code says to files of anybody's
        raise ForeignModelRefused(f"transformers cannot load it: {first_line(error)}") from None
    if found["missing_keys"]:  # transformers would go on with random numbers
        raise ForeignModelRefused(f"tensor {min(found['missing_keys'])} is missing")
    if getattr(module, "_is_stateful", False):
        raise ForeignModelRefused("it remembers more than keys and values")
    return module.eval().to(device)
