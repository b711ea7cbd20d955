"""The fake model's contract: plain output as it ever was, and everything else shows in it."""

from array import array
from dataclasses import replace

import pytest

from gpu_worker.engine import PlanError
from gpu_worker.fake_engine import FakeEngine
from gpu_worker.fake_model import GO_TOKEN, SCRIPT_TOKEN, Constraints, FakeModel
from protos.plan import BatchPlan, NewRow, SamplingParams

PROMPT = [1] * 5


def test_plain_output_never_changes() -> None:
    """Recorded traces hold these tokens."""
    drawn = SamplingParams(temperature=0.5, seed=3)
    assert FakeModel().generate(PROMPT, 6, drawn) == [106, 60, 66, 95, 75, 103]
    other = FakeModel(vocab_size=50, eos_token_ids=(3,), eos_every=5)
    assert other.generate(PROMPT, 12, drawn) == [39, 35, 24, 25, 19, 49, 3]


@pytest.mark.parametrize(
    "changes", [{"history": [1, 1, 1, 1, 2]}, {"num_prompt": 4}, {"history": [1] * 6}]
)
def test_with_penalties_history_matters(changes: dict[str, int]) -> None:
    model, params = FakeModel(vocab_size=1 << 20), SamplingParams(presence_penalty=0.5)
    known = Constraints(history=PROMPT, num_prompt=5)
    token = model.next_token(PROMPT, range(5), params, known)
    assert token != model.next_token(PROMPT, range(5), params, replace(known, **changes))  # type: ignore[arg-type]
    assert token != model.next_token(PROMPT, range(5), SamplingParams())
    assert token != model.next_token(
        PROMPT, range(5), SamplingParams(repetition_penalty=0.5), known
    )


def test_suppressed_tokens_are_not_said() -> None:
    model = FakeModel(vocab_size=2, eos_token_ids=(1,), eos_every=2)
    for suppressed, allowed in (((1,), {0}), ((0,), {1}), ((0, 1), {0})):
        constraints = Constraints(suppressed_ids=suppressed)
        said = {
            model.next_token(list(range(n)), range(n), SamplingParams(), constraints)
            for n in range(20)
        }
        assert said == allowed
    script = [SCRIPT_TOKEN, 65, GO_TOKEN]
    assert FakeModel().generate(script, 4) == [65, 257]
    late = FakeModel().generate(script, 4, SamplingParams(min_tokens=3))
    assert (late[0], late[3]) == (65, 257)
    assert 257 not in late[:3]


def test_a_stop_token_ends_the_reference_once_it_may() -> None:
    model = FakeModel(vocab_size=3, eos_token_ids=(), eos_every=0)
    assert model.generate([0], 30, stop_token_ids=(1, 2))[-1] in (1, 2)
    late = model.generate([0], 30, SamplingParams(min_tokens=9), stop_token_ids=(1, 2))
    assert late[:9] == [0] * 9
    assert late[-1] != 0
    assert set(late[:-1]) == {0}


def test_log_probabilities_follow_from_the_context_alone() -> None:
    model = FakeModel()
    columns = model.logprobs(PROMPT, range(5), token_id=7, num_top=3)
    best = columns.top_ids[0]
    assert list(columns.top_ids) == [(best + rank) % 264 for rank in range(3)]
    assert list(columns.top_logprobs) == sorted(columns.top_logprobs, reverse=True)
    assert columns.top_logprobs[0] <= array("f", [-0.01])[0]
    for rank in range(3):
        again = model.logprobs(PROMPT, range(5), columns.top_ids[rank], num_top=0)
        assert again.chosen[0] == columns.top_logprobs[rank]
        assert not again.top_ids
    other = model.logprobs([*PROMPT, 1], range(6), token_id=7, num_top=3)
    assert other != columns
    moved = model.logprobs(PROMPT, range(1, 6), token_id=7, num_top=3)
    assert moved != columns
    two = model.generate_logprobs(PROMPT, [1, 7], 3)
    assert two.chosen[1] == other.chosen[0]
    assert two.top_ids[3:] == other.top_ids


def first_plan(new: NewRow) -> BatchPlan:
    return BatchPlan(
        step_id=1,
        rows=array("i", [0]),
        prefix_lens=array("i", [0]),
        extend_lens=array("i", [2]),
        samples=b"\1",
        input_ids=array("i", [65, 66]),
        out_slots=array("i", [1, 2]),
        new_rows=(new,),
        freed_rows=array("i"),
    )


def plain_row() -> NewRow:
    return NewRow(row=0, prefix_slots=array("i"), sampling=SamplingParams())


@pytest.mark.parametrize(
    "changes",
    [
        {"context_ids": array("i", [65, 66])},
        {"sampling": SamplingParams(presence_penalty=1.0), "num_prompt": 2},
        {"sampling": SamplingParams(presence_penalty=1.0), "context_ids": array("i", [65, 66])},
        {"sampling": SamplingParams(min_tokens=1)},
    ],
)
def test_rows_without_what_they_need_are_refused(changes: dict[str, object]) -> None:
    engine = FakeEngine(FakeModel(), num_slots=50, max_rows=4, max_length=40)
    engine.execute(first_plan(plain_row()))
    engine.reset()
    with pytest.raises(PlanError):
        engine.execute(first_plan(replace(plain_row(), **changes)))  # type: ignore[arg-type]
