"""Stems on the wire: what cannot be is refused."""

from array import array

import pytest

from protos.errors import WireError
from tests.contract.test_wire import decode_plan, ids


@pytest.mark.parametrize(
    ("stem", "problem"),
    [
        ((0, 2, 0), "range"),
        ((0, 1, 0, 1), "range"),
        ((-1, 2, 0, 1), "range"),
        ((0, 2, -1, 1), "range"),
        ((0, 4, 0, 1), "more rows"),
        ((2, 2, 0, 1), "more rows"),
        ((2**31 - 1, 2, 0, 1), "more rows"),
        ((0, 2, 1, 1), "no tokens"),
    ],
)
def test_stems_that_cannot_be_are_refused(stem: tuple[int, ...], problem: str) -> None:
    three = {"rows": ids(1, 2, 3), "prefix_lens": ids(5, 5, 5), "extend_lens": ids(1, 1, 1)}
    three |= {"samples": b"\1\1\1", "input_ids": ids(1, 1, 1), "out_slots": ids(1, 2, 3)}
    assert decode_plan(**three, stems=ids(1, 2, 0, 5)).stems == array("i", [1, 2, 0, 5])
    with pytest.raises(WireError, match=problem):
        decode_plan(**three, stems=ids(*stem))
