"""The KV pool: for each layer, keys and values of every token slot, allocated once.

Knows slots, not rows or tokens; whoever hands out slots sits in the scheduler.
"""

import math

import torch

from gpu_worker.model_config import ModelConfig
from protos.plan import MAX_PAGE_SIZE


class KvPool:
    """Keys and values, each a list over layers of [num_slots + MAX_PAGE_SIZE, kv_heads, head_dim].

    One tensor a layer: views of one large tensor make compiled graphs slower.  Slot 0 is the dump
    slot.  With `poison`, unwritten slots hold NaN, so that a read of one shows in the output.
    """

    def __init__(self, config: ModelConfig, num_slots: int, *, poison: bool = False) -> None:
        shape = (num_slots + MAX_PAGE_SIZE, config.num_kv_heads, config.head_dim)
        # Not zeroed: memory that no slot has used yet is then never touched, nor resident.
        self.keys = [torch.empty(shape) for _ in range(config.num_layers)]
        self.values = [torch.empty(shape) for _ in range(config.num_layers)]
        self._poison = poison
        self.forget()

    @property
    def bytes_per_slot(self) -> int:
        """Of keys and values over all layers."""
        return sum(t[0].numel() * t.element_size() for t in (*self.keys, *self.values))

    def write(self, layer: int, slots: torch.Tensor, kv: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Stores keys and values [num_tokens, kv_heads, head_dim] at slots [num_tokens]."""
        self.keys[layer].index_copy_(0, slots, kv[0])
        self.values[layer].index_copy_(0, slots, kv[1])

    def forget(self) -> None:
        """Marks all content as gone, visibly where the pool is poisoned."""
        if self._poison:
            for tensor in (*self.keys, *self.values):
                tensor.fill_(math.nan)
