"""The arithmetic of a run on a card, which needs none: work, times, roofs, errors, shares."""

import math

import pytest
import torch

from tests.gpu.case import Aim
from tests.gpu.comparison import Comparison, coded, equal, near, worst
from tests.gpu.engine_load import covered, differing, share_outside
from tests.gpu.engine_model import FULL, config, model_shape
from tests.gpu.place import Place, in_float64
from tests.gpu.roofs import Roofs, parse_clocks, roofline_us
from tests.gpu.timing import Budget, num_leads, num_runs, summary
from tests.gpu.work import (
    AttentionShape,
    Work,
    attention_work,
    logits_work,
    product_work,
    quantised_bytes,
    shared_attention_work,
    slot_bytes,
    step_work,
)

ROOFS = Roofs(copy_bytes_per_s=4e12, read_bytes_per_s=4.2e12, bf16_flops_per_s=8e14)


def attention(lengths: list[int], queries: list[int], **changes: object) -> AttentionShape:
    values: dict[str, object] = {
        "lengths": lengths,
        "queries": queries,
        "num_heads": 32,
        "num_kv_heads": 8,
        "head_dim": 128,
    }
    return AttentionShape(**(values | changes))  # type: ignore[arg-type]


def test_a_decode_moves_its_context_once() -> None:
    work = attention_work(attention([1000, 24], [1, 1]))
    kept = 2 * 8 * 128 * 2  # a slot: keys and values of 8 heads in bf16
    assert work.num_bytes == 1024 * (kept + 4) + 2 * (2 * 32 * 128 * 2)
    assert work.flops == 4 * 32 * 128 * 1024
    paged = attention_work(attention([1000, 24], [1, 1], page_size=16))
    assert work.num_bytes - paged.num_bytes == 4 * (1024 - 63 - 2)


def test_coded_slots_are_codes_and_scales() -> None:
    assert slot_bytes(8, 128, "int8", 2) == 8 * (128 + 4)
    assert slot_bytes(8, 128, "none", 2) == 8 * 256
    none, int8 = (
        attention_work(attention([100], [1], kind=kind)).num_bytes for kind in ("none", "int8")
    )
    assert none - int8 == 100 * 2 * 8 * (256 - 132)


def test_a_prompt_sees_half_of_its_square() -> None:
    assert attention_work(attention([3], [3])).flops == 4 * 32 * 128 * (1 + 2 + 3)
    assert attention_work(attention([5], [2])).flops == 4 * 32 * 128 * (4 + 5)


def test_a_shared_stem_is_moved_once_and_computed_by_all() -> None:
    shape = attention([110, 110, 110], [1, 1, 1])
    work, apart = shared_attention_work(shape, 100), attention_work(shape)
    assert work.flops == apart.flops
    assert apart.num_bytes - work.num_bytes == 200 * (2 * 8 * 128 * 2 + 4)


def test_products_move_weights_and_activations() -> None:
    assert quantised_bytes(64, 10, 8, 32) == 10 * 64 + 10 * 2 * 4
    assert quantised_bytes(64, 10, 4, 32) == 10 * 32 + 10 * 2 * 4
    work = product_work(3, 64, 10, 1000, 2)
    assert work == Work(num_bytes=1000 + 3 * 74 * 2, flops=2 * 3 * 640)
    assert logits_work(256, 128_256).num_bytes == 256 * 128_256 * 4


def test_a_step_of_a_model_reads_its_weights_once() -> None:
    model = model_shape(FULL.model, 2)
    parameters = 32 * model.layer_parameters + 2 * model.head_parameters
    assert abs(parameters - FULL.model.num_parameters) == 0
    assert 8.0e9 < parameters < 8.1e9
    one, two = (step_work(model, [512] * rows, [1] * rows) for rows in (1, 2))
    weights = 2 * (32 * model.layer_parameters + model.head_parameters)
    assert two.num_bytes - one.num_bytes == one.num_bytes - weights
    assert two.flops == 2 * one.flops


def test_a_roofline_is_the_higher_of_two() -> None:
    assert roofline_us(Work(num_bytes=4_000_000), ROOFS) == (pytest.approx(1.0), "memory")
    work = Work(num_bytes=4_000_000, flops=8 * 10**9)
    assert roofline_us(work, ROOFS) == (pytest.approx(10.0), "matrix units")


def test_medians_and_deciles() -> None:
    times = summary([5.0, 1.0, 2.0, 3.0, 4.0, 9.0, 7.0, 8.0, 6.0, 100.0])
    assert (times.median_us, times.low_us, times.high_us) == (5.5, 1.0, 9.0)
    assert times.num_runs == 10
    assert summary([2.0]).low_us == summary([2.0]).high_us == 2.0
    with pytest.raises(ValueError, match="no run"):
        summary([])


def test_runs_fill_the_time_within_bounds() -> None:
    assert num_runs(1000.0, 0.05) == 50
    assert num_runs(1e6, 0.3) == 7
    assert num_runs(0.0, 0.3) == 200


def test_the_card_reads_for_longer_than_the_host_launches() -> None:
    assert num_leads(10.0, 100.0) == 1
    assert num_leads(200.0, 100.0) == 3
    assert num_leads(1e9, 100.0) == 64


def test_a_budget_keeps_what_comes_later() -> None:
    now_s = [10.0]
    budget = Budget(seconds=100.0, started_s=10.0, now_s=lambda: now_s[0])
    now_s[0] = 40.0
    assert (budget.spent_s(), budget.left_s(), budget.left_s(kept_s=60.0)) == (30.0, 70.0, 10.0)
    assert budget.left_s(kept_s=80.0) == 0.0


def test_aims_are_reached_from_below_or_above() -> None:
    share = Aim(quantity="share of roofline", limit=0.85, text="")
    assert share.is_met(share=0.85, time_us=9e9)
    assert not share.is_met(share=0.84, time_us=0.0)
    fast = Aim(quantity="us", limit=60.0, text="")
    assert fast.is_met(share=0.0, time_us=59.9)
    assert not fast.is_met(share=1.0, time_us=60.0)


def test_clocks_are_read_by_field() -> None:
    line = "1980 MHz, 3201 MHz, 1980 MHz, 700.10 W, 45, 575.57.08\n0 MHz, 0, 0, 0, 0, 0\n"
    found = parse_clocks(line)
    assert found["clocks.sm"] == "1980 MHz"
    assert found["driver_version"] == "575.57.08"
    assert parse_clocks("No devices were found\n") == {}


def test_what_is_wrong_is_never_within_bounds() -> None:
    wanted = torch.tensor([1.0, 2.0, 3.0])
    assert near(wanted, wanted.double()).is_right
    assert near(wanted + 1e-6, wanted.double()).is_right
    assert not near(wanted + 1e-3, wanted.double()).is_right
    for number in (torch.nan, torch.inf):
        broken = wanted.clone()
        broken[1] = number
        assert not near(broken, wanted.double()).is_right
        assert near(broken, broken.double()).is_right
    assert not near(wanted, wanted[:2].double()).is_right
    assert worst([near(wanted, wanted), near(wanted * torch.nan, wanted)]).badness == math.inf
    assert not Comparison(error=math.nan, allowed=math.inf).is_right


def test_equal_counts_what_differs() -> None:
    ours, wanted = torch.arange(10), torch.arange(10)
    assert equal(ours, wanted).is_right
    ours[3] = 0
    assert not equal(ours, wanted).is_right
    assert equal(ours, wanted, share=0.1).is_right
    assert not equal(ours.int(), wanted, share=1.0).is_right


def test_codes_may_be_neighbours() -> None:
    place = Place(device=torch.device("cpu"), is_tiny=True)
    ours, wanted = (place.slots((1, 1, 1000), "fp8") for _ in range(2))
    codes, scale = ours.codes[0, 0], ours.scale
    codes[0] = 0x80  # minus zero of fp8
    assert coded(ours, wanted).error == 0.0
    codes[0] = 0x81
    assert coded(ours, wanted).is_right
    codes[0] = 2
    assert not coded(ours, wanted).is_right
    codes[:20] = 1
    assert not coded(ours, wanted).is_right
    codes.zero_()
    assert scale is not None
    scale += 1
    assert not coded(ours, wanted).is_right


def test_references_compute_in_float64_inside() -> None:
    x = torch.tensor([1.0, 1e-9])
    with in_float64(torch.device("cpu")):
        total = x.float().sum()
        room = torch.zeros(1, dtype=torch.float32)
        room[0] = total
    assert total.dtype == torch.float64
    assert float(total) == 1.0 + float(x[1])
    assert room.dtype == torch.float32
    assert x.float().dtype == torch.float32


def test_places_differ_in_size() -> None:
    cpu = torch.device("cpu")
    assert Place(device=cpu, is_tiny=True).pick(5, 2) == 2
    assert Place(device=cpu, is_tiny=False).pick(5, 2) == 5
    some = Place(device=cpu, is_tiny=True).some(3, 10)
    assert len(set(some.tolist())) == 3
    assert some.dtype == torch.int32


def test_what_runs_side_by_side_is_busy_once() -> None:
    assert covered([(0, 10), (5, 12), (6, 7), (20, 21)]) == 13
    assert covered([]) == 0
    assert share_outside(100.0, 95.0) == pytest.approx(0.05)
    assert share_outside(100.0, 101.0) == 0.0
    assert differing([1, 2, 3, 4], [1, 2, 0, 4]) == 0.25


def test_an_engine_has_slots_for_all_that_it_is_asked() -> None:
    sizes = FULL
    assert sizes.num_slots * 131_072 < 40 << 30  # bytes of the pool beside 16 GB of weights
    assert sizes.most_rows == 260
    assert config(num_layers=2).num_layers == 2
