"""Which backends the tests of engines run on, by name."""

import shutil

import pytest

from gpu_worker.backend_choice import BackendOptions
from tests.gpu_worker.kernel_tables import TABLES

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="needs a C++ compiler"
)

TORCH = BackendOptions(backend="torch")
NATIVE = BackendOptions(backend="native")

EXACT = [
    pytest.param(TORCH, id="torch"),
    pytest.param(NATIVE, id="native", marks=needs_compiler),
    *(
        pytest.param(
            BackendOptions(backend="native", cpu_kernels=kernels),
            id=f"native-{kernels}",
            marks=needs_compiler,
        )
        for kernels in TABLES[1:]
    ),
]
"""Those that compute in float32, the slower kernels of this processor among them."""

ALL = [
    *EXACT,
    *(
        pytest.param(
            BackendOptions(backend="native", weights=weights, kv_dtype=kv_dtype),
            id=f"native-{weights}-kv-{kv_dtype}",
            marks=needs_compiler,
        )
        for weights, kv_dtype in (("int8", "fp32"), ("int4", "fp32"), ("fp32", "int8"),
                                  ("int4", "int8"))
    ),
]  # fmt: skip
"""And every precision beside."""
