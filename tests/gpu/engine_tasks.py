"""What is asked of a whole engine, as tasks of a lane; and the rows that their answers become.

A task's answer is plain numbers, as it comes from another process.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from gpu_worker.device.device_backend import DeviceBackend, DeviceOptions
from gpu_worker.step import Step
from tests.gpu.case_worker import card_place, forget, interpreted_place, is_usable, reason
from tests.gpu.comparison import Comparison, near, worst
from tests.gpu.engine_load import EngineLoad, StepTimes, differing, share_outside
from tests.gpu.engine_model import (
    FULL,
    Mode,
    RandomReader,
    make_engine,
    model_shape,
    random_reader,
    sizes_of,
)
from tests.gpu.lanes import Worker
from tests.gpu.place import Place
from tests.gpu.report import ENGINE, Row, checked, timed
from tests.gpu.roofs import Roofs
from tests.gpu.timing import summary
from tests.gpu.work import step_work
from tests.gpu_worker.random_models import (
    MAX_LENGTH,
    SHAPES,
    TORCH,
    Piece,
    RandomWeights,
    make_backend,
    make_step,
)

_AIM = "< 5 % outside kernels"
_MOST_OUTSIDE = 0.05
_LOGITS = 1e-4
"""Relative error of float32 logits, summed in other orders."""
_MOST_DIFFERENT = 0.5
"""Share of tokens.  Logits of random weights in bfloat16 have near and equal ones at the top, and a
library may multiply otherwise in a graph; a graph that reads what it should not gives no token
right."""
_FEWEST_TOKENS = 8
_SMALL_SLOTS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Of one task."""

    comparison: Comparison | None = None
    first_token_us: tuple[float, ...] = ()
    steps: StepTimes | None = None
    problem: str = ""
    """Why there is none."""


class EngineUnderTest:
    """One engine at a time, made when it is first needed."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._mode: Mode | None = None
        self._load: EngineLoad | None = None
        self._backend: DeviceBackend | None = None
        self._reader: RandomReader | None = None
        self.tokens: dict[tuple[Mode, int], tuple[int, ...]] = {}
        """Drawn first, by mode and batch."""

    def load(self, mode: Mode) -> EngineLoad:
        """The engine in this mode; another one is given up."""
        if self._load is None or self._mode != mode:
            self._load, self._backend, self._mode = None, None, mode
            forget()
            self._reader = self._reader or random_reader(self.place)
            engine, self._backend = make_engine(mode, self.place, self._reader)
            self._load = EngineLoad(engine, sizes_of(self.place), self.place.device)
        return self._load

    @property
    def is_recorded(self) -> bool:
        """Whether steps have been recorded; where that fails, a backend goes on without."""
        return self._backend is not None and bool(self._backend.shapes)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTask:
    """One thing asked."""

    name: str
    run: Callable[[EngineUnderTest], Answer]
    is_core: bool = True
    has_aim: bool = False

    def rows(self, answer: Answer, roofs: Roofs | None) -> list[Row]:
        """What the table says of it; without roofs there are no times."""
        if answer.problem:
            return [Row(kernel=ENGINE, case=self.name, status="failed", note=answer.problem)]
        row = Row(kernel=ENGINE, case=self.name)
        if answer.comparison is not None:
            row = checked(ENGINE, self.name, answer.comparison)
        if roofs is not None and answer.first_token_us:
            row = _prompt_row(row, answer.first_token_us, roofs)
        if roofs is not None and answer.steps is not None:
            row = self._decode_row(row, answer.steps, roofs)
        return [row]

    def _decode_row(self, row: Row, steps: StepTimes, roofs: Roofs) -> Row:
        batch, step_us = len(steps.lengths), steps.times.median_us
        work = step_work(model_shape(FULL.model, 2), steps.lengths, [1] * batch)
        fields = timed(row, steps.times, work, roofs)
        note = f"{batch / step_us * 1e6:.0f} tokens/s"
        if self.has_aim:
            fields["aim"] = _AIM
        if steps.busy_us is None:
            return replace(row, **fields, note=f"{note}; the profiler saw no kernel")
        outside = share_outside(step_us, steps.busy_us)
        if self.has_aim:
            fields["is_aim_met"] = outside < _MOST_OUTSIDE
        return replace(row, **fields, note=f"{note}; {outside:.1%} outside kernels")


def _prompt_row(row: Row, samples_us: Sequence[float], roofs: Roofs) -> Row:
    length, times = FULL.prompt, summary(samples_us)
    work = step_work(model_shape(FULL.model, 2), [length], [length])
    note = f"{length / times.median_us * 1e6:.0f} prompt tokens/s"
    return replace(row, **timed(row, times, work, roofs), note=note)


def _tasks() -> Iterator[EngineTask]:
    """Eager first, as what graphs give is held against it."""
    yield EngineTask(name="small models in float32, against the CPU's", run=_against_cpu)
    modes: tuple[Mode, ...] = ("eager", "graphs")
    for mode in modes:
        for index, batch in enumerate(FULL.batches):
            yield EngineTask(
                name=f"8B {mode}, decode {batch} x {FULL.context}",
                run=partial(_decode, mode, index),
                is_core=batch == 64,
                has_aim=mode == "graphs",
            )
        yield EngineTask(
            name=f"8B {mode}, first token of 8k",
            run=partial(_prompt, mode),
            is_core=mode == "graphs",
        )


def _decode(mode: Mode, index: int, under_test: EngineUnderTest) -> Answer:
    """index: which of the batches."""
    batch = sizes_of(under_test.place).batches[index]
    steps = under_test.load(mode).decode(batch)
    if under_test.is_recorded != (mode == "graphs"):
        return Answer(problem=f"steps were {'' if under_test.is_recorded else 'not '}recorded")
    under_test.tokens[mode, batch] = steps.tokens
    wanted = under_test.tokens.get(("eager", batch), ())
    fewest = under_test.place.pick(_FEWEST_TOKENS, 1)
    if mode == "eager" or len(wanted) != len(steps.tokens) or len(wanted) < fewest:
        return Answer(steps=steps)
    error = differing(steps.tokens, wanted)
    return Answer(steps=steps, comparison=Comparison(error=error, allowed=_MOST_DIFFERENT))


def _prompt(mode: Mode, under_test: EngineUnderTest) -> Answer:
    return Answer(first_token_us=tuple(under_test.load(mode).first_token_us()))


def _against_cpu(under_test: EngineUnderTest) -> Answer:
    """Logits of a prompt in two chunks and of a decode, in the company of another row."""
    place = under_test.place
    names = ["tied"] if place.is_tiny else list(SHAPES)
    found = []
    for name in names:
        options = DeviceOptions(
            num_slots=_SMALL_SLOTS,
            max_rows=2,
            max_length=MAX_LENGTH,
            device=str(place.device),
            dtype=torch.float32,
            poison=True,
        )
        ours = DeviceBackend(SHAPES[name], RandomWeights(), options)
        theirs = make_backend(SHAPES[name], TORCH, num_slots=_SMALL_SLOTS)
        for step in _steps(SHAPES[name].vocab_size, place.pick(70, 6)):
            logits, wanted = ours.forward(step), theirs.forward(step)
            found.append(near(torch.from_numpy(logits), torch.from_numpy(wanted), _LOGITS))
    return Answer(comparison=worst(found))


def _steps(vocab_size: int, length: int) -> list[Step]:
    """Two rows, slots in random order; the first row's prompt comes in two chunks."""
    draw = np.random.default_rng(5)
    order = draw.permutation(_SMALL_SLOTS - 1).astype(np.int32) + 1
    half = length // 2
    rows = [
        (draw.integers(vocab_size, size=count).tolist(), order[start : start + count])
        for start, count in ((0, length), (length, half))
    ]

    def piece(row: int, begin: int, end: int, num_samples: int) -> Piece:
        tokens, slots = rows[row]
        return Piece(tokens=tokens, slots=slots, begin=begin, end=end, num_samples=num_samples)

    return [
        make_step([piece(0, 0, half, 0), piece(1, 0, half - 1, 1)]),
        make_step([piece(0, half, length - 1, 1), piece(1, half - 1, half, 1)]),
        make_step([piece(0, length - 1, length, 1)]),
    ]


ENGINE_TASKS: tuple[EngineTask, ...] = tuple(_tasks())


def engine_worker() -> Worker:
    """Answers a task by its name."""
    under_test = EngineUnderTest(card_place())
    tasks = {task.name: task for task in ENGINE_TASKS}

    def work(name: str) -> tuple[object, bool]:
        return _answer(tasks[name], under_test), not is_usable()

    return work


def interpreted_engine(tasks: Sequence[EngineTask]) -> list[Row]:
    """The rows of these tasks on a tiny model, without times."""
    under_test = EngineUnderTest(interpreted_place())
    return [row for task in tasks for row in task.rows(_answer(task, under_test), None)]


def _answer(task: EngineTask, under_test: EngineUnderTest) -> Answer:
    try:
        return task.run(under_test)
    except Exception as error:  # whatever it is belongs in the report
        return Answer(problem=reason(error))
