"""What attention is given: a pool and its page tables, a batch cut into items, a layer's rules.

Not here: how a batch is cut, which its caller decides; any arithmetic.
"""

from dataclasses import dataclass

import torch

from kernels.kv_codes import KvLayer

ITEM_FIELDS = 8
"""int32 fields of a work item: first query token, number of query tokens, offset of its page table,
first position, one past the last position, position of its first query token (NOT_CAUSAL: they see
the whole range), first partial row (NO_PARTIAL: it writes the result), and one unused."""
NOT_CAUSAL = 1 << 30
NO_PARTIAL = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedKv:
    """One layer's pool, and which pages each sequence has."""

    layer: KvLayer
    page_table: torch.Tensor
    """int32 [entries]: pages of sequences, one behind the other; an item knows its own."""
    page_size: int = 1
    """Slots of a page: position p is in slot table[p // page_size] * page_size + p % page_size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StemItems:
    """Items over shared stems, which take more query tokens at once than others of their batch."""

    items: torch.Tensor
    """As those of WorkItems; all of them partial."""
    num_items: torch.Tensor
    """int32 [1]"""
    block_queries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkItems:
    """How a batch is cut.  All tensors on the device; items past num_items are never read."""

    items: torch.Tensor
    """int32 [capacity, ITEM_FIELDS]"""
    num_items: torch.Tensor
    """int32 [1]"""
    merge_start: torch.Tensor
    """int32 [tokens + 1]: partial rows of token t are merge_rows[merge_start[t]:merge_start[t+1]];
    none for tokens that an item writes, and for tokens of no item, whose result stays as it is."""
    merge_rows: torch.Tensor
    """int32 [partial rows named]"""
    num_partials: int
    """Partial rows there is room for; 0: no item is partial."""
    block_queries: int
    """Rows of the score matrix of an item: most query tokens of an item * groups."""
    stems: StemItems | None = None
    """In a launch of their own, before the other items; None: there are none.  Their partial rows
    are merged with the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """Room for partial results, which one launch after another may use: nothing in it is kept."""

    out: torch.Tensor
    """float32 [partial rows, heads, head_dim], contiguous"""
    lse: torch.Tensor
    """float32 [partial rows, heads], contiguous, base 2"""


def workspace_for(num_partials: int, query: torch.Tensor) -> Workspace:
    """Room for this many partial rows of such queries [tokens, heads, head_dim]."""
    num_heads, head_dim = query.shape[1:]
    room = (max(num_partials, 1), num_heads)
    return Workspace(
        out=query.new_empty((*room, head_dim), dtype=torch.float32),
        lse=query.new_empty(room, dtype=torch.float32),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRules:
    """What a layer asks besides softmax(q k / sqrt(d)) v."""

    scale: float
    """Of scores, before the cap."""
    window: int = 0
    """A query sees this many positions, itself the last; 0: all."""
    soft_cap: float = 0.0
    """Scores x become cap * tanh(x / cap); 0: they do not."""


def check_inputs(
    query: torch.Tensor,
    kv: PagedKv,
    work: WorkItems,
    out: torch.Tensor | None,
    lse: torch.Tensor | None,
) -> None:
    """Refuses what an attention kernel would read wrongly.

    Raises:
        ValueError: shapes, types or strides do not go together; names which.
    """
    num_kv_heads, head_dim = kv.layer.heads
    if query.ndim != 3 or query.shape[2] != head_dim:
        raise ValueError(f"query {tuple(query.shape)} for keys and values of {head_dim}")
    num_tokens, num_heads, _ = query.shape
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} heads do not divide among {num_kv_heads} KV heads")
    groups = num_heads // num_kv_heads
    for part in (work, work.stems) if work.stems else (work,):
        block, items = part.block_queries, part.items
        if block < groups or block & (block - 1):
            raise ValueError(f"block_queries {block} is no power of 2 from {groups} on")
        if items.shape[1:] != (ITEM_FIELDS,) or items.dtype != torch.int32:
            raise ValueError(f"items {tuple(items.shape)} {items.dtype}: not int32 [n, 8]")
    if work.num_partials and len(work.merge_start) != num_tokens + 1:
        raise ValueError(f"merge_start has {len(work.merge_start)}, not {num_tokens + 1} entries")
    for name, tensor in (("query", query), ("out", out)):
        if tensor is not None and tensor.stride()[1:] != (head_dim, 1):
            raise ValueError(f"{name}: heads of a token do not lie one behind the other")
    if lse is not None and (lse.shape != (num_tokens, num_heads) or not lse.is_contiguous()):
        raise ValueError(f"lse {tuple(lse.shape)}: not [{num_tokens}, {num_heads}] contiguous")


def check_workspace(workspace: Workspace, num_partials: int, query: torch.Tensor) -> None:
    """Refuses a workspace that is too small for the partial rows of a launch.

    Raises:
        ValueError: its shapes or types are not those of `workspace_for`; names which.
    """
    _, num_heads, head_dim = query.shape
    for name, tensor, tail in (
        ("out", workspace.out, (num_heads, head_dim)),
        ("lse", workspace.lse, (num_heads,)),
    ):
        if tensor.shape[1:] != tail or len(tensor) < max(num_partials, 1):
            raise ValueError(
                f"workspace.{name} {tuple(tensor.shape)} for {num_partials} partial rows of {tail}"
            )
        if tensor.dtype != torch.float32 or not tensor.is_contiguous():
            raise ValueError(f"workspace.{name} {tensor.dtype}: not float32 contiguous")
