"""Which options of the worker go together."""

from dataclasses import dataclass

import pytest

from protos.errors import InvalidRequest
from radixd.chassis.backends import GPU, INTERPRETED, KINDS, NATIVE, TORCH, cannot_be_had, possible
from radixd.chassis.settings import Settings


@dataclass(frozen=True)
class Options:
    device: str = "auto"
    backend: str = "auto"
    weights: str = "auto"
    kv_dtype: str = "auto"
    cpu_kernels: str = "auto"
    tp: int = 1


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        (Options(), [GPU, NATIVE, TORCH]),
        (Options(device="cpu"), [NATIVE, TORCH]),
        (Options(device="cuda"), [GPU]),
        (Options(backend="triton"), [GPU, INTERPRETED]),
        (Options(backend="triton", device="cpu"), [INTERPRETED]),
        (Options(backend="torch"), [TORCH]),
        # What only the CPU has keeps a model there.
        (Options(cpu_kernels="avx2"), [NATIVE]),
        (Options(weights="bf16"), [GPU]),
        (Options(kv_dtype="fp8"), [GPU]),
        (Options(kv_dtype="fp32"), [GPU, NATIVE, TORCH]),
        (Options(weights="fp32", kv_dtype="fp32"), [GPU, NATIVE, TORCH]),
        (Options(weights="fp32", kv_dtype="int8"), [GPU, NATIVE]),
        (Options(tp=2), [GPU, TORCH]),
        (Options(tp=2, device="cpu"), [TORCH]),
    ],
)
def test_what_options_leave(options, kinds):
    assert possible(options) == kinds


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (Options(device="cuda", backend="native"), "backend: native computes on the CPU, --device"),
        (Options(device="cuda", backend="torch"), "backend: torch computes on the CPU, --device"),
        (Options(device="cuda", cpu_kernels="avx2"), "cpu_kernels: avx2 needs the native backend:"),
        (Options(device="cpu", weights="bf16"), "weights: bf16 needs a GPU: --device cpu was"),
        (Options(device="cpu", kv_dtype="bf16"), "kv_dtype: bf16 needs a GPU: --device cpu was"),
        (Options(backend="native", kv_dtype="fp8"), "kv_dtype: fp8 needs a GPU: native was asked"),
        (Options(backend="torch", kv_dtype="int8"), "kv_dtype: int8 needs a GPU or the native"),
        (Options(weights="bf16", kv_dtype="fp32"), "kv_dtype: fp32 on a GPU needs --weights fp32"),
        (Options(weights="fp32", kv_dtype="bf16"), "kv_dtype: bf16 needs other weights than fp32"),
        (Options(tp=2, backend="native"), "tp: 2 ranks need a GPU or the torch backend: native"),
        (
            Options(tp=2, device="cpu", weights="int8"),
            "weights: int8 needs a GPU: --device cpu was",
        ),
        (Options(tp=2, cpu_kernels="avx2"), "cpu_kernels: avx2 needs the native backend: --tp 2"),
        (Options(cpu_kernels="avx2", kv_dtype="fp8"), "cpu_kernels: avx2 needs the native backend"),
    ],
)
def test_options_that_contradict_each_other(options, problem):
    with pytest.raises(InvalidRequest) as caught:
        possible(options)
    assert str(caught.value).startswith(problem)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (Options(device="cuda"), "device: cuda cannot be had: no GPU"),
        (Options(backend="native"), "backend: native cannot be had: no GPU"),
        (Options(weights="bf16"), "weights: bf16 needs a GPU: no GPU"),
        (Options(kv_dtype="int8"), "kv_dtype: int8 needs a GPU or the native backend: no GPU"),
        (Options(tp=2, weights="int8"), "weights: int8 needs a GPU: no GPU"),
        (Options(), "backend: none can be had: no GPU"),
    ],
)
def test_what_cannot_be_had_is_named(options, problem):
    missing = [(GPU, "no GPU"), (NATIVE, "no compiler"), (NATIVE, "no GPU")]
    assert str(cannot_be_had(options, missing)) == f"{problem}; no compiler"


def test_every_value_of_an_option_is_one_that_a_backend_has():
    for option, field in (("weights", "weights"), ("kv_dtype", "kv_dtypes")):
        named = set().union(*(getattr(kind, field) for kind in KINDS))
        for value in named:
            assert getattr(Settings(**{option: value}), option) == value
