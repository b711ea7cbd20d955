"""Steps in which every row has one token, recorded once and played again.

A step of a model is hundreds of launches, each some microseconds of the host; a recorded one is a
single launch.  What is recorded has one shape and reads fixed memory, so steps are filled up to one
of a few numbers of rows and of attention items, and their columns are copied to where the recording
reads them.  Not here: what is recorded; steps of prompts, which are not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog
import torch

from gpu_worker.device.step_inputs import StepColumns
from gpu_worker.device.transfers import Layout, layout_of
from protos.errors import first_line

_log = structlog.get_logger(__name__)

Compute = Callable[[StepColumns, Mapping[str, torch.Tensor]], torch.Tensor]
"""Queues the forward pass of a step whose columns lie on the device; its states."""

MOST_ITEMS = 1 << 14
"""Of an attention: steps with more are long enough not to be recorded."""
_ROW_ROOM = 8
"""Least room for items of a row, where any has more than one: some 4000 tokens a row."""
_STEM_ROOM = 64
"""Least room for items of stems, where there are any."""
_GROWTH = 4
"""Of rooms: programs that find no item of theirs cost little, but not nothing; and each shape takes
time and memory to record."""
_OFTEN = 8
"""Steps of a shape after which it is recorded while requests are served: recording takes as long as
some steps that are not, and most shapes that come at all come again and again."""


class NoRoomToRecord(RuntimeError):
    """Memory did not suffice for what a recording keeps; the work can be done all the same."""


class Recorder(Protocol):
    """Records work, so that it can be done again on whatever then lies in the same memory."""

    def record(self, work: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        """What does the work; its result is valid until anything recorded is done again.

        Raises:
            NoRoomToRecord: see there; the work was done once, and may be done again.
        """
        ...


class CallRecorder:
    """Recorder where there are no graphs: the work itself."""

    def record(self, work: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        """See Recorder."""
        return work


class GraphRecorder:
    """Recorder of CUDA graphs, whose memory they share: one runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        # One for all: the library keeps a workspace for each stream that it has multiplied in.
        self._stream = torch.cuda.Stream()

    def record(self, work: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        """See Recorder."""
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            work()  # compiles what is not compiled yet, which cannot be recorded
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        recording = torch.cuda.graph(
            graph,
            pool=self._pool,
            stream=stream,
            capture_error_mode="thread_local",  # other threads may allocate meanwhile
        )
        try:
            # Where a recording fails, torch goes on in its stream.
            with torch.cuda.stream(torch.cuda.current_stream()), recording:
                result = work()
        except torch.OutOfMemoryError as error:
            # It was ended all the same.  One that cannot even be ended is another error, after
            # which torch's allocator takes it to go on: nothing must be recorded any more.
            raise NoRoomToRecord(str(error)) from error

        def replay() -> torch.Tensor:
            graph.replay()
            return result

        return replay


class AgreedRecorder:
    """Recorder of one of several ranks: what one of them cannot record, none does.

    Steps that some ranks fill up and others do not would have sums of different sizes meet.  Want
    of memory is no reason: who lacks it still fills up.
    """

    def __init__(self, recorder: Recorder, agree: Callable[[int], int]) -> None:
        """agree: the smallest of what the ranks give it, each as often as the others."""
        self._recorder = recorder
        self._agree = agree

    def record(self, work: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        """See Recorder.

        Raises:
            RuntimeError: it cannot be recorded here, or on another rank.
        """
        try:
            replay = self._recorder.record(work)
        except NoRoomToRecord:
            self._say_it_works()
            raise
        except torch.OutOfMemoryError:
            raise  # of the work itself: this rank ends, and so does the group
        except RuntimeError:
            self._agree(0)
            raise
        self._say_it_works()
        return replay

    def _say_it_works(self) -> None:
        if not self._agree(1):
            raise RuntimeError("another rank cannot record steps")


@dataclass(frozen=True, slots=True)
class Shape:
    """What a recording has room for."""

    rows: int
    items: int
    """Of each attention."""
    partials: int
    """0: every item is a row's whole context."""
    stem_items: int = 0
    """Of each attention that may have any."""

    def serves(self, wanted: Shape) -> bool:
        """Whether a step of that shape may be filled up to this one, for not much more time."""
        return (
            self.rows == wanted.rows
            and wanted.items <= self.items <= _GROWTH * wanted.items
            and wanted.partials <= self.partials
            and wanted.stem_items <= self.stem_items <= max(_STEM_ROOM, _GROWTH * wanted.stem_items)
        )


@dataclass(frozen=True, slots=True)
class _Recording:
    layout: Layout
    memory: torch.Tensor
    replay: Callable[[], torch.Tensor]


class DecodeGraphs:
    """Recordings by shape.

    At first each is made when a step needs it.  Once requests are served, `record_seldom`, a step
    takes a recorded shape that is larger where there is one, or goes unrecorded, until its own has
    come often: nobody waits for a recording that is not used again.
    """

    def __init__(
        self, compute: Compute, recorder: Recorder, *, max_rows: int, device: torch.device
    ) -> None:
        self._compute = compute
        self._recorder = recorder
        self._buckets = buckets(max_rows)
        self._device = device
        self._recordings: dict[Shape, _Recording] = {}
        self._is_seldom = False
        self._times_seen: Counter[Shape] = Counter()

    def record_seldom(self) -> None:
        """From now on requests wait while a shape is recorded."""
        self._is_seldom = True

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Those that steps are filled up to so far."""
        return tuple(self._recordings)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of rows that steps are filled up to, ascending."""
        return self._buckets

    def num_rows(self, num_rows: int) -> int:
        """What a step of so many rows is to be filled up to."""
        return next(size for size in self._buckets if size >= num_rows)

    def fitted(self, columns: StepColumns) -> StepColumns | None:
        """A step of `num_rows` rows, filled up to a shape; None: it is not to be recorded, as it
        is too large for any shape, or too rare."""
        wanted = shape_of(columns)
        shape = None if wanted is None else self._chosen(wanted)
        if shape is None:
            return None
        return columns.filled(shape.items, shape.stem_items, shape.partials)

    def _chosen(self, wanted: Shape) -> Shape | None:
        """The shape to fill a step up to that wants this one."""
        if wanted in self._recordings or not self._is_seldom:
            return wanted
        serving = [shape for shape in self._recordings if shape.serves(wanted)]
        if serving:
            return min(serving, key=lambda shape: (shape.items, shape.stem_items))
        self._times_seen[wanted] += 1
        return wanted if self._times_seen[wanted] >= _OFTEN else None

    def with_room(self, columns: StepColumns, *, with_stems: bool) -> list[StepColumns]:
        """A step of rows that nobody asked for in the shapes that most steps have."""
        num_rows = len(columns.tokens["token_ids"])
        room = min(_ROW_ROOM * num_rows, MOST_ITEMS)
        shapes = [columns.filled(num_rows, 0, 0), columns.filled(room, 0, room)]
        if with_stems and num_rows > 1:
            shapes.append(columns.filled(room, _STEM_ROOM, room))
        return shapes

    def run(self, columns: StepColumns, there: torch.Tensor) -> torch.Tensor:
        """States of a step that `fitted` gave; they are valid until the next one is run.

        there: a flat tensor that begins with the step's columns.
        """
        shape = shape_of(columns)
        assert shape is not None, "a step that does not fit"
        layout = layout_of(columns.columns())
        recording = self._recordings.get(shape)
        if recording is None:
            memory = there[: layout.size].clone()
            views = layout.views(memory)

            def work() -> torch.Tensor:
                return self._compute(columns, views)

            try:
                replay = self._recorder.record(work)
            except NoRoomToRecord as error:
                _log.warning("shape_not_recorded", shape=str(shape), reason=first_line(error))
                replay = work  # so that ranks go on alike, of which others may have had room
            recording = self._recordings[shape] = _Recording(layout, memory, replay)
        assert layout == recording.layout, "one shape, one layout"
        recording.memory.copy_(there[: layout.size])
        return recording.replay()


def buckets(max_rows: int) -> tuple[int, ...]:
    """1, 2, 4, multiples of 8, and as many rows as there can be."""
    sizes = {1, 2, 4, *range(8, max_rows + 1, 8), max_rows}
    return tuple(sorted(size for size in sizes if size <= max_rows))


def shape_of(columns: StepColumns) -> Shape | None:
    """The smallest shape that has room for a step of single tokens."""
    num_rows = len(columns.tokens["token_ids"])
    if not columns.num_partials:
        return Shape(rows=num_rows, items=num_rows, partials=0)
    most = max(columns.num_items, columns.num_partials)
    if most > MOST_ITEMS:
        return None
    room = min(_room(most, _ROW_ROOM * num_rows), MOST_ITEMS)
    num_stem_items = columns.num_stem_items
    stem_room = _room(num_stem_items, _STEM_ROOM) if num_stem_items else 0
    return Shape(rows=num_rows, items=room, partials=room, stem_items=stem_room)


def _room(most: int, least: int) -> int:
    room = least
    while room < most:
        room *= _GROWTH
    return room
