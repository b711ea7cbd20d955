"""Which stems pay, at the limits of the rule."""

import pytest

from gpu_worker.device.attention_plan import Stem
from gpu_worker.device.stem_cost import StemCost, partial_bytes, paying

LLAMA_8B = StemCost(
    rows_of_item=16, split=512, kv_bytes=2 * 8 * 128 * 2, partial_bytes=partial_bytes(32, 128)
)


def stem(num_rows: int, begin: int, end: int, first_row: int = 0) -> Stem:
    return Stem(first_row=first_row, num_rows=num_rows, begin=begin, end=end)


def saved(num_rows: int, begin: int, end: int) -> int:
    return LLAMA_8B.saved_bytes(stem(num_rows, begin, end))


@pytest.mark.parametrize("end", [1, 512, 100_000])
def test_one_row_never_pays(end: int) -> None:
    assert saved(1, 0, end) <= 0


def test_a_long_prefix_of_many_rows_pays_nearly_all_of_its_readings() -> None:
    alone = 256 * 32_000 * LLAMA_8B.kv_bytes
    assert 0.93 * alone < saved(256, 0, 32_000) < 15 / 16 * alone


@pytest.mark.parametrize(("num_rows", "least"), [(2, 33), (16, 18), (17, 19), (256, 18)])
def test_a_prefix_pays_from_a_length_on(num_rows: int, least: int) -> None:
    """What is read less is worth two partial results a row, written and read."""
    assert saved(num_rows, 0, least) > 0
    assert saved(num_rows, 0, least - 1) <= 0


def test_an_end_at_a_cut_costs_nothing() -> None:
    assert saved(2, 0, 512) == 512 * LLAMA_8B.kv_bytes
    assert saved(2, 510, 512) == 2 * LLAMA_8B.kv_bytes
    assert saved(2, 500, 513) < saved(2, 500, 512)


def test_heads_that_fill_an_item_share_nothing() -> None:
    cost = StemCost(rows_of_item=1, split=512, kv_bytes=4096, partial_bytes=16_512)
    assert cost.least_tokens == 0
    assert cost.saved_bytes(stem(256, 0, 32_000)) < 0


@pytest.mark.parametrize("num_rows", [2, 3, 16, 64, 1000])
def test_what_is_not_told_would_not_pay(num_rows: int) -> None:
    end = 512 + LLAMA_8B.least_tokens - 1
    assert LLAMA_8B.least_tokens == 9
    assert saved(num_rows, 512, end) <= 0
    assert saved(16, 512, end + 1) > 0


def test_a_stem_that_does_not_pay_is_left_to_those_within_it() -> None:
    told = [
        stem(6, 0, 10),  # too short for six
        stem(3, 10, 200),
        stem(2, 200, 205, first_row=1),  # too short
        stem(2, 0, 600, first_row=8),
        stem(2, 10, 30, first_row=4),  # with what is around it still too short for two
    ]
    assert paying(told, LLAMA_8B) == [stem(3, 0, 200), stem(2, 0, 600, first_row=8)]
    assert paying([], LLAMA_8B) == []
