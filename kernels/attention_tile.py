"""How much of attention a program holds at once, by heads, pool, type and vendor.

Chosen by compiling, so that nothing spills (kernels.check); on a GPU none was measured.  Not here:
how a batch is cut into items.
"""

from dataclasses import dataclass

import torch

from kernels.compile_case import Vendor
from kernels.kv_codes import KvKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Sizes fixed when the kernel is compiled, chosen so that nothing spills; see kernels.check."""

    block_positions: int
    num_warps: int
    num_stages: int = 2
    most_registers: int | None = None
    """See CompileCase.  Left alone the compiler stops at 64, 80 or 128 at times, and spills what
    there is room for."""


def tile_for(
    block_queries: int,
    head_dim: int,
    kind: KvKind,
    vendor: Vendor,
    dtype: torch.dtype,
    *,
    is_capped: bool,
) -> Tile:
    """The tile for items of this many score rows, on heads and pools of this kind.

    dtype: of queries.  is_capped: scores have a soft cap.
    """
    if dtype == torch.float32 and kind != "fp8":
        return _exact_tile(block_queries, head_dim, kind, vendor)
    is_extend, is_wide, is_coded = block_queries >= 64, head_dim > 128, kind != "none"
    num_warps = 8 if is_extend or is_wide or (is_coded and head_dim > 64) else 4
    if vendor == "nvidia":
        is_large = is_wide and (is_extend or is_coded)
        stops = kind == "fp8" and block_queries > 16 and not is_wide and is_capped
        return Tile(
            block_positions=32 if is_large else 64,
            num_warps=num_warps,
            most_registers=192 if stops else None,
        )
    # AMD's compiler keeps what it loads ahead, or widens, in registers.
    is_large = is_extend or is_wide or is_coded
    return Tile(
        block_positions=32 if is_large else 64,
        num_warps=4 if is_wide and is_coded else num_warps,
        num_stages=1 if is_coded else 2,
    )


def _exact_tile(block_queries: int, head_dim: int, kind: KvKind, vendor: Vendor) -> Tile:
    """For products of float32, whose operands are registers: no matrix unit takes them."""
    is_small, is_wide, is_coded = head_dim <= 64, head_dim > 128, kind != "none"
    if vendor == "amd":
        return Tile(block_positions=16 if is_wide else 32, num_warps=8, num_stages=1)
    if block_queries > 16:
        if is_small and not is_coded:
            return Tile(block_positions=32, num_warps=8)
        most = None if is_wide else 128
        return Tile(block_positions=16, num_warps=16, num_stages=1, most_registers=most)
    most = 128 if is_wide else None
    stages = 1 if is_wide or is_coded else 2
    return Tile(block_positions=32, num_warps=8, num_stages=stages, most_registers=most)
