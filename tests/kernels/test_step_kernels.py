"""What joins two steps on the device: last tokens, slot tables, drafts, histories."""

import pytest
import torch

from kernels.keep_samples import keep_samples, keep_samples_reference
from kernels.take_inputs import take_inputs, take_inputs_reference


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("take", [take_inputs, take_inputs_reference])
def test_unknown_tokens_are_the_rows_last_ones(take: object) -> None:
    num_tokens = 300  # more than one block
    token_ids = torch.arange(num_tokens, dtype=torch.int32)
    token_ids[[0, 299]] = -1
    rows = ints(*(token // 100 for token in range(num_tokens)))
    positions = ints(*(7 + token % 100 for token in range(num_tokens)))
    slots = torch.arange(1000, 1000 + num_tokens, dtype=torch.int32)
    table = torch.zeros(4, 120, dtype=torch.int32)
    take(token_ids, rows, positions, slots, ints(70, 71, 72, 73), table)  # type: ignore[operator]
    assert token_ids[[0, 1, 298, 299]].tolist() == [70, 1, 298, 72]
    for row in range(3):
        assert table[row, 7:107].tolist() == slots[100 * row : 100 * row + 100].tolist()
    assert table.count_nonzero() == num_tokens


@pytest.mark.parametrize("keep", [keep_samples, keep_samples_reference])
def test_samples_count_as_far_as_their_drafts_are_right(keep: object) -> None:
    last_tokens, history = ints(0, 0, 0, 0, 99), torch.ones(2, 50, dtype=torch.int32)
    counts = keep(  # type: ignore[operator]
        samples=ints(5, 8, 6, 6, 6, 3, 4),
        drafts=ints(-1, 8, 6, 6, -1, 9, -1),
        start=ints(0, 1, 5, 7),
        rows=ints(3, 1, 0),
        last_tokens=last_tokens,
        history=history,
        history_row=ints(-1, 1, 0),
    )
    assert counts.tolist() == [1, 4, 1]
    assert last_tokens.tolist() == [3, 6, 0, 5, 99]
    assert history[0].nonzero().numel() == 50
    assert {token: int(n) for token, n in enumerate(history[0]) if n != 1} == {3: 3}
    assert {token: int(n) for token, n in enumerate(history[1]) if n != 1} == {8: 3, 6: 7}


def test_columns_that_do_not_fit_are_refused() -> None:
    one, table = ints(0), torch.zeros(2, 4, dtype=torch.int32)
    with pytest.raises(ValueError, match="positions"):
        take_inputs(one, one, ints(0, 1), one, ints(0, 0), table)
    with pytest.raises(ValueError, match="last_tokens"):
        take_inputs(one, one, one, one, one, table)
    with pytest.raises(ValueError, match="drafts"):
        keep_samples(one, ints(), ints(0, 1), one, one, table, one)
    with pytest.raises(ValueError, match="history"):
        keep_samples(one, one, ints(0, 1), one, one, table.float(), one)
