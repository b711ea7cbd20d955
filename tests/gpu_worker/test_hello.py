"""What the engines say of themselves."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from gpu_worker.backend_choice import BackendOptions
from gpu_worker.fake_engine import FakeEngine, FakeModel
from gpu_worker.model_config import ModelConfig
from gpu_worker.model_engine import EngineLimits
from protos.plan import MAX_CONTEXT_TOKENS
from tests.gpu_worker.backends import ALL, needs_compiler
from tests.gpu_worker.tiny_models import make_engine, make_oracle


@pytest.mark.parametrize("options", ALL)
def test_the_model_says_what_it_computes_with(options: BackendOptions, tmp_path: Path) -> None:
    oracle = make_oracle(num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2)
    hello = make_engine(oracle, tmp_path, options, num_slots=10).hello()
    # K and V, layers, heads, and a head of 16 in fp32, or in bytes with a scale in fp32.
    head_bytes = 16 + 4 if options.kv_dtype == "int8" else 16 * 4
    assert hello.kv_bytes_per_slot == 2 * 3 * 2 * head_bytes
    assert hello.kv_dtype == ("int8" if options.kv_dtype == "int8" else "float32")
    assert hello.device == "cpu"
    assert hello.weights == options.weights.replace("fp", "float")
    assert (hello.device, hello.kind, hello.num_slots) == ("cpu", "model", 10)


@needs_compiler
def test_weights_of_another_precision_are_another_model(tmp_path: Path) -> None:
    oracle, hashes = make_oracle(), set()
    for number, weights in enumerate(("fp32", "int8", "int4")):
        options = BackendOptions(weights=weights)
        hashes.add(make_engine(oracle, tmp_path / str(number), options).hello().model_hash)
    assert len(hashes) == 3


@pytest.mark.parametrize(
    ("of_model", "asked", "longest"),
    [
        (2048, 0, 2048),
        (2048, 100, 100),
        (2048, 4096, 2048),
        (10_000_000, 0, MAX_CONTEXT_TOKENS),
        (10_000_000, 9_000_000, MAX_CONTEXT_TOKENS),
        (10_000_000, 1_000_000, 1_000_000),
    ],
)
def test_no_context_is_longer_than_what_a_message_carries(
    of_model: int, asked: int, longest: int
) -> None:
    limits = EngineLimits(num_slots=10, max_rows=1, max_length=asked)
    assert limits.longest(cast(ModelConfig, SimpleNamespace(max_length=of_model))) == longest


def test_the_fake_says_so_too() -> None:
    engine = FakeEngine(FakeModel(), num_slots=10, max_rows=1, max_length=10)
    assert engine.hello().kv_bytes_per_slot == 8
