"""Products: checks, and speed on the largest matrix of a layer of an 8B model."""

from collections.abc import Iterator
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812 (its name everywhere)

from kernels.linear import linear, linear_reference
from kernels.quantised_linear import quantised_linear, quantised_linear_reference
from kernels.quantised_weight import GROUP, QuantisedWeight, widened
from kernels.widen_weight import widen_weight, widen_weight_reference
from tests.gpu.case import Check, Prepared, Speed
from tests.gpu.comparison import Comparison, near
from tests.gpu.place import Place, in_float64
from tests.gpu.work import Work, product_work, quantised_bytes

Bits = Literal[4, 8]

_BITS: tuple[Bits, ...] = (8, 4)
_OUTPUTS = (4096, 28_672)
"""Of an attention's output, and of gate and up; `linear` has a tile for each."""
_SLICE = 256
"""Tokens of a large product that are compared."""


def checks() -> Iterator[Check]:
    """Few and many tokens; sizes that are no multiple of a tile."""
    for bits in _BITS:
        for num_tokens in (1, 17, 64, 128):
            for dtype in (None, torch.float32):
                name = f"{bits} bits, {num_tokens} tokens{_named(dtype)}"
                run = partial(_check, bits, num_tokens, dtype)
                is_core = num_tokens == 17 and dtype is None
                yield Check(kernel="quantised_linear", name=name, run=run, is_core=is_core)
        yield Check(kernel="widen_weight", name=f"{bits} bits", run=partial(_check_widen, bits))
    for num_outputs in _OUTPUTS:
        for dtype in (None, torch.float16, torch.float32):
            name = f"4096 to {num_outputs}{_named(dtype)}"
            run = partial(_check_linear, num_outputs, dtype)
            yield Check(kernel="linear", name=name, run=run, is_core=dtype is None)


def speeds() -> Iterator[Speed]:
    """Where a step waits for the weights."""
    for bits in _BITS:
        for num_tokens in (1, 16, 64, 128, 256):
            name = f"{bits} bits, 4096 to 28672, {num_tokens} tokens"
            run = partial(_product, bits, num_tokens)
            yield Speed(kernel="quantised_linear", name=name, prepare=run)
        name = f"{bits} bits, 4096 to 28672"
        yield Speed(kernel="widen_weight", name=name, prepare=partial(_widen, bits))
    for num_outputs in _OUTPUTS:
        for num_tokens in (1, 64, 256, 8192):
            name = f"4096 to {num_outputs}, {num_tokens} tokens"
            yield Speed(
                kernel="linear", name=name, prepare=partial(_linear, num_outputs, num_tokens)
            )


def _named(dtype: torch.dtype | None) -> str:
    return "" if dtype is None else f" {str(dtype).removeprefix('torch.')}"


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


def _check_widen(bits: Bits, place: Place) -> Comparison:
    return _same_numbers(quantised(place, place.pick(1000, 40), place.pick(4096, 64), bits), place)


def _same_numbers(weight: QuantisedWeight, place: Place) -> Comparison:
    ours = widen_weight(weight, place.dtype)
    with in_float64(place.device):
        wanted = widen_weight_reference(weight, torch.float64)
    return near(ours, wanted)


def _widen(bits: Bits, place: Place) -> Prepared:
    num_outputs, num_inputs = place.pick(28_672, 40), place.pick(4096, 64)
    weight = quantised(place, num_outputs, num_inputs, bits)
    stored = quantised_bytes(num_inputs, num_outputs, bits, GROUP)
    return Prepared(
        work=Work(num_bytes=stored + num_outputs * num_inputs * place.dtype.itemsize),
        run=lambda: widen_weight(weight, place.dtype),
        check=lambda: _same_numbers(weight, place),
        rivals={"torch, in five passes": lambda: widened(weight).to(place.dtype)},
    )


def _check_linear(num_outputs: int, dtype: torch.dtype | None, place: Place) -> Comparison:
    """With a bias; tokens and inputs are no multiples of a tile."""
    num_outputs, num_inputs = place.pick(num_outputs, 40), place.pick(4096 + 8, 72)
    x = place.randn(place.pick(67, 3), num_inputs, dtype=dtype)
    weight = place.randn(num_outputs, num_inputs, dtype=dtype, seed=1)
    bias = place.randn(num_outputs, dtype=dtype, seed=2)
    with in_float64(place.device):
        wanted = linear_reference(x, weight, bias)
    return near(linear(x, weight, bias), wanted)


def _linear(num_outputs: int, num_tokens: int, place: Place) -> Prepared:
    num_outputs, num_inputs = place.pick(num_outputs, 40), place.pick(4096, 64)
    num_tokens = place.pick(num_tokens, min(num_tokens, 3))
    x = place.randn(num_tokens, num_inputs)
    weight = place.randn(num_outputs, num_inputs, seed=1)

    def check() -> Comparison:
        few = x[-_SLICE:]
        with in_float64(place.device):
            wanted = linear_reference(few, weight)
        return near(linear(x, weight)[-_SLICE:], wanted)

    return Prepared(
        work=product_work(
            num_tokens,
            num_inputs,
            num_outputs,
            weight.numel() * weight.element_size(),
            x.element_size(),
        ),
        run=lambda: linear(x, weight),
        check=check,
        rivals={"F.linear": lambda: F.linear(x, weight)},
    )
