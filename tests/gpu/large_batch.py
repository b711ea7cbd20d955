"""One layer's attention at the sizes of a full card: pool, pages, items, and what rows should get.

Everything is made on the device.  What is wanted is computed for some queries of some rows, by a
plain softmax in float64; all rows together would be too many.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gpu_worker.device.attention_plan import Cuts, Rows, Stem, plan_attention
from gpu_worker.device.step_inputs import blocks
from kernels.attention_inputs import AttentionRules, PagedKv, WorkItems
from kernels.kv_codes import CodedSlots, KvLayer, decode, encode, new_slots
from kernels.paged_attention import paged_attention
from tests.gpu.place import Place, in_float64
from tests.gpu.work import AttentionShape
from tests.kernels.batches import work_items

_CHUNK = 1 << 15
"""Slots coded at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeBatch:
    """Inputs of a launch."""

    shape: AttentionShape
    query: torch.Tensor
    kv: PagedKv
    rows: Rows
    stem_len: int
    rules: AttentionRules

    def work(self, block_queries: int, split: int) -> WorkItems:
        """Cut as the engine cuts, where `split` and `block_queries` are the engine's."""
        groups = self.shape.num_heads // self.shape.num_kv_heads
        stems = ()
        if self.stem_len:
            stems = (Stem(first_row=0, num_rows=len(self.rows), begin=0, end=self.stem_len),)
        _, stem_block = blocks(groups)
        cuts = Cuts(
            groups=groups, block_queries=block_queries, stem_block_queries=stem_block, split=split
        )
        return work_items(plan_attention(self.rows, cuts, stems), cuts, self.query.device)

    def attend(self, work: WorkItems, out: torch.Tensor) -> Callable[[], object]:
        """The launch, as a layer of the model makes it."""
        return lambda: paged_attention(self.query, self.kv, work, self.rules, out)

    def wanted(self, row: int, queries: slice) -> torch.Tensor:
        """float64 [queries, heads, head_dim] of a run of a row's queries, from its first on."""
        length, count = self.shape.lengths[row], self.shape.queries[row]
        first = int(self.rows.first_query[row])
        query = self.query[first : first + count][queries].double()
        position = torch.arange(length, device=query.device)
        pages = self.kv.page_table[int(self.rows.table_offset[row]) :]
        page_size = self.kv.page_size
        slots = pages[position // page_size].long() * page_size + position % page_size
        groups = self.shape.num_heads // self.shape.num_kv_heads
        own = torch.arange(length - count, length, device=query.device)[queries]
        hidden = (position[None, :] > own[:, None])[:, None, :]
        with in_float64(query.device):
            layer = self.kv.layer
            key, value = decode(layer.keys.at(slots)), decode(layer.values.at(slots))
        grouped = query.unflatten(1, (-1, groups))
        scores = torch.einsum("qkgd,nkd->qkgn", grouped, key) * self.rules.scale
        weights = scores.masked_fill(hidden[:, None], -torch.inf).softmax(-1)
        return torch.einsum("qkgn,nkd->qkgd", weights, value).flatten(1, 2)


def large_batch(
    place: Place, shape: AttentionShape, *, stem_len: int = 0, in_order: bool = False
) -> LargeBatch:
    """Pages in random order, unless `in_order`; the first `stem_len` positions are all rows'."""
    pages = [-(-length // shape.page_size) for length in shape.lengths]
    total, stem_pages = sum(pages), stem_len // shape.page_size
    order = (
        torch.arange(total, dtype=torch.int32, device=place.device)
        if in_order
        else place.some(total, total)
    )
    offsets = np.cumsum([0, *pages[:-1]]).astype(np.int32)
    for offset in offsets.tolist() if stem_pages else ():
        order[offset : offset + stem_pages] = order[:stem_pages].clone()
    num_slots = total * shape.page_size
    return LargeBatch(
        shape=shape,
        query=place.randn(sum(shape.queries), shape.num_heads, shape.head_dim),
        kv=PagedKv(
            layer=KvLayer(
                keys=_pool(place, shape, num_slots, seed=1),
                values=_pool(place, shape, num_slots, seed=2),
            ),
            page_table=order,
            page_size=shape.page_size,
        ),
        rows=Rows(
            first_query=_before(shape.queries),
            num_queries=np.array(shape.queries, np.int32),
            length=np.array(shape.lengths, np.int32),
            table_offset=offsets,
        ),
        stem_len=stem_len,
        rules=AttentionRules(scale=shape.head_dim**-0.5),
    )


def _before(counts: Sequence[int]) -> np.ndarray:
    return np.cumsum([0, *counts[:-1]]).astype(np.int32)


def _pool(place: Place, shape: AttentionShape, num_slots: int, seed: int) -> CodedSlots:
    """Keys or values of every slot, coded a part at a time, as widening all takes much memory."""
    heads = (shape.num_kv_heads, shape.head_dim)
    if shape.kind == "none":
        return CodedSlots(codes=place.randn(num_slots, *heads, seed=seed))
    pool = new_slots((num_slots, *heads), shape.kind, place.dtype, place.device)
    assert pool.scale is not None
    for start in range(0, num_slots, _CHUNK):
        part = slice(start, min(start + _CHUNK, num_slots))
        size = part.stop - part.start
        coded = encode(place.randn(size, *heads, seed=seed + start), shape.kind)
        assert coded.scale is not None
        pool.codes[part], pool.scale[part] = coded.codes, coded.scale
    return pool
