"""Which backend computes, and with which weights: what was asked for, or what can be had here.

Not here: which options go together, the backends, the files, the accuracy of an arithmetic.
"""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import structlog

from gpu_worker.backend import Backend
from gpu_worker.blocks import BlockKind, WeightFormat
from gpu_worker.device.gpu import NoGpu, check_interpreter, find_gpu
from gpu_worker.device.pool_size import NoRoom, PoolFit
from gpu_worker.model_engine import EngineLimits
from gpu_worker.native.build import NativeUnavailable, built_library
from gpu_worker.native.native_backend import NativeBackend, NativeOptions, check_native
from gpu_worker.native.native_weights import read_native_weights
from gpu_worker.open_model import OpenModel
from gpu_worker.weight_choice import (
    NUM_TOKENS,
    Forward,
    MeasuredModel,
    choose_weights,
    forward_text,
)
from gpu_worker.weights import mostly_int4
from protos.errors import InvalidRequest, ModelError, first_line
from radixd.chassis.backends import (
    GPU,
    INTERPRETED,
    NATIVE,
    TORCH,
    BackendKind,
    cannot_be_had,
    possible,
)

_log = structlog.get_logger(__name__)

_BLOCKS: dict[str, BlockKind] = {"int8": "int8", "int4": "int4"}
_KV_KINDS: dict[str, Literal["int8", "fp8"]] = {"int8": "int8", "fp8": "fp8"}
_NATIVE_FORMATS: dict[str, WeightFormat] = {"fp32": "float32", "int8": "int8", "int4": "int4"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions:
    """What the operator asks for; the names are those of the settings."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    backend: Literal["auto", "native", "torch", "triton"] = "auto"
    weights: Literal["auto", "fp32", "bf16", "int8", "int4"] = "fp32"
    kv_dtype: Literal["auto", "fp32", "bf16", "fp8", "int8"] = "auto"
    num_threads: int = 1
    cpu_kernels: Literal["auto", "avx512", "avx2"] = "auto"
    deterministic: bool = False
    fit_pool: bool = False
    """On a GPU, give the pool what memory is left, rather than as many slots as the limits say."""
    memory_fraction: float = 0.9
    max_batch_tokens: int = 512
    max_draws: int = 0
    """See PoolFit."""
    tp: int = 1
    """Ranks the model is cut for; a model of several comes cut already."""


def make_backend(model: OpenModel, limits: EngineLimits, options: BackendOptions) -> Backend:
    """The backend these options ask for, with the model's weights.

    Raises:
        ModelError: the weights cannot be read, or the pool does not fit in memory.
        InvalidRequest: what was asked for cannot be had here; names the option.
    """
    if options.deterministic and model.config.foreign_folder:
        problem = "the products of a family that transformers computes depend on their company"
        raise InvalidRequest("deterministic", problem)
    kinds = possible(options)
    missing: list[tuple[BackendKind, str]] = []
    for kind in kinds:
        try:
            return _MAKERS[kind](model, limits, options)
        except (NativeUnavailable, NoGpu) as error:
            missing.append((kind, str(error)))
            if kind is not kinds[-1]:
                _say_missing(kind, str(error))
        except MemoryError as error:
            fits = kind is GPU and options.fit_pool
            room = "the largest step" if fits else f"{limits.num_slots} slots"
            raise _no_memory(model, room, error) from None
    raise cannot_be_had(options, missing)


def _say_missing(kind: BackendKind, reason: str) -> None:
    if kind is GPU:
        _log.info("gpu_not_used", reason=reason)
    elif kind is NATIVE:
        _log.warning("native_backend_unavailable", reason=reason, instead="torch")


def _no_memory(model: OpenModel, room: str, error: MemoryError) -> ModelError:
    if isinstance(error, NoRoom):
        return ModelError(model.source.path, str(error))
    problem = f"no memory for the weights and {room}: {first_line(error)}"
    return ModelError(model.source.path, problem)


def _native(model: OpenModel, limits: EngineLimits, options: BackendOptions) -> NativeBackend:
    native = NativeOptions(
        num_slots=limits.num_slots,
        max_length=limits.longest(model.config),
        kv_dtype="int8" if options.kv_dtype == "int8" else "float32",
        num_threads=options.num_threads,
        kernels=options.cpu_kernels,
        poison=limits.poison,
    )
    kernels = check_native(model.config, native)  # before gigabytes are read for it
    format = _chosen_format(model, options, kernels)
    if options.weights == "auto":
        gc.collect()  # what was measured goes before the pool comes
    with model.reading() as reader:
        weights = read_native_weights(model.config, reader, format)
    return NativeBackend(model.config, weights, native)


def _chosen_format(model: OpenModel, options: BackendOptions, kernels: str) -> WeightFormat:
    if options.weights != "auto":
        return _NATIVE_FORMATS[options.weights]

    num_tokens = min(NUM_TOKENS, model.config.max_length)

    def forward(format: WeightFormat) -> Forward:
        weights = read_native_weights(model.config, model.quiet_reader(), format)
        room = NativeOptions(
            num_slots=num_tokens,
            max_length=num_tokens,
            num_threads=options.num_threads,
            kernels=kernels,
        )
        return forward_text(NativeBackend(model.config, weights, room))

    measured = MeasuredModel(
        fingerprint=model.fingerprint,
        backend=f"{built_library().parent.name} {kernels}",
        num_parameters=model.config.num_parameters,
        int4_blocks=mostly_int4(model.config, model.quiet_reader()),
    )
    return choose_weights(measured, lambda: model.accuracy_token_ids()[:num_tokens], forward)


def let_idle_threads_sleep() -> None:
    """For torch on the CPU; before it is imported, as it loads the library that asks then.  Child
    processes inherit it."""
    os.environ.setdefault("GOMP_SPINCOUNT", str(_SPIN_COUNT))


def _torch(model: OpenModel, limits: EngineLimits, options: BackendOptions) -> Backend:
    """The fallback.  It loads torch, which takes seconds, only when it is needed."""
    let_idle_threads_sleep()
    import torch

    from gpu_worker.torch_backend import TorchBackend

    torch.set_num_threads(options.num_threads)
    with _memory_of_torch(), model.reading() as reader:
        return TorchBackend(
            model.config,
            reader,
            num_slots=limits.num_slots,
            max_length=limits.longest(model.config),
            poison=limits.poison,
            in_home=model.in_home,
        )


def _gpu(model: OpenModel, limits: EngineLimits, options: BackendOptions) -> Backend:
    gpu = find_gpu()
    weights = options.weights
    if weights == "auto":
        weights = "fp32" if options.kv_dtype == "fp32" else "bf16"
    return _triton(model, limits, replace(options, device="cuda", weights=weights), gpu.name)


def _interpreted(model: OpenModel, limits: EngineLimits, options: BackendOptions) -> Backend:
    check_interpreter()
    weights = "fp32" if options.weights == "auto" else options.weights
    return _triton(model, limits, replace(options, device="cpu", weights=weights), "cpu")


def _triton(
    model: OpenModel, limits: EngineLimits, options: BackendOptions, device_name: str
) -> Backend:
    """On the kernels; neither `device` nor `weights` is auto any more."""
    if options.weights in _BLOCKS and model.config.experts:
        problem = f"{options.weights} of a mixture of experts cannot be had on the kernels"
        raise InvalidRequest("weights", problem)
    if options.weights in _BLOCKS and model.config.foreign_folder:
        problem = f"{options.weights} of a family that transformers computes cannot be had"
        raise InvalidRequest("weights", problem)
    import torch

    from gpu_worker.device.device_backend import DeviceBackend, DeviceOptions

    torch.set_num_threads(options.num_threads)
    is_gpu = options.device == "cuda"
    fit = PoolFit(
        memory_fraction=options.memory_fraction,
        max_tokens=options.max_batch_tokens,
        max_rows=limits.max_rows,
        max_draws=options.max_draws,
    )
    wanted = DeviceOptions(
        num_slots=limits.num_slots,
        max_rows=limits.max_rows,
        max_length=limits.longest(model.config),
        device=options.device,
        device_name=device_name,
        fit=fit if is_gpu and options.fit_pool else None,
        dtype=torch.bfloat16 if is_gpu and options.weights != "fp32" else torch.float32,
        blocks=_BLOCKS.get(options.weights),
        kv_kind=_KV_KINDS.get(options.kv_dtype, "none"),
        deterministic=options.deterministic,
        poison=limits.poison,
        in_home=model.in_home,
        agree=model.agree,
    )
    with _memory_of_torch(), model.reading() as reader:
        return DeviceBackend(model.config, reader, wanted)


@contextmanager
def _memory_of_torch() -> Iterator[None]:
    """Torch has several words for memory that is not to be had; here they become one.

    Raises:
        MemoryError: with torch's reason.
    """
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:  # of a GPU
        raise MemoryError(str(error)) from None
    except RuntimeError as error:
        if not any(word in str(error) for word in _NO_MEMORY):
            raise
        raise MemoryError(str(error)) from None


_NO_MEMORY = ("can't allocate memory", "not enough memory", "calculation overflowed")
"""What torch says where a tensor does not fit in the machine's memory, or in any."""

_MAKERS: dict[BackendKind, Callable[[OpenModel, EngineLimits, BackendOptions], Backend]] = {
    GPU: _gpu,
    NATIVE: _native,
    TORCH: _torch,
    INTERPRETED: _interpreted,
}

_SPIN_COUNT = 1000
"""Turns an idle thread of the matrix library spins before it sleeps.  Its default, 300 times as
many, makes a step ten times slower as soon as another process wants one of the same cores."""
