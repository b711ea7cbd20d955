"""Steps filled up to a shape, on memory that larger steps have used: the same as without."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from gpu_worker.device.decode_graphs import (
    AgreedRecorder,
    CallRecorder,
    DecodeGraphs,
    NoRoomToRecord,
    Recorder,
    Shape,
    buckets,
    shape_of,
)
from gpu_worker.device.device_backend import DeviceBackend
from gpu_worker.device.device_forward import DeviceForward
from gpu_worker.device.row_store import RowStore
from gpu_worker.device.step_inputs import (
    CutSizes,
    StepColumns,
    StepInputs,
    step_columns,
    step_inputs,
)
from gpu_worker.device.transfers import Staging
from gpu_worker.step import EMPTY_STEP, Step
from kernels.attention_inputs import AttentionRules, PagedKv
from kernels.kv_codes import CodedSlots, KvLayer
from kernels.paged_attention import paged_attention, paged_attention_reference
from protos.errors import InvalidRequest
from tests.gpu_worker.random_models import Piece, make_step
from tests.gpu_worker.test_device_engine import device_backend

CPU = torch.device("cpu")
MAX_ROWS, WIDTH, HEAD_DIM, GROUPS = 9, 70, 16, 2
LENGTHS = ((70, 69, 33, 16, 17, 5, 50, 12), (60, 2, 9), (4, 9), (1,), (9, 8, 7, 6, 40))
"""In turn: many rows with parts; fewer; all of them whole; one; the first shape again."""
SIZES = CutSizes(groups=GROUPS, split=16, windows=(0, 20))


def decodes(lengths: Sequence[int]) -> Step:
    """Rows of these lengths with the token to come, each in slots of its own."""
    return make_step(
        [
            Piece(
                tokens=range(length),
                slots=np.arange(length, dtype=np.int32) + 1 + WIDTH * row,
                begin=length - 1,
                end=length,
                num_samples=1,
            )
            for row, length in enumerate(lengths)
        ]
    )


class Attention:
    """A model of one attention for each window, over a pool of random numbers."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        kv = torch.randn(2, 1 + WIDTH * MAX_ROWS, 1, HEAD_DIM, generator=generator)
        kv[:, 0] = torch.nan  # the dump slot, which only rows that nobody asked for may read
        table = torch.arange(WIDTH * (MAX_ROWS + 1), dtype=torch.int32) + 1
        table[WIDTH * MAX_ROWS :] = 0
        layer = KvLayer(keys=CodedSlots(codes=kv[0]), values=CodedSlots(codes=kv[1]))
        self._kv = PagedKv(layer=layer, page_table=table)
        self._queries = torch.randn(WIDTH, GROUPS, HEAD_DIM, generator=generator)

    def states(
        self, columns: StepColumns, there: Mapping[str, torch.Tensor], *, exact: bool = False
    ) -> torch.Tensor:
        inputs = step_inputs(columns, there, self._kv.page_table)
        query = self._queries[inputs.token_ids.long()]
        attend = paged_attention_reference if exact else paged_attention
        found = []
        for window, work in inputs.work.items():
            rules = AttentionRules(scale=0.25, window=window)
            found.append(attend(query, self._kv, work[0], rules).flatten(1))
        return torch.cat(found, dim=1)


def test_rows_are_those_of_a_step_that_is_not_filled_up() -> None:
    attention, staging = Attention(), Staging(CPU)
    graphs = DecodeGraphs(attention.states, CallRecorder(), max_rows=MAX_ROWS, device=CPU)
    # In turn: many rows, of which some have parts; fewer; all whole; the first shape again.
    for lengths in LENGTHS:
        step = decodes(lengths)
        plain = step_columns(step, SIZES, WIDTH)
        _, there = staging.send(plain.columns())
        wanted = attention.states(plain, there, exact=True)
        columns = graphs.fitted(
            step_columns(
                step, SIZES, WIDTH, fill_to=graphs.num_rows(len(lengths)), dump_row=MAX_ROWS
            )
        )
        assert columns is not None
        flat, _ = staging.send(columns.columns())
        states = graphs.run(columns, flat)[: len(lengths)]
        torch.testing.assert_close(states, wanted, atol=2e-6, rtol=1e-5)
    assert graphs.shapes == (
        Shape(rows=8, items=64, partials=64),
        Shape(rows=4, items=32, partials=32),
        Shape(rows=2, items=2, partials=0),
        Shape(rows=1, items=1, partials=0),
    )


def test_sizes_reach_the_most_rows() -> None:
    assert buckets(1) == (1,)
    assert buckets(9) == (1, 2, 4, 8, 9)
    assert buckets(32) == (1, 2, 4, 8, 16, 24, 32)


def test_room_grows_by_fours_to_a_limit() -> None:
    sizes = CutSizes(groups=1, split=1)
    for num_rows, length, room in ((1, 9, 32), (1, 70, 128), (300, 50, 1 << 14)):
        step = decodes([length] * num_rows)
        columns = step_columns(step, sizes, WIDTH, fill_to=num_rows, dump_row=num_rows)
        assert shape_of(columns) == Shape(rows=num_rows, items=room, partials=room)


def test_contexts_of_too_many_items_are_not_recorded() -> None:
    sizes = CutSizes(groups=1, split=1)
    columns = step_columns(decodes([70] * 300), sizes, WIDTH, fill_to=304, dump_row=300)
    assert shape_of(columns) is None


class NoLayers:
    """A decoder of which nothing is asked but that it is there."""

    def states(self, step: StepInputs) -> torch.Tensor:
        return step.token_ids[:, None].float()

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        return states


def test_what_most_steps_need_is_recorded_at_start() -> None:
    rows = RowStore(max_rows=3, max_length=WIDTH, vocab_size=9, device=CPU)
    forward = DeviceForward(NoLayers(), rows, SIZES, CallRecorder())
    forward.record_all(Staging(CPU))
    assert forward.graphs is not None
    found = [(shape.rows, shape.items, shape.partials) for shape in forward.graphs.shapes]
    assert found == [(3, 3, 0), (3, 24, 24), (2, 2, 0), (2, 16, 16), (1, 1, 0), (1, 8, 8)]
    assert not rows.slots.any()


def test_while_requests_wait_only_what_comes_often_is_recorded() -> None:
    rows = RowStore(max_rows=3, max_length=WIDTH, vocab_size=9, device=CPU)
    sizes = CutSizes(groups=GROUPS, split=2)
    forward, staging = DeviceForward(NoLayers(), rows, sizes, CallRecorder()), Staging(CPU)
    forward.record_all(staging)
    assert forward.graphs is not None
    at_start, found = forward.graphs.shapes, []
    # Up to 8 items a row, which is there; then some more, which is not.
    for lengths in ([16, 16, 16], *[[40, 40, 40]] * 10, [3, 1, 2]):
        prepared = forward.prepare(decodes(lengths))
        flat, there = staging.send(prepared.columns.columns())
        states = forward.logits(prepared, flat, there)
        assert states.tolist() == [[token] for token in decodes(lengths).token_ids.tolist()]
        found.append(prepared.is_recorded)
    assert found == [True, *[False] * 7, True, True, True, True]
    assert forward.graphs.shapes == (*at_start, Shape(rows=3, items=96, partials=96))


def test_a_step_takes_a_larger_shape_where_that_costs_little() -> None:
    wanted = Shape(rows=8, items=64, partials=64)
    for shape, serves in (
        (wanted, True),
        (Shape(rows=8, items=256, partials=256), True),
        (Shape(rows=8, items=64, partials=64, stem_items=64), True),
        (Shape(rows=8, items=1024, partials=1024), False),
        (Shape(rows=8, items=64, partials=64, stem_items=256), False),
        (Shape(rows=16, items=64, partials=64), False),
        (Shape(rows=8, items=64, partials=0), False),
        (Shape(rows=8, items=32, partials=64), False),
    ):
        assert shape.serves(wanted) is serves, shape
    shared = Shape(rows=8, items=64, partials=64, stem_items=64)
    assert Shape(rows=8, items=256, partials=256, stem_items=256).serves(shared)
    assert not wanted.serves(shared)


def test_steps_with_stems_find_a_shape_from_the_start() -> None:
    graphs = DecodeGraphs(lambda *_: torch.empty(0), CallRecorder(), max_rows=2, device=CPU)
    empty = step_columns(EMPTY_STEP, SIZES, WIDTH, fill_to=2, dump_row=2)
    shapes = [shape_of(columns) for columns in graphs.with_room(empty, with_stems=True)]
    assert shapes[-1] == Shape(rows=2, items=16, partials=16, stem_items=64)
    assert len(shapes) == 3


def test_of_shapes_that_serve_the_smallest_is_taken() -> None:
    graphs = DecodeGraphs(lambda *_: torch.empty(0), CallRecorder(), max_rows=2, device=CPU)
    empty = step_columns(EMPTY_STEP, SIZES, WIDTH, fill_to=2, dump_row=2)
    for items, stem_items in ((64, 64), (16, 256), (64, 256)):
        columns = empty.filled(items, stem_items, items)
        graphs.run(columns, Staging(CPU).send(columns.columns())[0])
    graphs.record_seldom()
    fitted = graphs.fitted(empty.filled(16, 64, 16))
    assert fitted is not None
    assert shape_of(fitted) == Shape(rows=2, items=16, partials=16, stem_items=256)


class Narrow:
    """A recorder that has room for no shape but whole rows."""

    def __init__(self) -> None:
        self.num_asked = 0

    def record(self, work: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        self.num_asked += 1
        if self.num_asked % 2 == 0:
            raise NoRoomToRecord("out of memory\nmuch more")
        return work


def test_what_has_no_room_to_be_recorded_goes_without_and_the_rest_with() -> None:
    rows = RowStore(max_rows=1, max_length=WIDTH, vocab_size=9, device=CPU)
    recorder = Narrow()
    forward, staging = DeviceForward(NoLayers(), rows, SIZES, recorder), Staging(CPU)
    with capture_logs() as said:
        forward.record_all(staging)
    assert [(event["event"], event["reason"]) for event in said] == [
        ("shape_not_recorded", "out of memory")
    ]
    for length in (5, 60, 60):
        step = decodes([length])
        prepared = forward.prepare(step)
        flat, there = staging.send(prepared.columns.columns())
        assert forward.logits(prepared, flat, there).tolist() == [[step.token_ids[0]]]
    assert recorder.num_asked == 2


class NoGraphs:
    """A recorder where recording does not work."""

    def record(self, work: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        raise RuntimeError("operation not permitted\nwhen stream is capturing")


def test_a_step_that_cannot_be_recorded_is_run_as_it_is() -> None:
    """The first one is when memory is measured, before any are recorded for their own sake."""
    rows = RowStore(max_rows=3, max_length=WIDTH, vocab_size=9, device=CPU)
    forward = DeviceForward(NoLayers(), rows, SIZES, NoGraphs())
    step, staging = decodes([5, 2, 9]), Staging(CPU)
    found = []
    with capture_logs() as said:
        for is_recorded in (True, False):
            prepared = forward.prepare(step)
            assert prepared.is_recorded is is_recorded
            flat, there = staging.send(prepared.columns.columns())
            found.append(forward.logits(prepared, flat, there).tolist())
    assert found == [[[token] for token in step.token_ids.tolist()]] * 2
    assert [event["event"] for event in said] == ["steps_not_recorded"]


def test_what_cannot_be_recorded_is_run_as_it_is() -> None:
    rows = RowStore(max_rows=3, max_length=WIDTH, vocab_size=9, device=CPU)
    forward = DeviceForward(NoLayers(), rows, SIZES, NoGraphs())
    with capture_logs() as said:
        forward.record_all(Staging(CPU))
    assert [(event["event"], event["reason"]) for event in said] == [
        ("steps_not_recorded", "operation not permitted")
    ]
    assert not forward.prepare(decodes([2, 3])).is_recorded


def test_what_one_rank_cannot_record_none_does() -> None:
    """Each asks once for every recording, whatever came of its own; want of memory is no reason."""
    heard: list[int] = []

    def record(recorder: Recorder, least: int = 1) -> None:
        def agree(value: int) -> int:
            heard.append(value)
            return min(value, least)

        AgreedRecorder(recorder, agree).record(lambda: torch.empty(0))()

    narrow = Narrow()
    record(narrow)
    with pytest.raises(NoRoomToRecord):
        record(narrow)
    with pytest.raises(RuntimeError, match="not permitted"):
        record(NoGraphs())
    assert heard == [1, 1, 0]
    for full in (0, 1):  # here there is room, and there is none
        narrow.num_asked = full
        with pytest.raises(RuntimeError, match="another rank cannot"):
            record(narrow, least=0)


@pytest.fixture
def backends() -> tuple[DeviceBackend, DeviceBackend]:
    return device_backend(), device_backend(graphs=False)


def test_a_model_gives_the_same_logits_recorded_or_not(
    backends: tuple[DeviceBackend, DeviceBackend],
) -> None:
    for lengths in ([1, 1, 1, 1, 1], [2, 2, 2], [3]):
        ours, theirs = (backend.forward(decodes(lengths)) for backend in backends)
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
        assert np.isfinite(ours).all()
    assert [len(backend.shapes) for backend in backends] == [3, 0]


def test_more_slots_than_the_table_can_count_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"max_length: 4194304 tokens .*--max-running"):
        RowStore(max_rows=512, max_length=4 << 20, vocab_size=9, device=CPU)
