"""What ranks do together inside of a step, over torch.distributed.

Every rank gets the same bits from each of these, so that all sample the same tokens.  On a GPU they
are work in the stream of the step like any other, which a graph can hold.  Not here: the processes,
who needs what summed.
"""

import os
import socket
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 (its name everywhere)

from gpu_worker.parallel.shard import Shard

Gather = Callable[[torch.Tensor, torch.Tensor], object]
"""Fills the first tensor with the second one's of all ranks, one behind the other."""

_MEET_S = 300.0
"""For the slowest rank to come."""


def join_group(shard: Shard, port: int, listening: socket.socket | None, *, on_gpu: bool) -> None:
    """Meets all other ranks; waits until all are there.  On GPUs each rank has that of its number.

    `listening`: of rank 0, the socket that listens on the port.

    Raises:
        RuntimeError: they do not come.
    """
    # All ranks are on this machine; nobody else is to find where they listen.
    names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    for library in ("GLOO", "NCCL"):
        if names:
            os.environ.setdefault(f"{library}_SOCKET_IFNAME", names[0])
    if on_gpu:
        torch.cuda.set_device(shard.rank)
    store = dist.TCPStore(
        "127.0.0.1",
        port,
        shard.size,
        is_master=listening is not None,
        timeout=timedelta(seconds=_MEET_S),
        wait_for_workers=False,
        master_listen_fd=None if listening is None else listening.detach(),
    )
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=store,
        rank=shard.rank,
        world_size=shard.size,
        # With it NCCL connects now, where a failure is one of the start.
        device_id=torch.device("cuda", shard.rank) if on_gpu else None,
    )


class Collectives:
    """Sums and joins among the ranks of the process's one group."""

    def __init__(
        self,
        shard: Shard,
        *,
        device: str = "cpu",
        keeps_order: bool = True,
        gather: Gather = dist.all_gather_single,
    ) -> None:
        """`device`: where their tensors are.

        `keeps_order`: sums add rank after rank, so that bits of a row do not depend on how many
        rows there are; a library's own sum is cut into pieces that differ in their order.
        """
        self._shard = shard
        self._device = device
        self._keeps_order = keeps_order
        self._gather_into = gather

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over ranks; `x` may be used up."""
        if not self._keeps_order:
            dist.all_reduce(x)
            return x
        parts = self._gather(x)
        total = parts[0].float()
        for part in parts[1:]:
            total += part
        return total.to(x.dtype)

    def join_columns(self, x: torch.Tensor, num_columns: int) -> torch.Tensor:
        """[num_rows, num_columns] of which each rank has its stretch, [num_rows, its length]."""
        size = self._shard.size
        longest = -(-num_columns // size)
        parts = self._gather(F.pad(x, (0, longest - x.shape[1])))
        if longest * size == num_columns:
            return parts.movedim(0, 1).reshape(len(x), num_columns)
        lengths = [len(Shard(rank=rank, size=size).stretch(num_columns)) for rank in range(size)]
        return torch.cat([part[:, :n] for part, n in zip(parts, lengths, strict=True)], dim=1)

    def least(self, value: int) -> int:
        """The smallest that a rank has."""
        return int(self._gather(torch.tensor([value], device=self._device)).min())

    def _gather(self, x: torch.Tensor) -> torch.Tensor:
        """[size, *x.shape], by rank."""
        size = self._shard.size
        parts = x.new_empty((size * x.shape[0], *x.shape[1:]))
        self._gather_into(parts, x.contiguous())
        return parts.view(size, *x.shape)
