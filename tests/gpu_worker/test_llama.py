"""Logits of each backend against transformers in fp32, however tokens are cut and batched."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from gpu_worker.backend_choice import BackendOptions
from gpu_worker.loading import load_engine
from gpu_worker.model_engine import EngineLimits, ModelEngine
from radixd.chassis.model_source import resolve_model
from tests.gpu_worker.backends import EXACT, needs_compiler
from tests.gpu_worker.driver import Driver, Part
from tests.gpu_worker.tiny_models import make_engine, make_oracle, oracle_logits, random_tokens

TOLERANCE = 1e-3

Pair = tuple[LlamaForCausalLM, ModelEngine]


@pytest.fixture(scope="module", params=EXACT)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    oracle = make_oracle()
    return oracle, make_engine(oracle, tmp_path_factory.mktemp("tiny"), request.param)


@pytest.fixture
def driver(pair: Pair) -> Driver:
    pair[1].reset()
    return Driver(pair[1])


def close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Finite and within the tolerance."""
    assert torch.isfinite(found).all()
    return bool((found - wanted).abs().max() < TOLERANCE)


def test_prefill_then_decode(pair: Pair, driver: Driver) -> None:
    tokens = random_tokens(40, seed=1)
    wanted = oracle_logits(pair[0], tokens)
    row = driver.open(3)
    assert close(driver.logits(Part(row, tokens[:30])), wanted[29:30])
    for index in range(30, 40):
        assert close(driver.logits(Part(row, tokens[index : index + 1])), wanted[index : index + 1])


# field case 20
@pytest.mark.parametrize("cached", [0, 17])
@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 8, 16, 30, 60, 61, 62, 1000])
def test_chunk_size_changes_nothing(pair: Pair, driver: Driver, chunk: int, cached: int) -> None:
    tokens = random_tokens(61, seed=2)
    wanted = oracle_logits(pair[0], tokens)[60:]
    other = driver.open(0)
    driver.logits(Part(other, tokens[:17] + random_tokens(9, seed=3)))
    row = driver.open(1, other.slots[:cached])
    for start in range(cached, 61, chunk):
        found = driver.logits(Part(row, tokens[start : min(start + chunk, 61)]))
    assert close(found, wanted)


# field case 148
# field case 151
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_mixed_batch(pair: Pair, driver: Driver, order: tuple[int, ...]) -> None:
    texts = [random_tokens(length, seed=length) for length in (23, 29, 14, 65)]
    wanted = [oracle_logits(pair[0], text)[-1] for text in texts]
    source = driver.open(9)
    driver.logits(Part(source, texts[1][:12]))
    decodes = {2: driver.open(2), 3: driver.open(3)}
    driver.logits(Part(decodes[2], texts[2][:-1]), Part(decodes[3], texts[3][:-1]))
    parts = [
        Part(driver.open(0), texts[0]),
        Part(driver.open(1, source.slots[:9]), texts[1][9:]),
        Part(decodes[2], texts[2][-1:]),
        Part(decodes[3], texts[3][-1:]),
    ]
    found = driver.logits(*(parts[index] for index in order))
    for place, index in enumerate(order):
        assert close(found[place], wanted[index])


# field case 2
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_first_hits_in_one_batch(pair: Pair, page_size: int) -> None:
    pair[1].reset()
    driver = Driver(pair[1], page_size=page_size, seed=page_size)
    chunk = 32
    tokens = random_tokens(48, seed=4)
    wanted = oracle_logits(pair[0], tokens)[-1]
    source = driver.open(15)
    driver.logits(Part(source, tokens[:chunk]))
    prefixes = [0, 1, chunk, page_size - 1, page_size, page_size + 1]
    rows = [driver.open(index, source.slots[:size]) for index, size in enumerate(prefixes)]
    parts = [Part(row, tokens[size:]) for row, size in zip(rows, prefixes, strict=True)]
    for found in driver.logits(*parts):
        assert close(found, wanted)


def test_one_new_token_behind_each_prefix(pair: Pair, driver: Driver) -> None:
    # field case 151: cached lengths 0 and new lengths 1 beside long ones.
    tokens = random_tokens(200, seed=5)
    wanted = oracle_logits(pair[0], tokens)
    source = driver.open(15)
    driver.logits(Part(source, tokens))
    lengths = [0, 1, 63, 64, 65, 127, 128, 129, 199]
    parts = [
        Part(driver.open(index, source.slots[:length]), tokens[length : length + 1])
        for index, length in enumerate(lengths)
    ]
    for length, found in zip(lengths, driver.logits(*parts), strict=True):
        assert close(found, wanted[length])


def test_rows_that_do_not_sample_give_no_logits(pair: Pair, driver: Driver) -> None:
    tokens = random_tokens(20, seed=6)
    wanted = oracle_logits(pair[0], tokens)[-1]
    first, second = driver.open(0), driver.open(1)
    found = driver.logits(Part(first, tokens[:5], samples=False), Part(second, tokens))
    assert found.shape[0] == 1
    assert close(found[0], wanted)
    assert driver.logits(Part(first, tokens[5:9], samples=False)).shape == (0, 97)


def test_remapped_rows_read_the_twin(pair: Pair, driver: Driver) -> None:
    tokens = random_tokens(30, seed=7)
    wanted = oracle_logits(pair[0], tokens)[-1]
    first, second = driver.open(0), driver.open(1)
    driver.logits(Part(first, tokens[:20]), Part(second, tokens[:25]))
    abandoned = second.slots[5:20]
    driver.remap(second, 5, first.slots[5:20])
    driver.free(first)
    overwriting = driver.open(2, abandoned)  # a reader of what row 1 has left behind
    found = driver.logits(Part(second, tokens[25:]), Part(overwriting, tokens[:1]))
    assert close(found[0], wanted)


def test_freed_row_starts_anew_in_the_same_plan(pair: Pair, driver: Driver) -> None:
    tokens = random_tokens(12, seed=8)
    wanted = oracle_logits(pair[0], tokens)[-1]
    old = driver.open(4)
    driver.logits(Part(old, random_tokens(30, seed=9)))
    driver.free(old)
    assert close(driver.logits(Part(driver.open(4), tokens))[0], wanted)


SHAPES = {
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "beta_fast": 16.0,
            "truncate": False,
        }
    },
    "mha": {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "hidden_size": 64},
    "gqa": {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64},
    "wide": {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 80},
    "tied": {"tie_word_embeddings": True},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
    "linear": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
    "llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        }
    },
}


@pytest.mark.parametrize("options", EXACT)
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_of_the_family(shape: str, options: BackendOptions, tmp_path: Path) -> None:
    oracle = make_oracle(**SHAPES[shape])
    driver = Driver(make_engine(oracle, tmp_path, options))
    tokens = random_tokens(150, seed=10)
    wanted = oracle_logits(oracle, tokens)
    row, mate = driver.open(0), driver.open(1)
    assert close(driver.logits(Part(row, tokens[:140]), Part(mate, tokens[:7]))[0], wanted[139])
    found = driver.logits(Part(row, tokens[140:141]), Part(mate, tokens[7:8]))
    assert close(found, wanted[[140, 7]])
    assert close(driver.logits(Part(row, tokens[141:]))[0], wanted[149])


INT8_TOLERANCE = 0.5
"""Measured on three seeds of each shape: 0.26 at most, of logits that spread by 1.45."""


@needs_compiler
@pytest.mark.parametrize("shape", SHAPES)
def test_int8_weights_are_near(shape: str, tmp_path: Path) -> None:
    sizes = SHAPES[shape] | {"hidden_size": 96, "intermediate_size": 96}
    oracle = make_oracle(**sizes)
    options = BackendOptions(backend="native", weights="int8")
    driver = Driver(make_engine(oracle, tmp_path, options))
    tokens = random_tokens(150, seed=10)
    wanted = oracle_logits(oracle, tokens)
    row = driver.open(0)
    for start, end in ((0, 140), (140, 141), (141, 150)):
        found = driver.logits(Part(row, tokens[start:end]))
        off = float((found - wanted[end - 1]).abs().max())
        assert TOLERANCE < off < INT8_TOLERANCE


@pytest.mark.parametrize("options", EXACT)
def test_half_precision_weights_are_widened(options: BackendOptions, tmp_path: Path) -> None:
    driver = Driver(make_engine(make_oracle().to(torch.bfloat16), tmp_path, options))
    # Loaded anew, as the conversion above also rounds the oracle's rotary frequencies.
    oracle = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokens = random_tokens(20, seed=11)
    found = driver.logits(Part(driver.open(0), tokens))
    assert close(found, oracle_logits(oracle, tokens)[-1:])


@pytest.mark.parametrize("options", EXACT)
def test_sharded_folder(options: BackendOptions, tmp_path: Path) -> None:
    oracle = make_oracle()
    oracle.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    limits = EngineLimits(num_slots=64, max_rows=4)
    driver = Driver(load_engine(resolve_model(str(tmp_path)), limits, options))
    tokens = random_tokens(20, seed=12)
    assert close(driver.logits(Part(driver.open(0), tokens)), oracle_logits(oracle, tokens)[-1:])
