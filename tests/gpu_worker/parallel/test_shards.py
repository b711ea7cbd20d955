"""What each rank holds of a model: nothing twice, nothing missing, and sums that come out."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gpu_worker.blocks import Blocks, FloatArray, dequantise, quantise
from gpu_worker.model_config import ModelConfig
from gpu_worker.parallel.shard import Shard, check_split, local_config
from gpu_worker.parallel.sharded_weights import ShardedWeights
from protos.errors import InvalidRequest

CONFIG = ModelConfig(
    vocab_size=11,
    hidden_size=32,
    intermediate_size=192,
    num_layers=1,
    num_heads=8,
    num_kv_heads=4,
    head_dim=16,
    norm_eps=1e-6,
    rope_theta=10000.0,
    rope_scaling=None,
    max_length=64,
    tied_embeddings=False,
    eos_token_ids=(),
)
LAYER = "model.layers.0."
Q, K, OUT = (f"{LAYER}self_attn.{part}_proj.weight" for part in "qko")
UP, DOWN = (f"{LAYER}mlp.{part}_proj.weight" for part in ("up", "down"))


class Arrays:
    """A reader of these arrays, in blocks if asked."""

    def __init__(self, arrays: Mapping[str, FloatArray]) -> None:
        self._arrays = arrays

    def has(self, name: str) -> bool:
        return name in self._arrays

    def read(self, name: str, shape: tuple[int, ...]) -> FloatArray:
        assert self._arrays[name].shape == shape
        return self._arrays[name].copy()

    def read_blocks(self, name: str, shape: tuple[int, int]) -> Blocks | None:
        return quantise(self.read(name, shape), "int8")

    def block_kind(self, name: str) -> None:
        return None


def shards(size: int) -> list[Shard]:
    return [Shard(rank=rank, size=size) for rank in range(size)]


def parts(name: str, array: FloatArray, size: int, shape: tuple[int, ...]) -> list[FloatArray]:
    """What each rank reads."""
    reader = Arrays({name: array})
    return [ShardedWeights(reader, CONFIG, shard).read(name, shape) for shard in shards(size)]


def random(*shape: int) -> FloatArray:
    return np.random.default_rng(7).standard_normal(shape, np.float32)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_outputs_are_dealt_out_in_order(size: int) -> None:
    query, up = random(128, 32), random(192, 32)
    assert np.array_equal(np.concatenate(parts(Q, query, size, (128 // size, 32))), query)
    assert np.array_equal(np.concatenate(parts(UP, up, size, (192 // size, 32))), up)


def test_ranks_that_share_a_kv_head_hold_a_copy_each() -> None:
    key = random(64, 32)
    heads = [key[start : start + 16] for start in (0, 16, 32, 48)]
    read = parts(K, key, 8, (16, 32))
    for rank in range(8):
        assert np.array_equal(read[rank], heads[rank // 2])
        local = local_config(CONFIG, Shard(rank=rank, size=8))
        assert (local.num_heads, local.num_kv_heads, local.intermediate_size) == (1, 1, 24)


@pytest.mark.parametrize("name", [OUT, DOWN])
def test_parts_by_inputs_sum_up_to_the_whole(name: str) -> None:
    num_inputs = 128 if name == OUT else 192
    matrix, x = random(32, num_inputs), random(num_inputs)
    read = parts(name, matrix, 4, (32, num_inputs // 4))
    products = [part @ own for part, own in zip(read, np.split(x, 4), strict=True)]
    np.testing.assert_allclose(sum(products), matrix @ x, rtol=1e-5, atol=1e-5)


def test_a_bias_is_cut_with_its_outputs_and_added_to_a_sum_once() -> None:
    query, out = random(128), random(32)
    name = Q.replace("weight", "bias")
    assert np.array_equal(np.concatenate(parts(name, query, 2, (64,))), query)
    read = parts(OUT.replace("weight", "bias"), out, 2, (32,))
    assert np.array_equal(read[0], out)
    assert not read[1].any()


def test_an_mlp_that_does_not_divide_is_cut_unevenly() -> None:
    config = replace(CONFIG, intermediate_size=7)
    sizes = [local_config(config, shard).intermediate_size for shard in shards(4)]
    assert sizes == [1, 2, 2, 2]
    assert [list(shard.stretch(7)) for shard in shards(4)] == [[0], [1, 2], [3, 4], [5, 6]]


def test_norms_and_the_table_are_whole() -> None:
    for name, shape in (
        (f"{LAYER}input_layernorm.weight", (32,)),
        (f"{LAYER}self_attn.q_norm.weight", (16,)),
        ("model.embed_tokens.weight", (11, 32)),
        ("model.norm.weight", (32,)),
    ):
        array = random(*shape)
        assert all(np.array_equal(part, array) for part in parts(name, array, 2, shape))


@pytest.mark.parametrize("name", [UP, DOWN])
def test_blocks_are_cut_as_numbers_are(name: str) -> None:
    shape = (192, 32) if name == UP else (32, 192)
    local = (96, 32) if name == UP else (32, 96)
    matrix = random(*shape)
    whole = dequantise(quantise(matrix, "int8"))
    axis = 0 if name == UP else 1
    for rank, wanted in enumerate(np.split(whole, 2, axis=axis)):
        reader = ShardedWeights(Arrays({name: matrix}), CONFIG, Shard(rank=rank, size=2))
        blocks = reader.read_blocks(name, local)
        assert blocks is not None
        assert np.array_equal(dequantise(blocks), wanted)


def test_blocks_that_would_break_are_read_as_numbers() -> None:
    reader = ShardedWeights(Arrays({DOWN: random(32, 192)}), CONFIG, Shard(rank=1, size=4))
    assert reader.read_blocks(DOWN, (32, 48)) is None


@pytest.mark.parametrize(
    ("num_ranks", "problem"),
    [
        (16, "16 ranks are more than the model's 8 heads"),
        (3, "8 heads do not divide among 3 ranks"),
    ],
)
def test_what_does_not_divide_is_refused_by_name(num_ranks: int, problem: str) -> None:
    with pytest.raises(InvalidRequest, match="tp: ") as refused:
        check_split(CONFIG, num_ranks)
    assert refused.value.message == problem


def test_a_foreign_family_has_one_rank() -> None:
    with pytest.raises(InvalidRequest, match="tp: a family that transformers computes has one"):
        check_split(replace(CONFIG, foreign_folder=Path("somewhere")), 2)


def test_kv_heads_that_straddle_ranks_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="tp: 3 KV heads and 2 ranks do not divide"):
        check_split(replace(CONFIG, num_heads=6, num_kv_heads=3), 2)
    check_split(replace(CONFIG, num_heads=6, num_kv_heads=3), 6)
