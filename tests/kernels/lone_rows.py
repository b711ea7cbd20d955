"""Makes Triton's interpreter multiply each row of a tile by itself, as tests of same bits need.

A tile is multiplied by numpy's library, in which, with the routines it has for AVX2 (which it takes
for some newer processors too), the order of a row's sums depends on where in the tile the row lies;
on a GPU it does not.
"""

from typing import Any

import numpy as np
import pytest
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def interpret_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the test ends."""

    def create_dot(self: Any, a: Any, b: Any, total: Any, *how: Any) -> Any:
        rows = np.matmul(a.data[:, None, :], b.data, dtype=total.data.dtype)
        return TensorHandle(rows[:, 0] + total.data, total.dtype.scalar)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)
