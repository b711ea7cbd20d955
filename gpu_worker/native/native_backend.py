"""The forward pass in compiled code, on the CPU.  Puts weights and library together; no torch."""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpu_worker.backend import KvDtype
from gpu_worker.blocks import FloatArray, WeightFormat
from gpu_worker.host_runner import HostRunner
from gpu_worker.model_config import ModelConfig
from gpu_worker.native.build import NativeUnavailable, built_library
from gpu_worker.native.library import (
    AUTO,
    NO_MEMORY,
    PHASES,
    NativeError,
    NativeModel,
    NativeStep,
    Sizes,
    find_kernels,
    open_library,
)
from gpu_worker.native.native_weights import NativeWeights
from gpu_worker.rope import rope_tables
from gpu_worker.row_table import RowTable
from gpu_worker.step import Step
from protos.plan import MAX_PAGE_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeOptions:
    """What is chosen at start."""

    num_slots: int
    max_length: int
    kv_dtype: KvDtype = "float32"
    num_threads: int = 1
    kernels: str = AUTO
    """Name of the table that computes; `AUTO`: the fastest here."""
    poison: bool = False
    """NaN in unwritten slots, so that a read of one shows."""


class NativeBackend:
    """Backend on the compiled library."""

    device = "cpu"
    least_stem_tokens = 0
    """It finds shared slots itself."""

    def __init__(self, config: ModelConfig, weights: NativeWeights, options: NativeOptions) -> None:
        """Builds the library if need be.

        Raises:
            NativeUnavailable: no compiler, no kernels for the processor, a model whose sizes the
                kernels do not have, or more threads than the system gives.
            MemoryError: the pool does not fit.
        """
        library = open_library(built_library())
        self._model = _new_model(library, config, options)
        self.name = f"native {find_kernels(library, options.kernels)}"
        self.weights: WeightFormat = weights.format
        self.num_slots = options.num_slots
        self.kv_dtype: KvDtype = options.kv_dtype
        self.kv_bytes_per_slot = _kv_bytes(config, options.kv_dtype)
        self._phases_ns = dict.fromkeys(PHASES, 0)
        self._vocab_size = config.vocab_size
        self._poison = options.poison
        self._give_weights(config, weights, options.max_length)
        try:
            self._model.start(options.num_threads)
        except NativeError as error:
            if str(error) == NO_MEMORY:
                raise MemoryError(str(error)) from None
            raise NativeUnavailable(f"{options.num_threads} threads: {error}") from None
        self.forget()

    def runner(self, table: RowTable) -> HostRunner:
        """See Backend."""
        return HostRunner(self, table)

    def forward(self, step: Step) -> FloatArray:
        """See Backend."""
        if not step.rows:
            self._phases_ns = dict.fromkeys(PHASES, 0)
            return np.empty((0, self._vocab_size), np.float32)
        rows = step.rows
        logits, phases_ns = self._model.forward(
            NativeStep(
                prefix_lens=np.array([row.prefix_len for row in rows], np.int32),
                extend_lens=np.array([row.extend_len for row in rows], np.int32),
                # To the library a scored token is one that is sampled after.
                num_samples=np.array([row.num_logits for row in rows], np.int32),
                slots=tuple(row.slots for row in rows),
                token_ids=step.token_ids,
                out_slots=step.out_slots,
            )
        )
        self._phases_ns = dict(zip(PHASES, phases_ns, strict=True))
        return logits

    def forget(self) -> None:
        """See Backend."""
        if self._poison:
            self._model.poison()

    def phases_ns(self) -> Mapping[str, int]:
        """See Backend."""
        return self._phases_ns

    def _give_weights(self, config: ModelConfig, weights: NativeWeights, max_length: int) -> None:
        model = self._model
        model.set_matrix(0, weights.embedding)
        model.set_matrix(1, weights.head)
        for index, layer in enumerate(weights.layers):
            for part, panels in enumerate(layer.matrices):
                model.set_matrix(part, panels, index)
            model.set_vector(0, layer.attention_norm, index)
            model.set_vector(1, layer.mlp_norm, index)
        model.set_vector(0, weights.final_norm)
        cos, sin = rope_tables(config.rope(0), config.head_dim, max_length, weights.rope_factors)
        model.set_vector(1, cos)
        model.set_vector(2, sin)


def check_native(config: ModelConfig, options: NativeOptions) -> str:
    """The name of the kernels that would compute a model of these sizes; the library is built if
    need be.

    Raises:
        NativeUnavailable: see NativeBackend.
        MemoryError: see NativeBackend.
    """
    if config.beyond_llama:
        asked = ", ".join(config.beyond_llama)
        raise NativeUnavailable(f"the compiled kernels do plain Llama layers, not {asked}")
    library = open_library(built_library())
    _new_model(library, config, options)
    return find_kernels(library, options.kernels)


def _new_model(library: ctypes.CDLL, config: ModelConfig, options: NativeOptions) -> NativeModel:
    if options.num_slots + MAX_PAGE_SIZE >= 1 << 31:
        raise MemoryError("slots are counted in 32 bits")
    find_kernels(library, options.kernels)  # says in better words what is missing
    try:
        return NativeModel(library, _sizes(config, options), options.kernels)
    except NativeError as error:
        raise NativeUnavailable(str(error)) from None


def _sizes(config: ModelConfig, options: NativeOptions) -> Sizes:
    return Sizes(
        layers=config.num_layers,
        hidden=config.hidden_size,
        inner=config.intermediate_size,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        vocab=config.vocab_size,
        max_length=options.max_length,
        num_slots=options.num_slots + MAX_PAGE_SIZE,
        kv_int8=options.kv_dtype == "int8",
        norm_eps=config.norm_eps,
    )


def _kv_bytes(config: ModelConfig, kv_dtype: str) -> int:
    """Of one slot over all layers; int8 has a scale of four bytes for each head."""
    per_head = config.head_dim + 4 if kv_dtype == "int8" else 4 * config.head_dim
    return 2 * config.num_layers * config.num_kv_heads * per_head
