"""What is done before the first request: everything once, and nothing is left of it."""

from gpu_worker.device.step_inputs import CutSizes, step_columns
from gpu_worker.device.warm_up import warm_up
from gpu_worker.row_table import RowTable
from gpu_worker.step import Step
from gpu_worker.step_runner import RunningStep, Sampled, StepRunner
from gpu_worker.torch_backend import TorchBackend
from tests.gpu_worker.random_models import RandomWeights, shape

CONFIG = shape(num_layers=1)


class Watched:
    """A runner whose steps are looked at."""

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner
        self.steps: list[Step] = []
        self.sampled: list[Sampled] = []

    def settle(self) -> None:
        self._runner.settle()

    def begin(self, step: Step) -> RunningStep:
        self.steps.append(step)
        running = self._runner.begin(step)
        self.sampled.append(running.sampled())
        return running

    def forget(self) -> None:
        self._runner.forget()


def watched(max_length: int, times: int = 1) -> Watched:
    table = RowTable(num_slots=8, max_rows=1, max_length=max_length, vocab_size=CONFIG.vocab_size)
    backend = TorchBackend(CONFIG, RandomWeights(), num_slots=8, max_length=max_length)
    runner = Watched(backend.runner(table))
    for _ in range(times):
        warm_up(table, runner, max_length)
    return runner


def test_everything_is_asked_for() -> None:
    runner = watched(200)
    prompt, draft, *_ = runner.sampled
    assert [len(step.token_ids) for step in runner.steps] == [160, 2, 20, 1]
    assert prompt.prompt_logprobs is not None
    assert len(prompt.prompt_logprobs.chosen) == 159
    assert draft.logprobs is not None
    assert len(draft.logprobs.top_ids) == len(draft.token_ids)
    assert runner.steps[1].rows[0].num_drafts == 1


def test_nothing_but_the_dump_slot_is_written_and_all_rows_are_free_again() -> None:
    runner = watched(100, times=2)
    assert len(runner.steps) == 8
    assert not any(step.out_slots.any() for step in runner.steps)


def test_a_token_behind_a_long_prefix_has_parts_to_be_merged() -> None:
    """Steps that are not recorded would compile it when a request first gets there."""
    for max_length, length in ((2000, 1025), (100, 100)):
        (row,) = watched(max_length).steps[-1].rows
        assert (row.length, row.extend_len) == (length, 1)
    columns = step_columns(watched(2000).steps[-1], CutSizes(groups=2), 2000)
    assert columns.num_partials == 3


def test_contexts_may_be_short() -> None:
    assert [len(step.token_ids) for step in watched(4).steps] == [2, 2, 2, 1]
    assert watched(2).steps == []
