"""Where a case runs: a card, or the interpreter at tiny sizes; and references in float64 there."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from kernels.kv_codes import CodedSlots, KvKind, new_slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A device, and how large cases are there."""

    device: torch.device
    is_tiny: bool

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and activations.  The interpreter computes no products of bfloat16."""
        return torch.float32 if self.is_tiny else torch.bfloat16

    def pick(self, full: int, tiny: int) -> int:
        """A size of a case."""
        return tiny if self.is_tiny else full

    def randn(self, *shape: int, dtype: torch.dtype | None = None, seed: int = 0) -> torch.Tensor:
        """Normal numbers, made where they are used; the same for the same seed and device."""
        generator = torch.Generator(self.device).manual_seed(seed)
        return torch.randn(
            shape, generator=generator, device=self.device, dtype=dtype or self.dtype
        )

    def ints(self, values: list[int] | range) -> torch.Tensor:
        """int32 [n]"""
        return torch.tensor(list(values), dtype=torch.int32, device=self.device)

    def some(self, count: int, total: int, seed: int = 0) -> torch.Tensor:
        """int32 [count], all different, below total, in random order."""
        generator = torch.Generator(self.device).manual_seed(seed)
        order = torch.randperm(total, generator=generator, device=self.device)
        return order[:count].to(torch.int32)

    def slots(
        self, shape: tuple[int, int, int], kind: KvKind, dtype: torch.dtype | None = None
    ) -> CodedSlots:
        """Room in a pool, all zeros, so that what should stay can be seen to."""
        room = new_slots(shape, kind, dtype or self.dtype, self.device)
        for tensor in (room.codes, room.scale):
            if tensor is not None:
                tensor.zero_()
        return room


class _Widening(TorchFunctionMode):
    """What a reference widens to float32 becomes float64, and so does a copy of float32.

    References in kernels/ widen by `.float()`, or clone float32 and work on that; given float64, or
    numbers that widen without loss, they compute in float64 from end to end.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.float:
            return args[0].double()
        if func is torch.Tensor.clone and args[0].dtype is torch.float32:
            return args[0].double()
        if func is torch.Tensor.__setitem__ and isinstance(args[2], torch.Tensor):
            return func(args[0], args[1], args[2].to(args[0].dtype))
        return func(*args, **(kwargs or {}))


@contextmanager
def in_float64(device: torch.device) -> Iterator[None]:
    """References called inside compute in float64, and what they make lies on the device."""
    with torch.device(device), _Widening():
        yield
