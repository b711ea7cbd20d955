"""Makes Triton's interpreter compute with bfloat16 as a GPU does; left alone it adds up their bits.

What kernels do with such numbers is replaced: casts from and to them, and products, which are then
torch's and float32's.  Arithmetic on them is refused: on a GPU it is rounded after every step, so
kernels widen what they load.  It reaches into the interpreter; `test_half_precision` pins it.
"""

from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def interpret_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the test ends."""
    cast, convert = InterpreterBuilder.cast_impl, InterpreterBuilder.create_fp_to_fp
    dot, binary = InterpreterBuilder.create_dot, InterpreterBuilder.binary_op

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        return _cast(source, target) if _is_meant(source, target) else cast(self, source, target)

    def create_fp_to_fp(self: Any, source: Any, target: Any, *how: Any) -> Any:
        if _is_meant(source, target):
            return _cast(source, target)
        return convert(self, source, target, *how)

    def create_dot(self: Any, a: Any, b: Any, total: Any, *how: Any) -> Any:
        return dot(self, *(_widened(each) for each in (a, b)), total, *how)

    def binary_op(self: Any, a: Any, b: Any, op: Any) -> Any:
        assert a.dtype.scalar != tl.bfloat16, "arithmetic on bfloat16: widen what is loaded"
        return binary(self, a, b, op)

    for replaced in (cast_impl, create_fp_to_fp, create_dot, binary_op):
        monkeypatch.setattr(InterpreterBuilder, replaced.__name__, replaced)


def _is_meant(source: Any, target: Any) -> bool:
    return tl.bfloat16 in (source.dtype.scalar, target.scalar)


def _widened(numbers: Any) -> Any:
    return _cast(numbers, tl.float32) if numbers.dtype.scalar == tl.bfloat16 else numbers


def _cast(source: Any, target: Any) -> Any:
    """The same numbers as torch casts them; the interpreter holds bfloat16 as uint16."""
    numbers = torch.from_numpy(np.ascontiguousarray(source.data))
    if source.dtype.scalar == tl.bfloat16:
        numbers = numbers.view(torch.bfloat16)
    wanted = getattr(torch, {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}.get(
        target.scalar.name, target.scalar.name))  # fmt: skip
    numbers = numbers.to(wanted).reshape(source.data.shape)
    data = numbers.view(torch.uint16) if wanted == torch.bfloat16 else numbers
    return TensorHandle(data.numpy(), target.scalar)
