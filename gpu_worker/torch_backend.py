"""The forward pass in plain torch, fp32: the reference for every other backend, and the fallback
where none of them can run.  Not here: the model, the attention, the pool; it puts them together.
"""

import time
from collections.abc import Callable, Mapping

import torch

from gpu_worker.attention import TorchAttention
from gpu_worker.backend import KvDtype
from gpu_worker.blocks import FloatArray, WeightFormat
from gpu_worker.host_runner import HostRunner
from gpu_worker.kv_pool import KvPool
from gpu_worker.loaded_model import load_model
from gpu_worker.model_config import ModelConfig
from gpu_worker.row_table import RowTable
from gpu_worker.step import Step
from gpu_worker.torch_arithmetic import TorchArithmetic
from gpu_worker.torch_home import TorchHome
from gpu_worker.weight_home import WeightHome
from gpu_worker.weights import WeightReader


class TorchBackend:
    """Backend on torch, on the CPU."""

    name = "torch"
    device = "cpu"
    weights: WeightFormat = "float32"
    kv_dtype: KvDtype = "float32"
    least_stem_tokens = 0

    def __init__(
        self,
        config: ModelConfig,
        reader: WeightReader,
        *,
        num_slots: int,
        max_length: int,
        poison: bool = False,
        in_home: Callable[[WeightHome], WeightHome] = lambda home: home,
    ) -> None:
        model = load_model(
            config,
            reader,
            in_home(TorchHome()),
            device=torch.device(self.device),
            dtype=torch.float32,
        )
        config = model.config
        self._pool = KvPool(config, num_slots, poison=poison)
        self.num_slots = num_slots
        self.kv_bytes_per_slot = self._pool.bytes_per_slot
        self._arithmetic = TorchArithmetic(
            config,
            self._pool,
            TorchAttention(config),
            max_length=max_length,
            rope_factors=model.rope_factors,
        )
        self._decoder = model.on(self._arithmetic)
        self._forward_ns = 0

    def runner(self, table: RowTable) -> HostRunner:
        """See Backend."""
        return HostRunner(self, table)

    def forward(self, step: Step) -> FloatArray:
        """See Backend."""
        started_ns = time.perf_counter_ns()
        with torch.inference_mode():
            states = self._decoder.states(self._arithmetic.begin_step(step))
            logits: FloatArray = self._decoder.logits(states).numpy()
        self._forward_ns = time.perf_counter_ns() - started_ns
        return logits

    def forget(self) -> None:
        """See Backend."""
        self._pool.forget()

    def phases_ns(self) -> Mapping[str, int]:
        """All of it as "rest": torch does not say more without a profiler."""
        return {"products": 0, "attention": 0, "rest": self._forward_ns}
