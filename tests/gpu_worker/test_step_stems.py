"""The gate for what a plan says of stems."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from gpu_worker.engine import PlanError
from gpu_worker.row_table import RowTable
from protos.plan import BatchPlan, NewRow, Remap, SamplingParams

STEM = [3, 1, 4, 5]


def ints(*values: int) -> array[int]:
    return array("i", values)


def new_row(row: int, prefix: list[int]) -> NewRow:
    return NewRow(row=row, prefix_slots=ints(*prefix), sampling=SamplingParams())


def make_table() -> RowTable:
    """Rows 0 to 3 with five tokens each: all but row 2 begin in the same slots."""
    table = RowTable(num_slots=60, max_rows=6, max_length=16, vocab_size=50)
    prefixes = [STEM, STEM, [13, 11, 14, 15], STEM]
    step = table.apply(
        BatchPlan(
            step_id=1,
            rows=ints(0, 1, 2, 3),
            prefix_lens=ints(4, 4, 4, 4),
            extend_lens=ints(1, 1, 1, 1),
            samples=b"\1\1\1\1",
            input_ids=ints(1, 2, 3, 4),
            out_slots=ints(20, 21, 22, 23),
            new_rows=tuple(new_row(row, prefix) for row, prefix in enumerate(prefixes)),
            freed_rows=ints(),
        )
    )
    for row in step.rows:
        table.record(row, [7])
    return table


def plan(*stems: int, **changes: Any) -> BatchPlan:
    """Rows 0, 3, 1 and 2 decode; row 4 begins on the stem and computes two tokens."""
    values: dict[str, Any] = {
        "step_id": 2,
        "rows": ints(0, 3, 1, 2, 4),
        "prefix_lens": ints(5, 5, 5, 5, 4),
        "extend_lens": ints(1, 1, 1, 1, 2),
        "samples": b"\1\1\1\1\1",
        "input_ids": ints(-1, -1, -1, -1, 1, 2),
        "out_slots": ints(30, 31, 32, 33, 34, 35),
        "new_rows": (new_row(4, STEM),),
        "freed_rows": ints(),
        "stems": ints(*stems),
    }
    return BatchPlan(**(values | changes))


def test_stems_of_neighbours_are_taken() -> None:
    assert make_table().apply(plan()).stems.shape == (0, 4)
    step = make_table().apply(plan(0, 3, 0, 2, 1, 2, 2, 4))
    assert step.stems.tolist() == [[0, 3, 0, 2], [1, 2, 2, 4]]


@pytest.mark.parametrize(
    ("stems", "problem"),
    [
        ((0, 2, 0), "whole"),
        ((-1, 2, 0, 1), "stem of 2 entries from -1"),
        ((0, 1, 0, 1), "stem of 1 entries"),
        ((4, 2, 0, 1), "stem of 2 entries from 4"),
        ((0, 2, 2, 2), "positions 2 to 2"),
        ((0, 2, 1, 2), "does not begin"),
        ((0, 2, 0, 2, 1, 2, 2, 3), "does not begin"),
        ((0, 2, 0, 2, 0, 3, 0, 1), "does not begin"),
        ((0, 2, 0, 2, 0, 2, 1, 3), "does not begin"),
        ((0, 3, 0, 6), "longer than"),
        ((3, 2, 0, 1), "more than one token"),
        ((0, 4, 0, 4), "row 2 has another slot at 3"),
        ((0, 3, 0, 5), "row 3 has another slot at 4"),
    ],
)
def test_stems_that_are_none_are_refused(stems: tuple[int, ...], problem: str) -> None:
    table = make_table()
    with pytest.raises(PlanError, match=problem):
        table.apply(plan(*stems))
    table.apply(plan(0, 3, 0, 4))  # nothing of the other was carried out


def test_slots_are_compared_as_the_plan_leaves_them() -> None:
    """A row that moves to others' slots shares them from this step on; one that leaves does not."""
    moved = Remap(row=2, start=1, slots=ints(*STEM[1:]))
    assert len(make_table().apply(plan(0, 4, 0, 4, remaps=(moved,))).stems) == 1
    away = Remap(row=3, start=0, slots=ints(40, 41, 42, 43))
    with pytest.raises(PlanError, match="row 3 has another slot at 3"):
        make_table().apply(plan(0, 3, 0, 4, remaps=(away,)))
    single = {"extend_lens": ints(1, 1, 1, 1, 1), "input_ids": ints(-1, -1, -1, 1, -1)}
    single |= {"out_slots": ints(30, 31, 32, 33, 34), "rows": ints(0, 3, 1, 4, 2)}
    single |= {"prefix_lens": ints(5, 5, 5, 4, 5)}
    assert len(make_table().apply(plan(0, 4, 0, 4, **single)).stems) == 1
