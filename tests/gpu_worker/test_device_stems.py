"""Stems on the interpreted kernels: the same logits, from fewer positions."""

from __future__ import annotations

from array import array
from dataclasses import replace

import numpy as np
import pytest

from gpu_worker.backend import Backend
from gpu_worker.device.attention_plan import Cuts, Rows, Stem, plan_attention
from gpu_worker.device.device_backend import DeviceBackend
from gpu_worker.device.device_forward import DeviceForward, Prepared
from gpu_worker.device.stem_cost import StemCost
from gpu_worker.device.step_inputs import CutSizes, step_columns
from gpu_worker.model_engine import EngineLimits, ModelEngine, ModelIdentity
from gpu_worker.row_table import RowTable
from gpu_worker.step import Step
from gpu_worker.step_stems import NO_STEMS
from kernels.kv_codes import KvKind
from protos.plan import STEM_FIELDS, BatchPlan, NewRow, SamplingParams
from scheduler_svc.core.config import SchedulerConfig
from scheduler_svc.core.messages import Submission
from scheduler_svc.core.scheduler import Scheduler
from tests.gpu_worker.interpreted import INTERPRETED
from tests.gpu_worker.random_models import RandomWeights, make_torch_backend, shape
from tests.gpu_worker.tiny_models import random_tokens

CONFIG = shape(
    num_layers=1, num_heads=2, num_kv_heads=1, hidden_size=16, intermediate_size=16, vocab_size=30
)
NUM_SLOTS, ROWS, WIDTH = 100, 6, 48
TRUNK, BRANCH = 16, 12
STEMS = [0, 5, 0, TRUNK, 1, 3, TRUNK, TRUNK + BRANCH]
"""Of five rows on a trunk, and the three in the middle of them on a branch of it."""
COST = StemCost(rows_of_item=32, split=512, kv_bytes=128, partial_bytes=136)
LENGTHS = [18, 31, 29, 30, 17]


def device(
    *, graphs: bool = False, kind: KvKind = "none", deterministic: bool = False
) -> DeviceBackend:
    options = replace(
        INTERPRETED,
        num_slots=NUM_SLOTS,
        max_rows=ROWS,
        max_length=WIDTH,
        kv_kind=kind,
        graphs=graphs,
        deterministic=deterministic,
    )
    return DeviceBackend(CONFIG, RandomWeights(), options)


def plans() -> list[BatchPlan]:
    """The trunk with the branch behind it by row 5; the tails of five rows; their next tokens."""
    prompt = random_tokens(TRUNK + BRANCH, 1, CONFIG.vocab_size)
    slots = (np.random.default_rng(3).permutation(NUM_SLOTS - 1) + 1).tolist()
    shared, own = slots[: TRUNK + BRANCH], iter(slots[TRUNK + BRANCH :])
    starts = [TRUNK + BRANCH if 1 <= row <= 3 else TRUNK for row in range(5)]
    tails = [length - start for length, start in zip(LENGTHS, starts, strict=True)]

    def plan(step_id: int, **columns: object) -> BatchPlan:
        fixed = {name: array("i", some) for name, some in columns.items() if name != "new_rows"}  # type: ignore[call-overload]
        return BatchPlan(
            step_id=step_id,
            samples=b"\1" * len(fixed["rows"]),
            freed_rows=array("i"),
            new_rows=columns.get("new_rows", ()),  # type: ignore[arg-type]
            **fixed,
        )

    def new(row: int, start: int) -> NewRow:
        prefix = array("i", shared[:start])
        return NewRow(row=row, prefix_slots=prefix, sampling=SamplingParams())

    first = {"rows": [5], "prefix_lens": [0], "extend_lens": [len(prompt)]}
    second = {"rows": range(5), "prefix_lens": starts, "extend_lens": tails}
    third = {"rows": range(5), "prefix_lens": LENGTHS, "extend_lens": [1] * 5}
    return [
        plan(1, **first, input_ids=prompt, out_slots=shared, new_rows=(new(5, 0),)),
        plan(
            2,
            **second,
            input_ids=random_tokens(sum(tails), 2, CONFIG.vocab_size),
            out_slots=[next(own) for _ in range(sum(tails))],
            new_rows=tuple(new(row, start) for row, start in enumerate(starts)),
        ),
        plan(
            3,
            **third,
            input_ids=[7, 8, 9, 10, 11],
            out_slots=[next(own) for _ in range(5)],
            stems=STEMS,
        ),
    ]


def steps() -> list[Step]:
    table = RowTable(
        num_slots=NUM_SLOTS, max_rows=ROWS, max_length=WIDTH, vocab_size=CONFIG.vocab_size
    )
    return [table.apply(plan) for plan in plans()]


@pytest.mark.parametrize(("graphs", "kind"), [(False, "int8"), (True, "none")])
def test_logits_are_those_without_stems(graphs: bool, kind: KvKind) -> None:
    backend = device(graphs=graphs, kind=kind)
    *prompts, decode = steps()
    for step in prompts:
        backend.forward(step)
    with_stems = backend.forward(decode).copy()
    without = backend.forward(replace(decode, stems=NO_STEMS)).copy()
    np.testing.assert_allclose(with_stems, without, atol=2e-4, rtol=0)
    assert (with_stems.argmax(-1) == without.argmax(-1)).all()
    assert (with_stems != without).any(), "one of them was computed as the other"


def test_a_stem_is_read_once() -> None:
    *_, decode = steps()
    sizes = CutSizes(groups=CONFIG.num_groups)

    def num_read(step: Step, sizes: CutSizes) -> int:
        (work,) = step_columns(step, sizes, WIDTH).work
        items = np.concatenate([work.plan.items, work.plan.stem_items])
        return int((np.minimum(items[:, 4], items[:, 5] + items[:, 1]) - items[:, 3]).sum())

    alone = sum(LENGTHS) + 5
    assert num_read(decode, sizes) == alone
    assert num_read(replace(decode, stems=NO_STEMS), replace(sizes, stems=COST)) == alone
    assert num_read(decode, replace(sizes, stems=COST)) == alone - 4 * TRUNK - 2 * BRANCH
    windowed = replace(sizes, stems=COST, windows=(64,))
    assert num_read(decode, windowed) == num_read(decode, replace(windowed, stems=None))


def test_stems_are_found_behind_a_prompt() -> None:
    """Its rows are cut apart, so entries of the plan are other rows of the decodes."""
    *before, decode = plans()
    table = RowTable(
        num_slots=NUM_SLOTS, max_rows=ROWS, max_length=WIDTH, vocab_size=CONFIG.vocab_size
    )
    for plan in before:
        table.apply(plan)
    num_more = 9
    beside = replace(
        decode,
        rows=array("i", [5, *decode.rows]),
        prefix_lens=array("i", [TRUNK + BRANCH, *decode.prefix_lens]),
        extend_lens=array("i", [num_more, *decode.extend_lens]),
        samples=b"\0" + decode.samples,
        input_ids=array("i", [1] * num_more) + decode.input_ids,
        out_slots=array("i", [0] * num_more) + decode.out_slots,
        stems=array("i", [1, 5, 0, TRUNK, 2, 3, TRUNK, TRUNK + BRANCH]),
    )
    sizes = CutSizes(groups=CONFIG.num_groups, stems=COST)
    alone, together = (
        step_columns(step, sizes, WIDTH) for step in (steps()[-1], table.apply(beside))
    )
    wanted = alone.work[0].plan.stem_items.copy()
    wanted[:, 0] += num_more  # queries of the prompt come first
    assert len(wanted) == 2
    assert (together.work[0].plan.stem_items == wanted).all()
    assert not len(together.work[1].plan.stem_items)


def test_items_that_read_the_same_positions_are_neighbours() -> None:
    rows = Rows(
        first_query=np.arange(40),
        num_queries=np.ones(40, np.int32),
        length=np.full(40, 900),
        table_offset=np.arange(40) * 900,
    )
    cuts = Cuts(groups=4, block_queries=16, stem_block_queries=64, split=512)
    items = plan_attention(rows, cuts, [Stem(0, 40, 0, 800)]).stem_items
    assert items[:, [0, 1, 3, 4]].tolist() == [
        [first, count, begin, end]
        for begin, end in ((0, 512), (512, 800))
        for first, count in ((0, 16), (16, 16), (32, 8))
    ]


def engine_on(backend: Backend) -> ModelEngine:
    limits = EngineLimits(num_slots=NUM_SLOTS, max_rows=ROWS, max_length=WIDTH)
    return ModelEngine(CONFIG, backend, limits, ModelIdentity(model_id="tiny", model_hash="x"))


def test_stems_are_asked_for_where_they_may_change_bits() -> None:
    # 32 rows an item: 2 * 136 * 32 / 31 bytes of partial results, at 128 a position.
    assert engine_on(device()).hello().least_stem_tokens == 3
    assert engine_on(device(deterministic=True)).hello().least_stem_tokens == 0


def generate(engine: ModelEngine) -> tuple[dict[str, list[int]], int]:
    """What a scheduler and an engine make of five prompts, and the stems in their plans."""
    config = SchedulerConfig(speculation="off", max_batch_tokens=64, chunk_size=64)
    core = Scheduler(config, engine.hello())
    trunk = random_tokens(9, 1, CONFIG.vocab_size)
    said: dict[str, list[int]] = {}
    num_stems = 0
    for number in range(5):
        prompt = array("i", [*trunk[: 9 if number % 2 else 2], number, 3])
        name = f"r{number}"
        core.submit(Submission(request_id=name, prompt_ids=prompt, max_tokens=5), number)
    for now_ns in range(10, 30):
        plan = core.schedule(now_ns).plan
        if plan is None:
            return said, num_stems
        num_stems += len(plan.stems) // STEM_FIELDS
        for output in core.apply(engine.execute(plan), now_ns):
            said.setdefault(output.request_id, []).extend(output.token_ids)
    raise AssertionError("does not come to an end")


@pytest.mark.parametrize("is_recorded_before", [False, True])
def test_a_scheduler_and_a_device_say_what_the_cpu_says(
    is_recorded_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also as on a GPU, where the shapes of the start take what comes, stems and all."""
    with_stems: list[bool] = []
    prepare = DeviceForward.prepare

    def watched(self: DeviceForward, step: Step) -> Prepared:
        prepared = prepare(self, step)
        if len(step.stems) and all(row.extend_len == 1 for row in step.rows):
            with_stems.append(prepared.is_recorded)
        return prepared

    monkeypatch.setattr(DeviceForward, "prepare", watched)
    backend = device(graphs=True)
    if is_recorded_before:
        backend.record_steps()
    at_start = backend.shapes
    told, num_stems = generate(engine_on(backend))
    assert (backend.shapes == at_start) is is_recorded_before
    assert set(with_stems) == {True}
    wanted, none = generate(engine_on(make_torch_backend(CONFIG, RandomWeights(), NUM_SLOTS)))
    assert told == wanted
    assert [len(tokens) for tokens in told.values()] == [5] * 5
    assert (num_stems > 0, none) == (True, 0)
