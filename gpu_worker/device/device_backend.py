"""Backend on the Triton kernels: puts weights, pool, model and a step's inputs together."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from gpu_worker.backend import KvDtype, Precision
from gpu_worker.blocks import FloatArray
from gpu_worker.decoder import Decoder
from gpu_worker.decoder_weights import load_weights
from gpu_worker.device.device_home import DeviceHome
from gpu_worker.device.device_pool import DevicePool, PoolOptions
from gpu_worker.device.kernel_arithmetic import KernelArithmetic
from gpu_worker.device.step_inputs import CutSizes, step_inputs
from gpu_worker.host_runner import HostRunner
from gpu_worker.model_config import ModelConfig
from gpu_worker.row_table import RowTable, Step
from gpu_worker.weights import WeightReader
from kernels.kv_codes import KvKind


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """What is asked of the backend."""

    num_slots: int
    max_length: int
    device: str = "cuda"
    """"cpu" only where Triton is interpreted."""
    device_name: str = ""
    """For people; empty: as `device`."""
    dtype: torch.dtype = torch.bfloat16
    """Of weights, activations and uncoded keys and values; bfloat16 or float32."""
    kv_kind: KvKind = "none"
    """How keys and values are coded in the pool."""
    deterministic: bool = False
    """A token's bits do not depend on what else is in its step."""
    poison: bool = False


_NAMES: dict[torch.dtype, Literal["float32", "bfloat16"]] = {
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
}


class DeviceBackend:
    """See Backend."""

    def __init__(self, config: ModelConfig, reader: WeightReader, options: DeviceOptions) -> None:
        self._device = torch.device(options.device)
        self.name = f"triton {options.device}"
        self.device = options.device_name or options.device
        self.num_slots = options.num_slots
        self.weights: Precision = _NAMES[options.dtype]
        self.kv_dtype = _kv_dtype(options)
        pool = PoolOptions(
            num_slots=options.num_slots,
            device=self._device,
            dtype=options.dtype,
            kind=options.kv_kind,
            poison=options.poison,
        )
        self._pool = DevicePool(config, pool)
        self.kv_bytes_per_slot = self._pool.bytes_per_slot
        weights = load_weights(config, reader, DeviceHome(self._device, options.dtype))
        arithmetic = KernelArithmetic(
            config,
            self._pool,
            self._device,
            max_length=options.max_length,
            rope_factors=weights.rope_factors,
        )
        self._decoder = Decoder(weights, arithmetic, config.vocab_size)
        self._sizes = CutSizes(groups=config.num_groups)
        self._forward_ns = 0

    def runner(self, table: RowTable) -> HostRunner:
        """See Backend."""
        return HostRunner(self, table)

    def forward(self, step: Step) -> FloatArray:
        """See Backend."""
        started_ns = time.perf_counter_ns()
        with torch.inference_mode():
            logits = self._decoder.forward(step_inputs(step, self._sizes, self._device))
            result: FloatArray = logits.cpu().numpy()
        self._forward_ns = time.perf_counter_ns() - started_ns
        return result

    def forget(self) -> None:
        """See Backend."""
        self._pool.forget()

    def phases_ns(self) -> Mapping[str, int]:
        """All of it as "rest": what runs on a device is not known from here."""
        return {"products": 0, "attention": 0, "rest": self._forward_ns}


def _kv_dtype(options: DeviceOptions) -> KvDtype:
    return _NAMES[options.dtype] if options.kv_kind == "none" else options.kv_kind
