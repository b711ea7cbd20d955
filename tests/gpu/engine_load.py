"""Runs an engine as a scheduler would, and says how long steps take and how busy the card is.

Plans are made before the clock starts: in a server another process makes them.  Two steps are in
flight, as a worker has them: the next one is begun before the tokens of the last are there.
"""

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from gpu_worker.model_engine import EngineStep, ModelEngine
from protos.plan import BatchPlan
from tests.gpu.case_worker import attempt
from tests.gpu.engine_model import PAGE_SIZE, EngineSizes
from tests.gpu.timing import Times, summary
from tests.gpu_worker.driver import Driver, Part, Row

_IN_FLIGHT = 2
_PROFILED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Of steps one after the other."""

    times: Times
    """From the tokens of one step to those of the next."""
    busy_us: float | None
    """Of a step: how long the card does anything at all; None: the profiler saw nothing."""
    lengths: tuple[int, ...]
    """Of the rows in the middle of it, in tokens."""
    tokens: tuple[int, ...]
    """Drawn first by the rows that were new."""


class EngineLoad:
    """Rows on one engine."""

    def __init__(self, engine: ModelEngine, sizes: EngineSizes, device: torch.device) -> None:
        self._engine = engine
        self._sizes = sizes
        self._device = device
        self._driver = Driver(engine, page_size=PAGE_SIZE)
        self._rows: list[Row] = []

    def first_token_us(self) -> list[float]:
        """Of each prompt from its plan to its token; the first one warms up."""
        samples = []
        for index in range(self._sizes.num_prompts):
            row = self._driver.open(max(self._sizes.batches) + index)
            plan = self._driver.plan(Part(row, self._prompt(index, self._sizes.prompt)))
            started_ns = time.perf_counter_ns()
            self._engine.execute(plan)
            samples.append((time.perf_counter_ns() - started_ns) / 1e3)
            self._driver.free(row)
        return samples[1:]

    def decode(self, batch: int) -> StepTimes:
        """Steps of that many rows, a token each."""
        num_old = len(self._rows)
        self._fill(batch)
        first, *warm = self._plans(batch, self._sizes.num_warm)
        tokens = self._engine.execute(first).token_ids[num_old:]
        self._run(warm)
        plans = self._plans(batch, self._sizes.num_steps)
        middle = tuple(len(row.slots) - len(plans) // 2 for row in self._rows[:batch])
        times = summary(self._run(plans))
        busy: list[float | None] = [None]
        # A card may be there and its profiler not; the step has its time all the same.
        attempt(lambda: busy.append(self._busy_us(batch)))
        return StepTimes(times=times, busy_us=busy[-1], lengths=middle, tokens=tuple(tokens))

    def _fill(self, count: int) -> None:
        """Computes the contexts of rows that have none yet, several rows a step."""
        a_step = max(1, self._sizes.chunk // self._sizes.context)
        while len(self._rows) < count:
            parts = []
            for index in range(len(self._rows), min(count, len(self._rows) + a_step)):
                row = self._driver.open(index)
                self._rows.append(row)
                parts.append(Part(row, self._prompt(index, self._sizes.context)))
            self._driver.step(*parts)

    def _plans(self, batch: int, count: int) -> list[BatchPlan]:
        """Decodes: each row's input is the token that it drew before, whatever it was."""
        rows = self._rows[:batch]
        return [self._driver.plan(*(Part(row, [-1]) for row in rows)) for _ in range(count)]

    def _run(self, plans: Iterable[BatchPlan]) -> list[float]:
        """Microseconds between the results of steps, the first from the start."""
        samples = []
        flying: deque[EngineStep] = deque()
        last_ns = time.perf_counter_ns()

        def land() -> None:
            nonlocal last_ns
            flying.popleft().result()
            now_ns = time.perf_counter_ns()
            samples.append((now_ns - last_ns) / 1e3)
            last_ns = now_ns

        for plan in plans:
            flying.append(self._engine.begin(plan))
            if len(flying) == _IN_FLIGHT:
                land()
        while flying:
            land()
        return samples

    def _busy_us(self, batch: int) -> float | None:
        """Of a step, as the profiler sees it; profiling slows the host, so that its time is not."""
        if self._device.type != "cuda":
            return None
        plans = self._plans(batch, _PROFILED)
        activity = torch.profiler.ProfilerActivity.CUDA
        with torch.profiler.profile(activities=[activity]) as profiler:
            self._run(plans)
            torch.cuda.synchronize()
        spans = [
            (event.time_range.start, event.time_range.end)
            for event in profiler.events() or ()
            if event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation
        ]
        return covered(spans) / len(plans) if spans else None

    def _prompt(self, seed: int, length: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        vocab_size = self._sizes.model.vocab_size
        return torch.randint(0, vocab_size, (length,), generator=generator).tolist()


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of spans: what runs side by side counts once."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def share_outside(step_us: float, busy_us: float) -> float:
    """Share of a step in which the card does nothing; not below 0, as the two are of other runs."""
    return max(0.0, 1.0 - busy_us / step_us)


def differing(ours: Sequence[int], wanted: Sequence[int]) -> float:
    """Share of tokens that are not the wanted ones."""
    pairs = list(zip(ours, wanted, strict=True))
    return sum(a != b for a, b in pairs) / max(1, len(pairs))
