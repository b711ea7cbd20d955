"""The KV pool in a device's memory, as numbers or coded.  Knows slots; no rows, no tokens."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from gpu_worker.model_config import ModelConfig
from kernels.kv_codes import CodedSlots, KvKind, KvLayer, new_slots
from protos.plan import MAX_PAGE_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """Size and precision."""

    num_slots: int
    device: torch.device
    dtype: torch.dtype
    """Of numbers that are not coded."""
    kind: KvKind = "none"
    poison: bool = False
    """NaN in unwritten slots, so that a read of one shows."""


class DevicePool:
    """Keys and values of every slot, for each layer a tensor each, allocated once.

    [num_slots + MAX_PAGE_SIZE, kv_heads, head_dim]; slot 0 is the dump slot.
    """

    def __init__(self, config: ModelConfig, options: PoolOptions) -> None:
        shape = (options.num_slots + MAX_PAGE_SIZE, config.num_kv_heads, config.head_dim)

        def room() -> CodedSlots:
            return new_slots(shape, options.kind, options.dtype, options.device)

        self.layers = tuple(KvLayer(keys=room(), values=room()) for _ in range(config.num_layers))
        self._poison = options.poison
        self.forget()

    @property
    def bytes_per_slot(self) -> int:
        """Of keys, values and scales over all layers."""
        tensors = [t for part in self._parts() for t in (part.codes, part.scale) if t is not None]
        return sum(t[0].numel() * t.element_size() for t in tensors)

    def forget(self) -> None:
        """Marks all content as gone, visibly where the pool is poisoned."""
        if self._poison:
            for part in self._parts():
                (part.codes if part.scale is None else part.scale).fill_(math.nan)

    def _parts(self) -> Iterator[CodedSlots]:
        for layer in self.layers:
            yield from (layer.keys, layer.values)
