"""Two processes compute a model together, and say what one says."""

from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gpu_worker.__main__ import build_engine
from gpu_worker.engine import PlanError
from gpu_worker.model_engine import ModelEngine
from gpu_worker.parallel import start
from gpu_worker.parallel.leader import LeaderEngine
from gpu_worker.parallel.start import lead_group
from protos.errors import InvalidRequest
from radixd.chassis.settings import Settings
from tests.gpu_worker.driver import Driver, Part
from tests.gpu_worker.parallel.scenario import play
from tests.gpu_worker.tiny_models import make_engine, make_oracle


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="module")
def alone(folder: Path) -> ModelEngine:
    oracle = make_oracle(num_attention_heads=4, num_key_value_heads=2, hidden_size=64)
    return make_engine(oracle, folder)


@pytest.fixture(scope="module")
def together(folder: Path, alone: ModelEngine) -> Iterator[LeaderEngine]:
    def end(status: int, message: str) -> None:
        raise AssertionError(message)  # from a thread: pytest shows it

    settings = Settings(model=str(folder), tp=2, kv_slots=1024, max_running=16, num_threads=1)
    engine = lead_group(settings, end=end)
    yield engine
    engine.dismiss()
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"tp": 3}, "tp: 4 heads do not divide among 3 ranks"),
        ({"tp": 2, "device": "cuda"}, "device: cuda cannot be had: "),
        ({"tp": 2, "fake_worker": True}, "tp: the fake worker is one process"),
    ],
)
@pytest.mark.usefixtures("alone")
def test_bad_numbers_are_refused_before_a_process_starts(
    options: dict[str, Any], problem: str, folder: Path
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        build_engine(Settings(model=str(folder), **options))
    assert str(refused.value).startswith(problem)


@pytest.mark.usefixtures("alone")
def test_more_ranks_than_gpus_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "find_gpu", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(InvalidRequest, match="tp: 4 ranks need a GPU each, there are 2"):
        lead_group(Settings(model=str(folder), tp=4))


def test_two_ranks_say_what_one_says(alone: ModelEngine, together: LeaderEngine) -> None:
    wanted, said = play(Driver(alone)), play(Driver(together))
    assert said.tokens == wanted.tokens
    assert said.logprobs == pytest.approx(wanted.logprobs, abs=1e-4)


def test_they_offer_the_memory_of_both(alone: ModelEngine, together: LeaderEngine) -> None:
    offered = replace(together.hello(), model_id=alone.hello().model_id)
    assert offered == alone.hello()


def test_they_survive_a_bad_plan(alone: ModelEngine, together: LeaderEngine) -> None:
    driver = Driver(together)
    together.reset()
    row = driver.open(0)
    with pytest.raises(PlanError, match="freed row 9 is free already"):
        together.begin(replace(driver.plan(Part(row, [5, 6])), freed_rows=array("i", [9])))
    test_two_ranks_say_what_one_says(alone, together)
