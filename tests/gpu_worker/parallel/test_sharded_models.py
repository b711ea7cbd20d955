"""The parts of a model, each in a thread, make the whole: tokens and log probabilities.

The ranks meet in memory; test_ranks has them meet as processes.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from gpu_worker.loading import load_engine
from gpu_worker.model_engine import EngineLimits, ModelEngine
from gpu_worker.parallel.collectives import Collectives
from gpu_worker.parallel.group import Membership
from gpu_worker.parallel.shard import Shard
from radixd.chassis.model_source import ModelSource
from tests.gpu_worker.backends import TORCH
from tests.gpu_worker.driver import Driver
from tests.gpu_worker.family_models import FAMILIES, family_oracle, save_family
from tests.gpu_worker.parallel.scenario import play
from tests.gpu_worker.tiny_models import make_oracle, save

LIMITS = EngineLimits(num_slots=512, max_rows=8, poison=True)


class Table:
    """Where threads lay down what they have and take what all have."""

    def __init__(self, size: int) -> None:
        self._laid: list[torch.Tensor] = [torch.empty(0)] * size
        self._all_there = threading.Barrier(size, timeout=30)

    def gather_for(self, rank: int) -> Callable[[torch.Tensor, torch.Tensor], None]:
        """What a rank calls in place of torch.distributed."""

        def gather(into: torch.Tensor, own: torch.Tensor) -> None:
            self._laid[rank] = own
            self._all_there.wait()
            torch.cat(self._laid, out=into)
            self._all_there.wait()

        return gather


def engines(source: ModelSource, size: int) -> list[ModelEngine]:
    """One a rank."""
    table = Table(size)
    found = []
    for rank in range(size):
        shard = Shard(rank=rank, size=size)
        meets = Collectives(shard, gather=table.gather_for(rank))
        part = Membership(shard=shard, collectives=meets)
        found.append(load_engine(source, LIMITS, TORCH, part))
    return found


MODELS = {
    "untied": {},
    "tied": {"tie_word_embeddings": True},
    "one KV head for all": {"num_key_value_heads": 1},
    "an MLP that does not divide": {"intermediate_size": 81},
}


@pytest.mark.parametrize(
    ("name", "size"), [("untied", 2), ("untied", 4), ("tied", 4), *((n, 2) for n in [*MODELS][2:])]
)
def test_parts_make_the_whole(name: str, size: int, tmp_path: Path) -> None:
    shape = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64}
    check_parts(save(make_oracle(**(shape | MODELS[name])), tmp_path), size)


@pytest.mark.parametrize("family", FAMILIES)
def test_parts_of_families_make_the_whole(family: str, tmp_path: Path) -> None:
    """Biases, experts, windows, caps and norms among them."""
    oracle = family_oracle(family, max_position_embeddings=512)
    check_parts(save_family(oracle, tmp_path), 2)


def check_parts(source: ModelSource, size: int) -> None:
    wanted = play(Driver(load_engine(source, LIMITS, TORCH)))
    with ThreadPoolExecutor(size) as pool:
        said = list(pool.map(lambda engine: play(Driver(engine)), engines(source, size)))
    for each in said:
        assert each.tokens == wanted.tokens
        assert each.logprobs == said[0].logprobs  # to the bit, or ranks would part one day
    assert said[0].logprobs == pytest.approx(wanted.logprobs, abs=1e-4)


def test_ranks_agree_on_the_smallest_pool() -> None:
    table = Table(2)
    ranks = [
        Collectives(Shard(rank=rank, size=2), gather=table.gather_for(rank)) for rank in range(2)
    ]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(Collectives.least, ranks, (700, 500))) == [500, 500]
