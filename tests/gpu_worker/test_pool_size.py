"""A pool that takes what memory is left: the arithmetic, and the whole way with a fake meter."""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from gpu_worker.device import device_backend, step_sampler
from gpu_worker.device.decode_graphs import MOST_ITEMS, shape_of
from gpu_worker.device.device_backend import DeviceBackend, DeviceOptions
from gpu_worker.device.pool_size import MemoryUse, NoRoom, PoolFit, fitting_slots
from gpu_worker.device.profiling import NUM_SCORED, largest_steps, measured_slots
from gpu_worker.device.step_inputs import CutSizes, step_columns
from gpu_worker.step import Step
from protos.plan import MAX_PAGE_SIZE
from scheduler_svc.core.chunking import MOST_SCORED_TOKENS
from tests.gpu_worker.random_models import RandomWeights, all_logits, shape

GIB = 2**30
FIT = PoolFit(memory_fraction=0.9, max_tokens=8, max_rows=3)
H200 = MemoryUse(total_bytes=140 * GIB, loaded_bytes=16 * GIB, peak_bytes=18 * GIB)


class FakeMeter:
    """Says what it was told to, one after the other."""

    total_bytes = 1 << 20

    def __init__(self, *used: int) -> None:
        self.used = list(used)
        self.events: list[str] = []

    def tidy(self) -> None:
        self.events.append("tidy")

    def used_bytes(self) -> int:
        self.events.append("used")
        return self.used.pop(0)


def test_the_pool_gets_what_weights_and_step_leave() -> None:
    slots = fitting_slots(H200, FIT, bytes_per_slot=1 << 17)
    taken = (slots + MAX_PAGE_SIZE) << 17
    left = 140 * GIB * 9 // 10 - 18 * GIB
    assert 0 <= left - taken < MAX_PAGE_SIZE << 17
    assert slots % MAX_PAGE_SIZE == 0


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.77, 1.0])
@pytest.mark.parametrize("bytes_per_slot", [1, 23040, 131072, 10**7])
def test_no_pool_is_larger_than_allowed(fraction: float, bytes_per_slot: int) -> None:
    for peak in (0, 1, GIB // 3, 5 * GIB):
        use = replace(H200, total_bytes=80 * GIB, loaded_bytes=0, peak_bytes=peak)
        slots = fitting_slots(use, replace(FIT, memory_fraction=fraction), bytes_per_slot)
        taken = peak + (slots + MAX_PAGE_SIZE) * bytes_per_slot
        assert taken <= 80 * GIB * fraction < taken + MAX_PAGE_SIZE * bytes_per_slot


def test_too_little_is_one_line_with_figures_and_what_to_change() -> None:
    use = MemoryUse(total_bytes=24 * GIB, loaded_bytes=16 * GIB, peak_bytes=22 * GIB)
    with pytest.raises(NoRoom) as caught:
        fitting_slots(use, replace(FIT, max_tokens=512), bytes_per_slot=1 << 17)
    line = str(caught.value)
    assert re.findall(r"[\d.]+ GiB", line) == ["24.00 GiB", "16.00 GiB", "6.00 GiB", "0.02 GiB"]
    assert all(option in line for option in ("--weights", "--max-batch-tokens", "--memory-fr"))
    assert "\n" not in line


def test_one_page_is_the_least_pool() -> None:
    page = MAX_PAGE_SIZE * 1000
    for spare, slots in ((2 * page, MAX_PAGE_SIZE), (2 * page - 1, None)):
        use = MemoryUse(total_bytes=100 * page, loaded_bytes=0, peak_bytes=100 * page - spare)
        whole = replace(FIT, memory_fraction=1.0)
        if slots is None:
            with pytest.raises(NoRoom):
                fitting_slots(use, whole, 1000)
        else:
            assert fitting_slots(use, whole, 1000) == slots


@pytest.mark.parametrize(
    ("max_tokens", "max_rows", "max_length"),
    [(8, 3, 20), (512, 64, 4096), (4, 64, 10), (100, 2, 30), (1, 1, 2)],
)
def test_the_largest_steps_are_whole(max_tokens: int, max_rows: int, max_length: int) -> None:
    fit = PoolFit(memory_fraction=1, max_tokens=max_tokens, max_rows=max_rows)
    *recorded, decodes, prompts = largest_steps(fit, max_length)
    num_rows = min(max_rows, max_tokens)
    assert len(prompts.token_ids) == min(max_tokens, max_length + num_rows - 1)
    assert {row.length for row in (*prompts.rows, *decodes.rows)} == {max_length}
    for step in (decodes, *recorded):
        assert [row.extend_len for row in step.rows] == [1] * num_rows
    for step in (prompts, decodes, *recorded):
        assert len(step.rows) == num_rows
        assert len(step.token_ids) == len(step.positions) == len(step.out_slots)
        for row in step.rows:
            places = step.positions[row.first_token : row.first_token + row.extend_len]
            assert places.tolist() == list(range(row.prefix_len, row.length))
            assert row.num_logits <= row.extend_len
        # Nothing but the dump slot is touched, which every pool has.
        assert not any(np.any(row.slots) for row in step.rows)
        assert not np.any(step.out_slots)
    assert NUM_SCORED == MOST_SCORED_TOKENS


def test_a_step_of_the_most_draws_is_among_them_where_rows_have_several() -> None:
    fit = PoolFit(memory_fraction=1, max_tokens=100, max_rows=8, max_draws=36)
    (_, drafts, _), plain = largest_steps(fit, 4096), largest_steps(replace(fit, max_draws=8), 4096)
    assert [(row.extend_len, row.num_samples, row.num_logits) for row in drafts.rows] == [
        (5, 5, 5)
    ] * 8
    assert len(plain) == 2
    (_, few, _) = largest_steps(replace(fit, max_tokens=20, max_draws=1000), 4096)
    assert {row.num_samples for row in few.rows} == {2}


def test_the_longest_recorded_step_is_among_them() -> None:
    """Where steps of the longest contexts are too large to be recorded."""
    fit = PoolFit(memory_fraction=1, max_tokens=512, max_rows=256)
    recorded, longest, _ = largest_steps(fit, 131_072)
    lengths = [{row.length for row in step.rows} for step in (longest, recorded)]
    assert lengths == [{131_072}, {MOST_ITEMS // 256 * CutSizes(groups=1).split}]
    width = 131_072  # of a row of the store
    assert shape_of(step_columns(longest, CutSizes(groups=1), width)) is None
    shape = shape_of(step_columns(recorded, CutSizes(groups=1), width))
    assert shape is not None
    assert shape.items == MOST_ITEMS


@pytest.mark.parametrize("max_length", [600, 131_072])
def test_nothing_is_recorded_behind_a_step_that_is_not(max_length: int) -> None:
    """As recording gives back what the allocator kept, which is what is measured."""
    fit = PoolFit(memory_fraction=1, max_tokens=512, max_rows=256)

    def is_recorded(step: Step) -> bool:
        is_decode = all(row.extend_len == 1 for row in step.rows)
        columns = step_columns(step, CutSizes(groups=1), max_length)
        return is_decode and shape_of(columns) is not None

    are_recorded = list(map(is_recorded, largest_steps(fit, max_length)))
    assert are_recorded == sorted(are_recorded, reverse=True)
    assert set(are_recorded) == {True, False}


def test_weights_are_there_when_it_is_measured_and_the_step_is_run() -> None:
    meter = FakeMeter(1000, 5000)
    seen: list[Step] = []
    with capture_logs() as events:
        slots = measured_slots(
            lambda step: (seen.append(step), meter.events.append("step")),
            meter,
            FIT,
            max_length=20,
            bytes_per_slot=10,
        )
    assert meter.events == ["tidy", "used", "step", "step", "used"]
    assert [len(step.token_ids) for step in seen] == [FIT.max_rows, FIT.max_tokens]
    assert slots == (int((1 << 20) * 0.9) - 5000) // 640 * 64 - 64
    (event,) = events
    assert (event["event"], event["num_slots"]) == ("pool_fitted", slots)
    assert (event["loaded_bytes"], event["peak_bytes"]) == (1000, 5000)


CONFIG = shape(num_layers=1, num_heads=2, num_kv_heads=1, hidden_size=32, intermediate_size=32)


def fitted(meter: FakeMeter, num_slots: int = 0) -> DeviceBackend:
    options = DeviceOptions(
        num_slots=num_slots,
        max_rows=FIT.max_rows,
        max_length=12,
        device="cpu",
        dtype=torch.float32,
        fit=FIT if not num_slots else None,
        poison=True,
    )
    return DeviceBackend(CONFIG, RandomWeights(), options, meter)


def test_a_backend_with_the_pool_that_fits_computes_the_same() -> None:
    meter = FakeMeter(100_000, 200_000)
    backend, plain = fitted(meter), fitted(FakeMeter(), num_slots=64)
    assert meter.events == ["tidy", "used", "used", "tidy"]  # what steps took makes room
    # Keys and values of one layer and one head of 16 in fp32.
    assert backend.kv_bytes_per_slot == 128
    assert backend.num_slots == (int((1 << 20) * 0.9) - 200_000) // (64 * 128) * 64 - 64
    tokens = [3, 1, 4, 1, 5]
    np.testing.assert_array_equal(all_logits(backend, tokens), all_logits(plain, tokens))


def test_what_drawing_takes_is_measured_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows that ask for everything: adjusted logits, histories, log probabilities."""
    seen: list[tuple[str, int]] = []

    def watched(name: str) -> None:
        kernel = getattr(step_sampler, name)

        def run(rows: torch.Tensor, *others: object) -> object:
            seen.append((name, len(rows)))
            return kernel(rows, *others)

        monkeypatch.setattr(step_sampler, name, run)

    for name in ("adjust_logits", "sample", "logprobs"):
        watched(name)
    backend = fitted(FakeMeter(100_000, 200_000))
    of_draws = [(name, FIT.max_rows) for name in ("adjust_logits", "sample", "logprobs")]
    scored = FIT.max_tokens - FIT.max_rows + 1  # of a prompt, before its row and others draw
    assert seen == [*of_draws, ("logprobs", scored), *of_draws]
    histories = backend._rows.histories
    assert len(histories.counts) >= FIT.max_rows
    assert [histories.place(row) for row in range(FIT.max_rows)] == [-1] * FIT.max_rows


def test_recording_that_failed_while_memory_was_measured_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class NoGraphs:
        def record(self, work: object) -> Callable[[], torch.Tensor]:
            raise RuntimeError("operation not permitted")

    monkeypatch.setattr(device_backend, "CallRecorder", NoGraphs)
    with capture_logs() as said:
        backend = fitted(FakeMeter(100_000, 200_000))
        all_logits(backend, [3, 1])
        backend.forward(largest_steps(FIT, 12)[0])
    assert [event["event"] for event in said] == ["steps_not_recorded", "pool_fitted"]


def test_a_backend_without_room_says_so() -> None:
    with pytest.raises(NoRoom, match=r"no room for a pool: 0\.9 of the GPU's 0\.00 GiB"):
        fitted(FakeMeter(100_000, 1 << 20))
