"""Ragged batches on a scattered, poisoned pool, and what a plain softmax makes of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from gpu_worker.device.attention_plan import (
    AttentionPlan,
    Cuts,
    IntArray,
    Rows,
    Stem,
    plan_attention,
)
from kernels.attention_inputs import AttentionRules, PagedKv, StemItems, WorkItems
from kernels.kv_codes import KvKind, KvLayer, decode, encode


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Of a model, its pool and a batch."""

    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 32
    page_size: int = 1
    kind: KvKind = "none"
    dtype: torch.dtype = torch.float32
    lengths: Sequence[int] = (1, 17, 63, 64, 65, 130)
    queries: Sequence[int] = (1, 1, 1, 1, 1, 1)
    stems: Sequence[Stem] = ()


@dataclass(kw_only=True)
class Batch:
    """Queries, and the pool that their rows' contexts are scattered over."""

    shape: Shape
    query: torch.Tensor
    kv: PagedKv
    rows: Rows
    slots: list[np.ndarray] = field(default_factory=list)
    """Of each row, [length]."""


def batch(shape: Shape, seed: int = 0) -> Batch:
    """Pages in random order; every number of a slot that no row uses is NaN."""
    generator = torch.Generator().manual_seed(seed)
    page_size = shape.page_size
    num_pages = [-(-length // page_size) for length in shape.lengths]
    total = sum(num_pages) + 3
    order = np.random.default_rng(seed).permutation(total).astype(np.int32)
    offsets = np.cumsum([0, *num_pages[:-1]])
    table = order[: sum(num_pages)].copy()
    for stem in shape.stems:
        pages = slice(stem.begin // page_size, stem.end // page_size)
        first = table[offsets[stem.first_row] :][pages].copy()
        for row in range(stem.first_row, stem.first_row + stem.num_rows):
            table[offsets[row] :][pages] = first
    slots = []
    for offset, length in zip(offsets, shape.lengths, strict=True):
        position = np.arange(length)
        slots.append(table[offset + position // page_size] * page_size + position % page_size)
    numbers = (total * page_size, shape.kv_heads, shape.head_dim)
    coded = [
        encode(torch.randn(numbers, generator=generator).to(shape.dtype), shape.kind)
        for _ in range(2)
    ]
    unused = torch.ones(numbers[0], dtype=torch.bool)
    unused[np.concatenate(slots)] = False
    for part in coded:
        (part.codes if part.scale is None else part.scale)[unused] = torch.nan
    num_tokens = sum(shape.queries)
    query = torch.randn(num_tokens, shape.heads, shape.head_dim, generator=generator)
    return Batch(
        shape=shape,
        query=query.to(shape.dtype),
        kv=PagedKv(
            layer=KvLayer(keys=coded[0], values=coded[1]),
            page_table=torch.from_numpy(table),
            page_size=page_size,
        ),
        rows=Rows(
            first_query=np.cumsum([0, *shape.queries[:-1]]).astype(np.int32),
            num_queries=np.array(shape.queries, np.int32),
            length=np.array(shape.lengths, np.int32),
            table_offset=offsets.astype(np.int32),
        ),
        slots=slots,
    )


def cut(
    given: Batch, *, block_queries: int = 16, split: int = 64, window: int = 0, stem_block: int = 0
) -> WorkItems:
    """The batch's work items."""
    groups = given.shape.heads // given.shape.kv_heads
    cuts = Cuts(
        groups=groups,
        block_queries=block_queries,
        stem_block_queries=stem_block,
        split=split,
        window=window,
    )
    plan = plan_attention(given.rows, cuts, given.shape.stems)
    return work_items(plan, cuts, given.query.device)


def work_items(plan: AttentionPlan, cuts: Cuts, device: torch.device) -> WorkItems:
    """A plan as the kernel takes it."""

    def there(column: IntArray) -> torch.Tensor:
        return torch.from_numpy(column).to(device)

    def count(number: int) -> torch.Tensor:
        return torch.tensor([number], dtype=torch.int32, device=device)

    stems = StemItems(
        items=there(plan.stem_items),
        num_items=count(plan.num_stem_items),
        block_queries=cuts.stem_block_queries or cuts.block_queries,
    )
    return WorkItems(
        items=there(plan.items),
        num_items=count(plan.num_items),
        merge_start=there(plan.merge_start),
        merge_rows=there(plan.merge_rows),
        num_partials=plan.num_partials,
        block_queries=cuts.block_queries,
        stems=stems if plan.num_stem_items else None,
    )


def softmax_attention(given: Batch, rules: AttentionRules) -> tuple[torch.Tensor, torch.Tensor]:
    """Result and log-sum-exp in float64, row by row, without pages, items or merges."""
    out = torch.zeros(given.query.shape, dtype=torch.float64)
    lse = torch.zeros(given.query.shape[:2], dtype=torch.float64)
    groups = given.shape.heads // given.shape.kv_heads
    first = 0
    for slots, count in zip(given.slots, given.shape.queries, strict=True):
        key, value = (
            decode(part.at(torch.from_numpy(slots).long())).double().repeat_interleave(groups, 1)
            for part in (given.kv.layer.keys, given.kv.layer.values)
        )
        queries = slice(first, first + count)
        scores = torch.einsum("qhd,nhd->qhn", given.query[queries].double(), key) * rules.scale
        if rules.soft_cap:
            scores = rules.soft_cap * torch.tanh(scores / rules.soft_cap)
        position = torch.arange(len(slots))
        own = torch.arange(len(slots) - count, len(slots))[:, None, None]
        hidden = position > own
        if rules.window:
            hidden = hidden | (position <= own - rules.window)
        scores = scores.masked_fill(hidden, -torch.inf)
        lse[queries] = torch.logsumexp(scores, -1)
        out[queries] = torch.einsum("qhn,nhd->qhd", scores.softmax(-1), value)
        first += count
    return out, lse
