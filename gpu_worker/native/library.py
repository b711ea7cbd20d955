"""The compiled library as Python sees it: ctypes, and a problem becomes an exception.

Mirrors src/api.h, and checks on this side what the other cannot see: types and sizes of arrays.
Not here: where it is compiled, and what is computed.
"""

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpu_worker.blocks import FloatArray
from gpu_worker.native.build import NativeUnavailable
from gpu_worker.native.packing import Panels
from protos.errors import RadixdError

PADDING = 8
"""Rows of logits are as long as the vocabulary, rounded up to a multiple of it."""
NO_MEMORY = "no memory"
"""The problem of a library that got none."""
AUTO = "auto"
"""Of the kernels: the fastest that the processor can run."""
PHASES = ("products", "attention", "rest")

FORMATS = {"float32": 0, "int8": 1, "int4": 2}
"""As the library counts them."""
_OF_MODEL = -1
_Ints = np.ndarray[Any, np.dtype[np.int32]]


class NativeError(RadixdError):
    """The library refused or failed; one line."""

    reason = "NATIVE_FAILED"


class Sizes(ctypes.Structure):
    """radixd::Sizes."""

    _fields_ = (
        *(
            (name, ctypes.c_int32)
            for name in (
                "layers",
                "hidden",
                "inner",
                "heads",
                "kv_heads",
                "head_dim",
                "vocab",
                "max_length",
                "num_slots",
                "kv_int8",
            )
        ),
        ("norm_eps", ctypes.c_float),
    )


class _Step(ctypes.Structure):
    _fields_ = (
        ("num_rows", ctypes.c_int32),
        ("num_tokens", ctypes.c_int32),
        *(
            (name, ctypes.c_void_p)
            for name in (
                "prefix_lens",
                "extend_lens",
                "num_samples",
                "slots",
                "token_ids",
                "out_slots",
            )
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeStep:
    """A step as the library takes it; all int32."""

    prefix_lens: _Ints
    extend_lens: _Ints
    num_samples: _Ints
    slots: tuple[_Ints, ...]
    """Of each row, all of its tokens' slots."""
    token_ids: _Ints
    out_slots: _Ints


class NativeModel:
    """A model in the library: give it its weights, start it, then step."""

    def __init__(self, library: ctypes.CDLL, sizes: Sizes, kernels: str = AUTO) -> None:
        """Raises NativeError: sizes that cannot be computed, no such kernels, or no memory."""
        self._library = library
        self._handle = ctypes.c_void_p(
            library.radixd_model_new(ctypes.byref(sizes), kernels.encode())
        )
        self._kept: list[object] = []
        """Arrays the library points into."""
        if not self._handle:
            raise self._problem()
        self._sizes = sizes
        self._padded_vocab = -(-sizes.vocab // PADDING) * PADDING

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.radixd_model_free(self._handle)

    def set_matrix(self, part: int, panels: Panels, layer: int = _OF_MODEL) -> None:
        """Parts as in api.h.

        Raises:
            NativeError: it is of another shape than the model has there.
        """
        data = panels.data
        assert data.dtype == np.uint8, data.dtype
        assert data.flags.c_contiguous
        self._check(
            self._library.radixd_model_matrix(
                self._handle,
                layer,
                part,
                FORMATS[panels.format],
                panels.num_outputs,
                panels.num_inputs,
                data.ctypes.data,
                data.nbytes,
            )
        )
        self._kept.append(data)

    def set_vector(self, part: int, values: FloatArray, layer: int = _OF_MODEL) -> None:
        """Parts as in api.h.

        Raises:
            NativeError: it is of another length than the model has there.
        """
        values = np.ascontiguousarray(values, np.float32)
        self._check(
            self._library.radixd_model_vector(
                self._handle, layer, part, values.ctypes.data, values.size
            )
        )
        self._kept.append(values)

    def start(self, num_threads: int) -> None:
        """Allocates the pool, starts the threads.

        Raises:
            NativeError: weights are missing, or memory.
        """
        self._check(self._library.radixd_model_start(self._handle, num_threads))

    def poison(self) -> None:
        """Fills the pool with NaN."""
        self._library.radixd_model_poison(self._handle)

    def forward(self, step: NativeStep) -> tuple[FloatArray, tuple[int, ...]]:
        """Logits [sum of num_samples, vocab], and the time of each of PHASES in ns.

        Raises:
            NativeError: something in the step cannot be; nothing was computed.
        """
        _check_lengths(step)
        logits = np.empty((int(step.num_samples.clip(0).sum()), self._padded_vocab), np.float32)
        phases = (ctypes.c_int64 * len(PHASES))()
        addresses = np.array([_address(slots) for slots in step.slots], np.uint64)
        columns = _Step(
            len(step.prefix_lens),
            len(step.token_ids),
            *map(_address, (step.prefix_lens, step.extend_lens, step.num_samples)),
            addresses.ctypes.data,
            *map(_address, (step.token_ids, step.out_slots)),
        )
        self._check(
            self._library.radixd_forward(
                self._handle, ctypes.byref(columns), logits.ctypes.data, logits.size, phases
            )
        )
        return logits[:, : self._sizes.vocab], tuple(phases)

    def _check(self, succeeded: int) -> None:
        if not succeeded:
            raise self._problem()

    def _problem(self) -> NativeError:
        return NativeError(self._library.radixd_error().decode())


def open_library(path: Path) -> ctypes.CDLL:
    """The library in this file, its functions declared.

    Raises:
        NativeUnavailable: it cannot be loaded, or has no kernels for this processor.
    """
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeUnavailable(f"{path}: {error}") from None
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    number = ctypes.c_int
    for name, result, *arguments in (
        ("radixd_error", ctypes.c_char_p),
        ("radixd_kernels", ctypes.c_char_p),
        ("radixd_has_kernels", number, ctypes.c_char_p),
        ("radixd_model_new", pointer, pointer, ctypes.c_char_p),
        ("radixd_model_free", None, pointer),
        ("radixd_model_matrix", number, pointer, *(number,) * 5, pointer, size),
        ("radixd_model_vector", number, pointer, number, number, pointer, size),
        ("radixd_model_start", number, pointer, number),
        ("radixd_model_poison", None, pointer),
        ("radixd_forward", number, pointer, pointer, pointer, size, pointer),
        ("radixd_memory_rate", ctypes.c_double, size, number),
        ("radixd_product_rate", ctypes.c_double, *(number,) * 5),
    ):
        function = getattr(library, str(name))
        function.restype, function.argtypes = result, arguments
    if library.radixd_kernels() is None:
        raise NativeUnavailable("no kernels for this processor; AVX2, FMA and F16C are needed")
    return library


def find_kernels(library: ctypes.CDLL, wanted: str = AUTO) -> str:
    """The name of the kernels that compute where these are asked for.

    Raises:
        NativeUnavailable: this processor cannot run them.
    """
    if wanted == AUTO:
        return str(library.radixd_kernels().decode())
    if not library.radixd_has_kernels(wanted.encode()):
        raise NativeUnavailable(f"this processor cannot run the kernels {wanted}")
    return wanted


def _check_lengths(step: NativeStep) -> None:
    """The library sees pointers, and would read past the end of what is too short."""
    num_rows = len(step.slots)
    columns = (step.prefix_lens, step.extend_lens, step.num_samples)
    if (
        any(len(column) != num_rows for column in columns)
        or len(step.out_slots) != len(step.token_ids)
        or list(map(len, step.slots)) != (step.prefix_lens + step.extend_lens).tolist()
    ):
        raise NativeError("columns of a step differ in length")


def _address(column: _Ints) -> int:
    assert column.dtype == np.int32, column.dtype
    assert column.flags.c_contiguous
    return int(column.ctypes.data)
