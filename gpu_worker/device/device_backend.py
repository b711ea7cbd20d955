"""Backend on the Triton kernels: puts weights, pool, decoder, rows and sampler together."""

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch

from gpu_worker.backend import KvDtype, Precision
from gpu_worker.blocks import BlockKind, FloatArray
from gpu_worker.device.decode_graphs import (
    AgreedRecorder,
    CallRecorder,
    GraphRecorder,
    Recorder,
    Shape,
)
from gpu_worker.device.device_forward import DeviceForward
from gpu_worker.device.device_home import DeviceHome, runs_stay_there
from gpu_worker.device.device_pool import DevicePool, PoolOptions
from gpu_worker.device.device_runner import DeviceRunner
from gpu_worker.device.kernel_arithmetic import KernelArithmetic
from gpu_worker.device.pool_size import MemoryMeter, PoolFit
from gpu_worker.device.profiling import GpuMeter, measured_slots, opening_plan
from gpu_worker.device.quantised_home import QuantisedHome
from gpu_worker.device.row_store import RowStore
from gpu_worker.device.stem_cost import StemCost, partial_bytes
from gpu_worker.device.step_inputs import CutSizes, blocks
from gpu_worker.device.step_sampler import StepSampler
from gpu_worker.device.transfers import Staging
from gpu_worker.device.warm_up import warm_up
from gpu_worker.loaded_model import load_model
from gpu_worker.model_config import ModelConfig
from gpu_worker.row_table import RowTable
from gpu_worker.step import Step
from gpu_worker.weight_home import WeightHome
from gpu_worker.weights import WeightReader, mostly_int4
from kernels.kv_codes import KvKind
from protos.plan import MAX_PAGE_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """What is asked of the backend."""

    num_slots: int
    """Without `fit`."""
    max_rows: int
    max_length: int
    fit: PoolFit | None = None
    """Give the pool what memory is left."""
    device: str = "cuda"
    """"cpu" only where Triton is interpreted."""
    device_name: str = ""
    """For people; empty: as `device`."""
    dtype: torch.dtype = torch.bfloat16
    """Of activations, of weights that are not blocks, and of uncoded keys and values; bfloat16 or
    float32."""
    blocks: BlockKind | None = None
    """Matrices as blocks."""
    kv_kind: KvKind = "none"
    """How keys and values are coded in the pool."""
    graphs: bool = True
    """Steps of single tokens are recorded and played again."""
    deterministic: bool = False
    """A token's bits do not depend on what else is in its step."""
    poison: bool = False
    in_home: Callable[[WeightHome], WeightHome] = lambda home: home
    """See OpenModel."""
    agree: Callable[[int], int] = lambda value: value
    """See OpenModel."""


_NAMES: dict[torch.dtype, Literal["float32", "bfloat16"]] = {
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
}


class DeviceBackend:
    """See Backend."""

    def __init__(
        self,
        config: ModelConfig,
        reader: WeightReader,
        options: DeviceOptions,
        meter: MemoryMeter | None = None,
    ) -> None:
        """meter: of the device's memory, where the pool is to be fitted into it.

        Raises:
            ModelError: a weight cannot be read.
            NoRoom: there is no room for a pool.
        """
        self._options = options
        self._device = torch.device(options.device)
        self.name = f"triton {options.device}"
        self.device = options.device_name or options.device
        self.weights: Precision = options.blocks or _NAMES[options.dtype]
        self.kv_dtype = _kv_dtype(options)
        self._staging = Staging(self._device)
        self._rows = RowStore(
            max_rows=options.max_rows,
            max_length=options.max_length,
            vocab_size=config.vocab_size,
            device=self._device,
        )
        self._forward_ns = 0
        home = options.in_home(self._home(config, reader))
        self._model = load_model(config, reader, home, device=self._device, dtype=options.dtype)
        self._config = self._model.config
        self._is_recorded = options.graphs and not self._waits()
        if options.fit is None:
            self._make_pool(options.num_slots)
        else:
            self._make_pool(MAX_PAGE_SIZE)
            meter = meter or GpuMeter(self._device)
            slots = measured_slots(
                self._rehearsal(options.fit),
                meter,
                options.fit,
                max_length=options.max_length,
                bytes_per_slot=self.kv_bytes_per_slot,
            )
            self._is_recorded = self._forward.graphs is not None  # it is not tried again
            del self._pool, self._forward
            gc.collect()  # recordings know each other in circles; they go before the pool comes
            self._rows.forget()
            meter.tidy()
            self._make_pool(options.agree(slots))

    def _rehearsal(self, fit: PoolFit) -> Callable[[Step], object]:
        """Carries out steps of rows that ask for all that there is.  Their histories stay: requests
        find room for theirs."""
        table = RowTable(
            num_slots=self.num_slots,
            max_rows=self._options.max_rows,
            max_length=self._options.max_length,
            vocab_size=self._config.vocab_size,
        )
        runner = self._runner(table)
        runner.begin(table.apply(opening_plan(fit))).sampled()
        return lambda step: runner.begin(step).sampled()

    def _home(self, config: ModelConfig, reader: WeightReader) -> WeightHome:
        options = self._options
        plain = DeviceHome(self._device, options.dtype, deterministic=options.deterministic)
        if self._options.blocks is None:
            return plain
        return QuantisedHome(
            plain,
            self._device,
            self._options.blocks,
            keep_int8=mostly_int4(config, reader),
            deterministic=self._options.deterministic,
        )

    def _make_pool(self, num_slots: int) -> None:
        """The pool, and the model on it."""
        self.num_slots = num_slots
        options = PoolOptions(
            num_slots=num_slots,
            device=self._device,
            dtype=self._options.dtype,
            kind=self._options.kv_kind,
            poison=self._options.poison,
        )
        self._pool = DevicePool(self._config, options)
        self.kv_bytes_per_slot = self._pool.bytes_per_slot
        arithmetic = KernelArithmetic(
            self._config,
            self._pool,
            self._device,
            max_length=self._options.max_length,
            rope_factors=self._model.rope_factors,
        )
        self._forward = DeviceForward(
            self._model.on(arithmetic),
            self._rows,
            self._sizes(),
            self._recorder() if self._is_recorded else None,
        )

    def _recorder(self) -> Recorder:
        recorder = GraphRecorder() if self._device.type == "cuda" else CallRecorder()
        return AgreedRecorder(recorder, self._options.agree)

    def _waits(self) -> bool:
        """Whether a step waits for the device on its way, so that it cannot be recorded."""
        if self._config.foreign_folder is not None:
            return True  # nobody here knows
        options = self._options
        stays = not options.deterministic and runs_stay_there(self._device, options.dtype)
        return self._config.experts is not None and not stays

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Of steps that are recorded."""
        return () if self._forward.graphs is None else self._forward.graphs.shapes

    def record_steps(self) -> None:
        """Records steps of every number of rows."""
        with torch.inference_mode():
            self._forward.record_all(self._staging)

    def _sizes(self) -> CutSizes:
        """How contexts are cut; with stems, where a token's bits may depend on its company."""
        config = self._config
        sizes = CutSizes(
            groups=config.num_groups,
            windows=config.distinct_windows,
            enough_items=0
            if self._options.deterministic
            else -(-_ENOUGH_PROGRAMS // config.num_kv_heads),
            one_block=self._options.deterministic,
        )
        cost = StemCost(
            rows_of_item=blocks(sizes.groups)[1] // sizes.groups,
            split=sizes.split,
            kv_bytes=self._pool.bytes_per_slot // config.num_layers,
            partial_bytes=partial_bytes(config.num_heads, config.head_dim),
        )
        is_told = not self._options.deterministic and 0 in sizes.windows
        self.least_stem_tokens = cost.least_tokens if is_told else 0
        return replace(sizes, stems=cost if self.least_stem_tokens else None)

    def runner(self, table: RowTable) -> DeviceRunner:
        """See Backend; what a request would wait for the first time is done now, where that takes
        long."""
        runner = self._runner(table)
        if self._device.type == "cuda":
            self.record_steps()
            warm_up(table, runner, self._options.max_length)
        return runner

    def _runner(self, table: RowTable) -> DeviceRunner:
        sampler = StepSampler(
            self._rows, table, vocab_size=self._config.vocab_size, device=self._device
        )
        return DeviceRunner(self._forward, self._rows, table, sampler, self.forget)

    def forward(self, step: Step) -> FloatArray:
        """See Backend."""
        started_ns = time.perf_counter_ns()
        with torch.inference_mode():
            prepared = self._forward.prepare(step)
            columns = prepared.columns.columns() | self._rows.columns(step)
            flat, there = self._staging.send(columns)
            self._rows.apply(step, there)
            result: FloatArray = self._forward.logits(prepared, flat, there).cpu().numpy()
        self._forward_ns = time.perf_counter_ns() - started_ns
        return result

    def forget(self) -> None:
        """See Backend."""
        self._pool.forget()

    def phases_ns(self) -> Mapping[str, int]:
        """All of it as "rest": what runs on a device is not known from here."""
        return {"products": 0, "attention": 0, "rest": self._forward_ns}


_ENOUGH_PROGRAMS = 256
"""Of prompts' attention, one for each item and KV head: two for each multiprocessor of the largest
cards of today, give or take some."""


def _kv_dtype(options: DeviceOptions) -> KvDtype:
    return _NAMES[options.dtype] if options.kv_kind == "none" else options.kv_kind
