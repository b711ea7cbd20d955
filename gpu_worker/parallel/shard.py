"""Which part of a model a rank holds, in numbers.

Heads with their KV heads, and the inner size of each MLP, are cut into stretches, one a rank.
Where there are fewer KV heads than ranks, ranks that share one hold a copy each.  Not here:
tensors.
"""

from dataclasses import dataclass, replace

from gpu_worker.model_config import ModelConfig
from protos.errors import InvalidRequest
from radixd.chassis.ranks import check_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One rank's place among all."""

    rank: int
    size: int

    def stretch(self, total: int) -> range:
        """This rank's part of `total` things, which all ranks' parts cover in order."""
        return range(self.rank * total // self.size, (self.rank + 1) * total // self.size)

    def kv_heads(self, num_kv_heads: int) -> range:
        """This rank's KV heads: its part, or the one it shares with its neighbors."""
        if num_kv_heads >= self.size:
            return self.stretch(num_kv_heads)
        shared = self.rank * num_kv_heads // self.size
        return range(shared, shared + 1)


def check_split(config: ModelConfig, num_ranks: int) -> None:
    """Refuses a number of ranks that a model cannot be cut for.

    Raises:
        InvalidRequest: names `tp`.
    """
    if num_ranks > 1 and config.foreign_folder is not None:
        raise InvalidRequest("tp", "a family that transformers computes has one rank only")
    check_heads(num_ranks, num_heads=config.num_heads, num_kv_heads=config.num_kv_heads)
    inner = config.intermediate_size
    if config.experts is not None:
        inner = min(inner, config.experts.intermediate_size)
    if num_ranks > inner:
        raise InvalidRequest("tp", f"{num_ranks} ranks are more than the MLP's {inner} rows")


def local_config(config: ModelConfig, shard: Shard) -> ModelConfig:
    """The model as this rank computes it: its own heads and rows, everything else whole."""
    experts = config.experts
    if experts is not None:
        own = len(shard.stretch(experts.intermediate_size))
        experts = replace(experts, intermediate_size=own)
    return replace(
        config,
        num_heads=len(shard.stretch(config.num_heads)),
        num_kv_heads=len(shard.kv_heads(config.num_kv_heads)),
        intermediate_size=len(shard.stretch(config.intermediate_size)),
        experts=experts,
    )
