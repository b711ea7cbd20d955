"""The KV pool in a device's memory, as numbers or coded.  Knows slots; no rows, no tokens."""

import math
from dataclasses import dataclass

import torch

from gpu_worker.model_config import ModelConfig
from kernels.attention_inputs import PagedKv
from kernels.kv_codes import KvKind, storage_dtype
from kernels.rope_store import KvTarget
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
        self._options = options
        slots = (options.num_slots + MAX_PAGE_SIZE, config.num_kv_heads)
        dtype = storage_dtype(options.kind, options.dtype)

        def room() -> list[torch.Tensor]:
            shape = (*slots, config.head_dim)
            return [
                torch.empty(shape, dtype=dtype, device=options.device)
                for _ in range(config.num_layers)
            ]

        def scales() -> list[torch.Tensor | None]:
            if options.kind == "none":
                return [None] * config.num_layers
            return [torch.empty(slots, device=options.device) for _ in range(config.num_layers)]

        self._keys, self._values = room(), room()
        self._key_scales, self._value_scales = scales(), scales()
        self.forget()

    @property
    def bytes_per_slot(self) -> int:
        """Of keys, values and scales over all layers."""
        tensors = (*self._keys, *self._values, *self._key_scales, *self._value_scales)
        return sum(t[0].numel() * t.element_size() for t in tensors if t is not None)

    def target(self, layer: int) -> KvTarget:
        """A layer to be written."""
        return KvTarget(
            keys=self._keys[layer],
            values=self._values[layer],
            kind=self._options.kind,
            key_scale=self._key_scales[layer],
            value_scale=self._value_scales[layer],
        )

    def paged(self, layer: int, page_table: torch.Tensor) -> PagedKv:
        """A layer to be read through a table of slots."""
        return PagedKv(
            keys=self._keys[layer],
            values=self._values[layer],
            page_table=page_table,
            kind=self._options.kind,
            key_scale=self._key_scales[layer],
            value_scale=self._value_scales[layer],
        )

    def forget(self) -> None:
        """Marks all content as gone, visibly where the pool is poisoned."""
        if self._options.poison:
            numbers = (*self._keys, *self._values) if self._options.kind == "none" else ()
            for tensor in (*numbers, *self._key_scales, *self._value_scales):
                if tensor is not None:
                    tensor.fill_(math.nan)
