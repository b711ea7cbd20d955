"""Products: checks, and speed on the largest matrix of a layer of an 8B model."""

from collections.abc import Iterator
from functools import partial
from typing import Literal

import torch

from kernels.quantised_linear import (
    GROUP,
    QuantisedWeight,
    quantised_linear,
    quantised_linear_reference,
    widened,
)
from tests.gpu.case import Check, Prepared, Speed
from tests.gpu.comparison import Comparison, near
from tests.gpu.place import Place, in_float64
from tests.gpu.work import product_work, quantised_bytes

Bits = Literal[4, 8]

_BITS: tuple[Bits, ...] = (8, 4)


def checks() -> Iterator[Check]:
    """Few and many tokens; sizes that are no multiple of a tile."""
    for bits in _BITS:
        for num_tokens in (1, 17, 64):
            for dtype in (None, torch.float32):
                name = f"{bits} bits, {num_tokens} tokens{' float32' * (dtype is not None)}"
                run = partial(_check, bits, num_tokens, dtype)
                is_core = num_tokens == 17 and dtype is None
                yield Check(kernel="quantised_linear", name=name, run=run, is_core=is_core)


def speeds() -> Iterator[Speed]:
    """Where a step waits for the weights."""
    for bits in _BITS:
        for num_tokens in (1, 16, 64):
            name = f"{bits} bits, 4096 to 28672, {num_tokens} tokens"
            run = partial(_product, bits, num_tokens)
            yield Speed(kernel="quantised_linear", name=name, prepare=run)


def quantised(place: Place, num_outputs: int, num_inputs: int, bits: Bits) -> QuantisedWeight:
    """Normal numbers in groups of 32 inputs."""
    numbers = place.randn(num_outputs, num_inputs, dtype=torch.float32, seed=9)
    groups = numbers.view(num_outputs, -1, GROUP)
    minimum = groups.amin(-1).half()
    most = 15 if bits == 4 else 127
    scale = ((groups.amax(-1) - minimum.float()) / most).half()
    q = ((groups - minimum.float()[..., None]) / scale.float()[..., None]).round().clamp(0, most)
    if bits == 4:
        half = GROUP // 2
        q = q.to(torch.uint8)
        values = (q[..., :half] | (q[..., half:] << 4)).reshape(num_outputs, -1)
    else:
        values = q.to(torch.int8).view(num_outputs, num_inputs)
    return QuantisedWeight(bits=bits, values=values, scale=scale, minimum=minimum)


def _wanted(x: torch.Tensor, weight: QuantisedWeight, place: Place) -> torch.Tensor:
    with in_float64(place.device):
        return quantised_linear_reference(x.double(), weight)


def _check(bits: Bits, num_tokens: int, dtype: torch.dtype | None, place: Place) -> Comparison:
    num_outputs, num_inputs = place.pick(1000, 40), place.pick(4096, 64)
    weight = quantised(place, num_outputs, num_inputs, bits)
    x = place.randn(num_tokens, num_inputs, dtype=dtype)
    return near(quantised_linear(x, weight), _wanted(x, weight, place))


def _product(bits: Bits, num_tokens: int, place: Place) -> Prepared:
    num_outputs, num_inputs = place.pick(28_672, 40), place.pick(4096, 64)
    weight = quantised(place, num_outputs, num_inputs, bits)
    x = place.randn(num_tokens, num_inputs)
    wide = widened(weight).to(x.dtype)
    return Prepared(
        work=product_work(
            num_tokens,
            num_inputs,
            num_outputs,
            quantised_bytes(num_inputs, num_outputs, bits, GROUP),
            x.element_size(),
        ),
        run=lambda: quantised_linear(x, weight),
        check=lambda: near(quantised_linear(x, weight), _wanted(x, weight, place)),
        rivals={"torch.matmul of the type of x": lambda: torch.matmul(x, wide.T)},
    )
