"""A reader that gives a rank's part of each tensor, as if the files held no more.

What makes inputs for others is cut by outputs (queries, keys, values, gate, up), what takes those
is cut by inputs (attention's and the MLP's way out), so that a layer needs two sums among ranks.
The cut is that of Megatron-LM (Shoeybi et al. 2019, section 3).  A head apart from the table is cut
by tokens.  Everything else is whole on every rank.  Not here: the sums.
"""

import re
from dataclasses import dataclass

import numpy as np

from gpu_worker.blocks import GROUP, BlockKind, Blocks, FloatArray
from gpu_worker.model_config import ModelConfig
from gpu_worker.parallel.shard import Shard
from gpu_worker.weights import WeightReader

_NAME = re.compile(r"(?:model\.layers\.\d+\.(?:self_attn|mlp)\.(?:.+\.)?)?(\w+)\.(weight|bias)")
_OUTPUTS, _INPUTS = 0, 1


@dataclass(frozen=True, slots=True)
class _Cut:
    """Which part of a matrix [outputs, inputs] a rank holds."""

    axis: int
    kept: range
    total: int


class ShardedWeights:
    """WeightReader of one rank; shapes asked for are the rank's own."""

    def __init__(self, whole: WeightReader, config: ModelConfig, shard: Shard) -> None:
        """`config` is the whole model's."""
        self._whole = whole
        self._rank = shard.rank
        head = config.head_dim
        query, key = shard.stretch(config.num_heads), shard.kv_heads(config.num_kv_heads)
        heads = {
            axis: _Cut(axis, _of_heads(query, head), config.num_heads * head)
            for axis in (_OUTPUTS, _INPUTS)
        }
        kv_heads = _Cut(_OUTPUTS, _of_heads(key, head), config.num_kv_heads * head)
        self._cuts = {
            "q_proj": heads[_OUTPUTS],
            "k_proj": kv_heads,
            "v_proj": kv_heads,
            "o_proj": heads[_INPUTS],
            **_of_mlp(shard, config.intermediate_size),
            "lm_head": _Cut(_OUTPUTS, shard.stretch(config.vocab_size), config.vocab_size),
        }
        self._expert_cuts: dict[str, _Cut] = {}
        if config.experts is not None:
            self._expert_cuts = _of_mlp(shard, config.experts.intermediate_size)

    def has(self, name: str) -> bool:
        """See WeightReader."""
        return self._whole.has(name)

    def block_kind(self, name: str) -> BlockKind | None:
        """See WeightReader."""
        return self._whole.block_kind(name)

    def read(self, name: str, shape: tuple[int, ...]) -> FloatArray:
        """See WeightReader.  Of a bias that is added to a sum among ranks, rank 0 has all."""
        cut = self._cut(name)
        if cut is None:
            return self._whole.read(name, shape)
        if len(shape) == 1 and cut.axis == _INPUTS:
            bias = self._whole.read(name, shape)
            return bias if self._rank == 0 else np.zeros_like(bias)
        whole = self._whole.read(name, _whole_shape(shape, cut))
        kept = slice(cut.kept.start, cut.kept.stop)
        return np.ascontiguousarray(whole[kept] if cut.axis == _OUTPUTS else whole[:, kept])

    def read_blocks(self, name: str, shape: tuple[int, int]) -> Blocks | None:
        """See WeightReader.  None as well where a rank's inputs are no whole blocks."""
        cut = self._cut(name)
        if cut is None:
            return self._whole.read_blocks(name, shape)
        num_outputs, num_inputs = _whole_shape(shape, cut)
        kept = cut.kept
        if cut.axis == _INPUTS and (kept.start % GROUP or kept.stop % GROUP):
            return None
        blocks = self._whole.read_blocks(name, (num_outputs, num_inputs))
        if blocks is None or cut.axis == _OUTPUTS:
            return blocks and blocks[kept.start : kept.stop]
        groups = slice(kept.start // GROUP, kept.stop // GROUP)
        return Blocks(
            kind=blocks.kind,
            values=blocks.values[:, groups],
            scale=blocks.scale[:, groups],
            minimum=blocks.minimum[:, groups],
        )

    def _cut(self, name: str) -> _Cut | None:
        match = _NAME.fullmatch(name)
        cuts = self._expert_cuts if ".experts." in name else self._cuts
        return cuts.get(match[1]) if match else None


def _of_mlp(shard: Shard, size: int) -> dict[str, _Cut]:
    inner = shard.stretch(size)
    rows = _Cut(_OUTPUTS, inner, size)
    return {"gate_proj": rows, "up_proj": rows, "down_proj": _Cut(_INPUTS, inner, size)}


def _of_heads(heads: range, head_dim: int) -> range:
    return range(heads.start * head_dim, heads.stop * head_dim)


def _whole_shape(shape: tuple[int, ...], cut: _Cut) -> tuple[int, ...]:
    return tuple(cut.total if axis == cut.axis else size for axis, size in enumerate(shape))
