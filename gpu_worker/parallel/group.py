"""One rank's membership: it meets the others, then loads its part of the model.

Not here: the processes, what is done with plans.
"""

import socket
from dataclasses import dataclass, replace

from gpu_worker.loading import engine_for
from gpu_worker.model_engine import ModelEngine
from gpu_worker.open_model import OpenModel
from gpu_worker.parallel.collectives import Collectives, join_group
from gpu_worker.parallel.shard import Shard, local_config
from gpu_worker.parallel.sharded_home import ShardedHome
from gpu_worker.parallel.sharded_weights import ShardedWeights
from protos.errors import InvalidRequest, first_line
from radixd.chassis.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """See engine_for, which asks it for a rank's part of the model."""

    shard: Shard
    collectives: Collectives

    def part_of(self, model: OpenModel) -> OpenModel:
        """The model as if it were no more than this rank's part."""
        shard, whole = self.shard, model
        return replace(
            model,
            config=local_config(model.config, shard),
            make_reader=lambda on_bytes: ShardedWeights(
                whole.make_reader(on_bytes), whole.config, shard
            ),
            in_home=lambda home: ShardedHome(home, shard, self.collectives),
            agree=self.collectives.least,
            shows_progress=shard.rank == 0,
        )


def load_rank(
    settings: Settings, rank: int, port: int, listening: socket.socket | None = None
) -> ModelEngine:
    """The engine of one rank, once all have met.  `device` of the settings is not auto any more.

    `listening`: of rank 0, see join_group.

    Raises:
        ModelError: the model cannot be loaded, or this rank's pool does not fit in memory.
        InvalidRequest: the options ask for what cannot be had here.
    """
    shard = Shard(rank=rank, size=settings.tp)
    on_gpu = settings.device == "cuda"
    try:
        join_group(shard, port, listening, on_gpu=on_gpu)
    except RuntimeError as error:  # of torch.distributed, whatever went wrong
        raise InvalidRequest("tp", f"the ranks do not meet: {first_line(error)}") from None
    # On the CPU the order costs nothing to speak of, and same bits are promised.
    keeps_order = settings.deterministic or not on_gpu
    collectives = Collectives(shard, device=settings.device, keeps_order=keeps_order)
    return engine_for(settings, Membership(shard=shard, collectives=collectives))
