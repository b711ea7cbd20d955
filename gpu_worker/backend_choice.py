"""Which backend computes, and with which weights: what was asked for, or what can be had here.

Not here: the backends, the files, the accuracy of an arithmetic.
"""

import gc
import os
from dataclasses import dataclass
from typing import Literal

import structlog

from gpu_worker.backend import Backend
from gpu_worker.blocks import WeightFormat
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
from protos.errors import InvalidRequest, ModelError

_log = structlog.get_logger(__name__)

_FORMATS: dict[str, WeightFormat] = {"fp32": "float32", "int8": "int8", "int4": "int4"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions:
    """What the operator asks for; the names are those of the settings."""

    backend: Literal["auto", "native", "torch"] = "auto"
    weights: Literal["auto", "fp32", "int8", "int4"] = "fp32"
    kv_dtype: Literal["fp32", "int8"] = "fp32"
    num_threads: int = 1
    cpu_kernels: Literal["auto", "avx512", "avx2"] = "auto"


def make_backend(model: OpenModel, limits: EngineLimits, options: BackendOptions) -> Backend:
    """The backend these options ask for, with the model's weights.

    Raises:
        ModelError: the weights cannot be read, or the pool does not fit in memory.
        InvalidRequest: what was asked for cannot be had here; names the option.
    """
    why_not_native = "torch was asked for"
    if options.backend != "torch":
        try:
            return _native(model, limits, options)
        except NativeUnavailable as error:
            why_not_native = str(error)
        except MemoryError as error:
            raise _no_memory(model, limits, error) from None
        if options.backend == "native":
            raise InvalidRequest("backend", f"native cannot be had: {why_not_native}")
        _log.warning("native_backend_unavailable", reason=why_not_native, instead="torch")
    for name in ("weights", "kv_dtype", "cpu_kernels"):
        value = getattr(options, name)
        if value not in ("auto", "fp32"):
            raise InvalidRequest(name, f"{value} needs the native backend: {why_not_native}")
    try:
        return _torch(model, limits, options)
    except RuntimeError as error:  # torch's word for memory that is not to be had
        raise _no_memory(model, limits, error) from None


def _no_memory(model: OpenModel, limits: EngineLimits, error: Exception) -> ModelError:
    reason = (str(error).splitlines() or ["out of memory"])[0]
    problem = f"no memory for the weights and {limits.num_slots} slots: {reason}"
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
    gc.collect()  # what was measured goes before the pool comes
    with model.reading() as reader:
        weights = read_native_weights(model.config, reader, format)
    return NativeBackend(model.config, weights, native)


def _chosen_format(model: OpenModel, options: BackendOptions, kernels: str) -> WeightFormat:
    if options.weights != "auto":
        return _FORMATS[options.weights]

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


def _torch(model: OpenModel, limits: EngineLimits, options: BackendOptions) -> Backend:
    """The fallback.  It loads torch, which takes seconds, only when it is needed."""
    # Before torch loads the library that reads it.
    os.environ.setdefault("GOMP_SPINCOUNT", str(_SPIN_COUNT))
    import torch

    from gpu_worker.torch_backend import TorchBackend

    torch.set_num_threads(options.num_threads)
    with model.reading() as reader:
        return TorchBackend(
            model.config,
            reader,
            num_slots=limits.num_slots,
            max_length=limits.longest(model.config),
            poison=limits.poison,
        )


_SPIN_COUNT = 1000
"""Turns an idle thread of the matrix library spins before it sleeps.  Its default, 300 times as
many, makes a step ten times slower as soon as another process wants one of the same cores."""
