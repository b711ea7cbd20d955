"""The gate for plans: what passes is safe to index with, what is refused changes nothing."""

from __future__ import annotations

import math
from array import array
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.engine import PlanError
from gpu_worker.row_table import RowTable
from protos.plan import MAX_PAGE_SIZE, BatchPlan, NewRow, Remap, SamplingParams

NUM_SLOTS, MAX_ROWS, MAX_LENGTH, VOCAB = 20, 4, 16, 50
LAST_SLOT = NUM_SLOTS + MAX_PAGE_SIZE - 1


def ints(*values: int) -> array[int]:
    return array("i", values)


def new_row(row: int, prefix: tuple[int, ...] = (), **sampling: Any) -> NewRow:
    return NewRow(row=row, prefix_slots=ints(*prefix), sampling=SamplingParams(**sampling))


def make_table() -> RowTable:
    """Row 0 has five tokens and has sampled, row 1 three behind a prefix of two and has not."""
    table = RowTable(
        num_slots=NUM_SLOTS, max_rows=MAX_ROWS, max_length=MAX_LENGTH, vocab_size=VOCAB
    )
    step = table.apply(
        BatchPlan(
            step_id=1,
            rows=ints(0, 1),
            prefix_lens=ints(0, 2),
            extend_lens=ints(5, 1),
            samples=b"\1\0",
            input_ids=ints(1, 2, 3, 4, 5, 6),
            out_slots=ints(1, 2, 3, 4, 5, 6),
            new_rows=(new_row(0), new_row(1, (1, 2))),
            freed_rows=ints(),
        )
    )
    table.record(step.rows[0], [33])
    return table


GOOD = BatchPlan(
    step_id=2,
    rows=ints(0, 1, 2),
    prefix_lens=ints(5, 3, 2),
    extend_lens=ints(1, 2, 1),
    samples=b"\1\1\0",
    input_ids=ints(-1, 7, 8, 9),
    out_slots=ints(7, 8, 9, 0),
    new_rows=(new_row(2, (3, 4)),),
    remaps=(Remap(row=1, start=1, slots=ints(15, 16)),),
    freed_rows=ints(),
)


def test_good_plan_becomes_a_step() -> None:
    step = make_table().apply(GOOD)
    assert step.token_ids.tolist() == [33, 7, 8, 9]
    assert step.positions.tolist() == [5, 3, 4, 2]
    assert step.out_slots.tolist() == [7, 8, 9, 0]
    assert [row.slots.tolist() for row in step.rows] == [
        [1, 2, 3, 4, 5, 7],
        [1, 15, 16, 8, 9],
        [3, 4, 0],
    ]
    assert [row.first_token for row in step.rows] == [0, 1, 3]
    assert [row.num_samples for row in step.rows] == [1, 1, 0]


def test_a_token_that_only_the_runner_knows_stays_unknown() -> None:
    table = make_table()
    first = table.apply(GOOD)
    for row in first.rows[:2]:
        table.record_unseen(row, 1)
    plan = replace(
        GOOD,
        step_id=3,
        prefix_lens=ints(6, 5, 3),
        input_ids=ints(-1, -1, 7, 9),
        out_slots=ints(10, 11, 12, 13),
        new_rows=(),
        remaps=(),
        freed_rows=ints(),
    )
    for bad in (ints(-1, 7, -1, 9), ints(-1, -1, 7, -1), ints(-1, -2, 7, 9)):
        with pytest.raises(PlanError):
            table.apply(replace(plan, input_ids=bad))
    assert table.apply(plan).token_ids.tolist() == [-1, -1, 7, 9]


def test_what_changed_of_slots_is_told_in_order() -> None:
    moved = make_table().apply(GOOD).moved
    assert [(move.row, move.start, list(move.slots)) for move in moved] == [
        (2, 0, [3, 4]),
        *((each.row, each.start, list(each.slots)) for each in GOOD.remaps),
    ]
    assert len(moved) > 1


def test_last_slot_and_last_position_are_usable() -> None:
    table = make_table()
    more = MAX_LENGTH - 5
    plan = replace(
        GOOD,
        rows=ints(0),
        prefix_lens=ints(5),
        extend_lens=ints(more),
        samples=b"\1",
        input_ids=ints(*[VOCAB - 1] * more),
        out_slots=ints(*range(LAST_SLOT - more + 1, LAST_SLOT + 1)),
        new_rows=(),
        remaps=(),
    )
    assert table.apply(plan).rows[0].slots[-1] == LAST_SLOT


def test_plan_without_rows_frees() -> None:
    table = make_table()
    nothing = ints()
    step = table.apply(
        BatchPlan(
            step_id=2,
            rows=nothing,
            prefix_lens=nothing,
            extend_lens=nothing,
            samples=b"",
            input_ids=nothing,
            out_slots=nothing,
            freed_rows=ints(0, 1),
        )
    )
    assert step.rows == ()
    with pytest.raises(PlanError, match="is free"):
        table.apply(GOOD)


def known_row(**sampling: Any) -> NewRow:
    """Row 2 of GOOD with a penalty and the context it needs."""
    new = new_row(2, (3, 4), **({"presence_penalty": 1.0} | sampling))
    return replace(new, num_prompt=2, context_ids=ints(1, 1, 9))


def test_row_with_a_context_is_taken() -> None:
    table = make_table()
    step = table.apply(replace(GOOD, new_rows=(known_row(),), samples=b"\1\1\1"))
    assert step.rows[2].num_samples == 1


def drafting() -> BatchPlan:
    """Row 0 guesses three tokens, row 1 one, row 2, which has a penalty, its only input."""
    return replace(
        GOOD,
        extend_lens=ints(4, 2, 2),
        samples=b"\4\2\2",
        input_ids=ints(-1, 11, 12, 13, 7, 8, 9, 10),
        out_slots=ints(7, 8, 9, 10, 11, 12, 13, 14),
        new_rows=(known_row(),),
    )


def test_drafts_are_the_last_inputs() -> None:
    step = make_table().apply(drafting())
    assert [row.num_samples for row in step.rows] == [4, 2, 2]
    assert [step.drafts(row).tolist() for row in step.rows] == [[11, 12, 13], [8], [10]]
    plain = make_table().apply(GOOD)
    assert [plain.drafts(row).tolist() for row in plain.rows] == [[], [], []]


def test_a_row_goes_on_behind_the_drafts_that_were_right() -> None:
    """Of the three drafts of row 0 one was right, of row 1 all: 5 + 4 - 2 and 3 + 2 tokens."""
    table = make_table()
    step = table.apply(drafting())
    table.record(step.rows[0], [11, 30])
    table.record(step.rows[1], [8, 31])
    nothing = {"new_rows": (), "remaps": ()}
    after = replace(
        GOOD, rows=ints(0, 1), prefix_lens=ints(7, 5), extend_lens=ints(1, 1), **nothing
    )
    after = replace(after, samples=b"\1\1", input_ids=ints(-1, -1), out_slots=ints(9, 20))
    with pytest.raises(PlanError, match="has 7 tokens"):
        table.apply(replace(after, prefix_lens=ints(9, 5)))
    step = table.apply(after)
    assert step.token_ids.tolist() == [30, 31]
    assert [row.slots.tolist() for row in step.rows] == [
        [1, 2, 3, 4, 5, 7, 8, 9],
        [1, 15, 16, 11, 12, 20],
    ]


def remap(row: int, start: int, *slots: int) -> dict[str, Any]:
    return {"remaps": (Remap(row=row, start=start, slots=ints(*slots)),)}


BAD: dict[str, dict[str, Any]] = {
    "row above the table": {"rows": ints(0, 1, MAX_ROWS)},
    "row below the table": {"rows": ints(0, -1, 2)},
    "free row": {"rows": ints(0, 3, 2)},
    "row twice": {"rows": ints(0, 0, 2)},
    "short column": {"samples": b"\1\1"},
    "tokens missing": {"input_ids": ints(-1, 7, 8)},
    "slots missing": {"out_slots": ints(7, 8, 9)},
    "prefix beyond what is there": {"prefix_lens": ints(5, 4, 2)},
    "prefix short of what is there": {"prefix_lens": ints(5, 2, 2)},
    "new prefix of another length": {"prefix_lens": ints(5, 3, 1)},
    "nothing to compute": {"extend_lens": ints(1, 3, 0)},
    "too long": {
        "extend_lens": ints(12, 2, 1),
        "input_ids": ints(*[3] * 15),
        "out_slots": ints(*range(1, 16)),
    },
    "token above the vocabulary": {"input_ids": ints(-1, 7, VOCAB, 9)},
    "token below -1": {"input_ids": ints(-2, 7, 8, 9)},
    "token from a step that did not sample": {"input_ids": ints(-1, -1, 8, 9)},
    "token from before, not first": {"input_ids": ints(-1, 7, -1, 9)},
    "token from before, new row": {"input_ids": ints(-1, 7, 8, -1)},
    "slot above the pool": {"out_slots": ints(7, 8, 9, LAST_SLOT + 1)},
    "slot below the pool": {"out_slots": ints(7, -1, 9, 10)},
    "slot twice": {"out_slots": ints(7, 8, 8, 9)},
    "new row is live": {"new_rows": (new_row(1), new_row(2, (3, 4)))},
    "new row twice": {"new_rows": (new_row(2, (3, 4)), new_row(2, (3, 4)))},
    "new row without part": {"new_rows": (new_row(2, (3, 4)), new_row(3))},
    "prefix slot above the pool": {"new_rows": (new_row(2, (3, LAST_SLOT + 1)),)},
    "prefix in the dump slot": {"new_rows": (new_row(2, (3, 0)),)},
    "prefix longer than a row": {"new_rows": (new_row(2, tuple([3] * 17)),)},
    "remap of a free row": remap(3, 0, 1),
    "remap beyond the row": remap(1, 2, 1, 2),
    "remap before the row": remap(1, -1, 1),
    "remap to the dump slot": remap(1, 0, 0),
    "remap above the pool": remap(1, 0, LAST_SLOT + 1),
    "freeing a free row": {"freed_rows": ints(3)},
    "freeing a row in use": {"freed_rows": ints(0)},
    "freeing a row above the table": {"freed_rows": ints(99)},
    "NaN temperature": {"new_rows": (new_row(2, (3, 4), temperature=math.nan),)},
    "negative top_k": {"new_rows": (new_row(2, (3, 4), top_k=-1),)},
    "no repetition penalty": {"new_rows": (new_row(2, (3, 4), repetition_penalty=0.0),)},
    "NaN penalty": {"new_rows": (known_row(presence_penalty=math.nan),)},
    "infinite penalty": {"new_rows": (known_row(frequency_penalty=math.inf),)},
    "negative min_tokens": {"new_rows": (new_row(2, (3, 4), min_tokens=-1),)},
    "more alternatives than tokens": {"new_rows": (new_row(2, (3, 4), logprobs=VOCAB + 1),)},
    "alternatives below none": {"new_rows": (new_row(2, (3, 4), logprobs=-2),)},
    "penalty without context": {"new_rows": (new_row(2, (3, 4), presence_penalty=1.0),)},
    "context without a prompt": {"new_rows": (replace(known_row(), num_prompt=0),)},
    "prompt beyond the context": {"new_rows": (replace(known_row(), num_prompt=4),)},
    "context differs from inputs": {"new_rows": (replace(known_row(), context_ids=ints(1, 1, 8)),)},
    "context ends before inputs": {"new_rows": (replace(known_row(), context_ids=ints(1, 1)),)},
    "context above the vocabulary": {
        "new_rows": (replace(known_row(), context_ids=ints(1, VOCAB, 9)),)
    },
    "context does not end where it samples": {
        "samples": b"\1\1\1",
        "new_rows": (replace(known_row(), context_ids=ints(1, 1, 9, 9)),),
    },
    "suppressed above the vocabulary": {
        "new_rows": (replace(new_row(2, (3, 4), min_tokens=1), suppressed_ids=(VOCAB,)),)
    },
    "suppressed below it": {
        "new_rows": (replace(new_row(2, (3, 4), min_tokens=1), suppressed_ids=(-1,)),)
    },
    "samples after more than it computes": {"samples": b"\2\1\0"},
    "drafts in a context": {
        "samples": b"\1\1\2",
        "extend_lens": ints(1, 2, 2),
        "input_ids": ints(-1, 7, 8, 9, 9),
        "out_slots": ints(7, 8, 9, 10, 11),
        "new_rows": (replace(known_row(), context_ids=ints(1, 1, 9, 9)),),
    },
    "draft above the vocabulary": {"samples": b"\1\2\0", "input_ids": ints(-1, 7, VOCAB, 9)},
    "draft from before": {"samples": b"\1\2\0", "input_ids": ints(-1, 7, -1, 9)},
    "seed of 64 bits": {"new_rows": (new_row(2, (3, 4), seed=1 << 63),)},
}


@pytest.mark.parametrize("case", BAD)
def test_bad_plan_is_refused_and_changes_nothing(case: str) -> None:
    table = make_table()
    with pytest.raises(PlanError):
        table.apply(replace(GOOD, **BAD[case]))
    test = make_table().apply(GOOD)
    after = table.apply(GOOD)
    assert after.token_ids.tolist() == test.token_ids.tolist()
    assert [row.slots.tolist() for row in after.rows] == [row.slots.tolist() for row in test.rows]


small = st.integers(-3, 30)
column = st.lists(small, max_size=5).map(lambda values: ints(*values))


@given(
    rows=column,
    prefix_lens=column,
    extend_lens=column,
    samples=st.binary(max_size=5),
    input_ids=column,
    out_slots=column,
    freed_rows=column,
    new=st.lists(st.tuples(small, st.lists(small, max_size=3)), max_size=2),
    moved=st.lists(st.tuples(small, small, st.lists(small, max_size=3)), max_size=2),
)
def test_any_plan_is_refused_or_in_bounds(
    new: list[tuple[int, list[int]]], moved: list[tuple[int, int, list[int]]], **columns: Any
) -> None:
    plan = BatchPlan(
        step_id=2,
        new_rows=tuple(new_row(row, tuple(prefix)) for row, prefix in new),
        remaps=tuple(Remap(row=row, start=at, slots=ints(*slots)) for row, at, slots in moved),
        **columns,
    )
    try:
        step = make_table().apply(plan)
    except PlanError:
        return
    assert all(0 <= slot <= LAST_SLOT for slot in step.out_slots)
    assert all(0 <= token < VOCAB for token in step.token_ids)
    for row in step.rows:
        assert 0 < row.length <= MAX_LENGTH
        assert all(0 <= slot <= LAST_SLOT for slot in row.slots)
