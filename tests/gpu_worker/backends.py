"""Which backends the tests of engines run on, by name."""

import shutil

import pytest

from gpu_worker.backend_choice import BackendOptions

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="needs a C++ compiler"
)

TORCH = BackendOptions(backend="torch")
NATIVE = BackendOptions(backend="native")

EXACT = [
    pytest.param(TORCH, id="torch"),
    pytest.param(NATIVE, id="native", marks=needs_compiler),
]
"""Those that compute in float32."""

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
