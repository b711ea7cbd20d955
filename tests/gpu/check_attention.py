"""Checks of paged_attention and merge_partials: kinds of pools, sizes of pages, of heads, of tiles.

Batches are those of tests/kernels: ragged, scattered over a pool that is NaN wherever no row lies.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from gpu_worker.device.attention_plan import Stem
from kernels.attention_inputs import AttentionRules
from kernels.kv_codes import CodedSlots, KvKind, KvLayer
from kernels.merge_partials import merge_partials, merge_partials_reference
from kernels.paged_attention import paged_attention, paged_attention_reference
from tests.gpu.case import Check
from tests.gpu.comparison import Comparison, near, worst
from tests.gpu.place import Place, in_float64
from tests.kernels.batches import Batch, Shape, batch, cut, softmax_attention

KINDS: tuple[KvKind, ...] = ("none", "int8", "fp8")
PAGE_SIZES = (1, 16, 64)

_ROUNDING = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 1.6e-2}
"""Weights are rounded to the type before they meet the values; fp8 pools take float16 there."""

Mode = Literal["decode", "extend", "verify", "cascade"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to ask for attention."""

    mode: Mode
    groups: int = 4
    head_dim: int = 128
    kind: KvKind = "none"
    page_size: int = 16
    block_queries: int = 16
    dtype: torch.dtype | None = None
    """None: the place's."""
    window: int = 0
    soft_cap: float = 0.0
    is_core: bool = False

    @property
    def name(self) -> str:
        """As in kernels/COMPILED.md, without the type where it is the place's own."""
        text = f"{self.mode} kv={self.kind} G{self.groups} D{self.head_dim} page{self.page_size}"
        text += f" BM{self.block_queries}"
        text += f" {str(self.dtype).removeprefix('torch.')}" * (self.dtype is not None)
        return text + " window" * (self.window > 0) + " soft_cap" * (self.soft_cap > 0)


def checks() -> Iterator[Check]:
    """Of both kernels."""
    for variant in variants():
        yield Check(
            kernel="paged_attention",
            name=variant.name,
            run=partial(_check_variant, variant),
            is_core=variant.is_core,
        )
    for head_dim, dtype in ((64, torch.float32), (128, None), (256, None)):
        name = f"D{head_dim} {'float32' if dtype else 'as the model'}"
        yield Check(kernel="merge_partials", name=name, run=partial(_check_merge, head_dim, dtype))


def variants() -> Iterator[Variant]:
    """All kinds of pools with all sizes of pages; then heads, tiles and rules one by one."""
    core = set(zip(KINDS, PAGE_SIZES, strict=True))
    for kind in KINDS:
        for page_size in PAGE_SIZES:
            is_core = (kind, page_size) in core
            yield Variant(mode="decode", kind=kind, page_size=page_size, is_core=is_core)
            yield Variant(
                mode="extend", kind=kind, page_size=page_size, block_queries=64, is_core=is_core
            )
        yield Variant(mode="cascade", kind=kind, block_queries=32, is_core=kind == "none")
        yield Variant(mode="decode", kind=kind, groups=2, head_dim=256, page_size=1)
        yield Variant(mode="extend", kind=kind, groups=2, head_dim=256, block_queries=64)
    for groups, head_dim in ((3, 64), (8, 128), (7, 128), (1, 128), (1, 80)):
        yield Variant(mode="decode", groups=groups, head_dim=head_dim, page_size=1)
        yield Variant(mode="extend", groups=groups, head_dim=head_dim, block_queries=64)
    yield Variant(mode="verify", is_core=True)
    yield Variant(mode="cascade", page_size=64, block_queries=64)
    yield Variant(mode="extend", block_queries=128)
    yield Variant(mode="decode", page_size=64, window=100)
    yield Variant(
        mode="extend", groups=2, head_dim=256, block_queries=64, window=100, soft_cap=20.0
    )
    for mode, block_queries in (("decode", 16), ("extend", 64)):
        for dtype in (torch.float16, torch.float32):
            yield Variant(mode=mode, block_queries=block_queries, dtype=dtype)


def _check_variant(variant: Variant, place: Place) -> Comparison:
    given = _moved(batch(_shape(variant, place)), place)
    work = cut(
        given,
        block_queries=variant.block_queries,
        split=place.pick(512, 32),
        window=variant.window,
    )
    rules = AttentionRules(
        scale=given.shape.head_dim**-0.5, window=variant.window, soft_cap=variant.soft_cap
    )
    lse = torch.full(given.query.shape[:2], torch.nan, device=place.device)
    out = paged_attention(given.query, given.kv, work, rules, lse=lse)
    with in_float64(place.device):
        reference_lse = torch.empty(lse.shape, dtype=torch.float64)
        reference = paged_attention_reference(
            given.query.double(), given.kv, work, rules, lse=reference_lse
        )
        plain, plain_lse = softmax_attention(given, rules)
    is_half_inside = variant.kind == "fp8" and out.dtype == torch.float32
    allowed = _ROUNDING[torch.float16 if is_half_inside else out.dtype]
    return worst(
        [
            near(out, reference, allowed),
            near(out, plain, allowed),
            near(lse, reference_lse, allowed),
            near(lse, plain_lse, allowed),
        ]
    )


def _shape(variant: Variant, place: Place) -> Shape:
    lengths: tuple[int, ...] = (1, 17, 63, 64, 65, 130, 1000, 2047)
    queries: tuple[int, ...] = (1, 17, 5, 64, 1, 33, 700, 300)
    stem_len, num_kv_heads = 1024, 8
    if place.is_tiny:
        lengths, queries, stem_len, num_kv_heads = (1, 40), (1, 6), 64, 1
    if variant.mode == "decode":
        queries = (1,) * len(lengths)
    elif variant.mode == "verify":
        lengths = tuple(length + 4 for length in lengths)
        queries = (4,) * len(lengths)
    stems: tuple[Stem, ...] = ()
    if variant.mode == "cascade":
        lengths = tuple(length + stem_len for length in lengths)
        queries = (1,) * len(lengths)
        stems = (Stem(first_row=0, num_rows=len(lengths), begin=0, end=stem_len),)
    return Shape(
        heads=num_kv_heads * variant.groups,
        kv_heads=num_kv_heads,
        head_dim=place.pick(variant.head_dim, 16),
        page_size=variant.page_size,
        kind=variant.kind,
        dtype=variant.dtype or place.dtype,
        lengths=lengths,
        queries=queries,
        stems=stems,
    )


def _moved(given: Batch, place: Place) -> Batch:
    """The batch on the device; rows and slots stay, they are the planner's."""

    def there(part: CodedSlots) -> CodedSlots:
        scale = None if part.scale is None else part.scale.to(place.device)
        return CodedSlots(codes=part.codes.to(place.device), kind=part.kind, scale=scale)

    layer, table = given.kv.layer, given.kv.page_table.to(place.device)
    moved = KvLayer(keys=there(layer.keys), values=there(layer.values))
    kv = dataclasses.replace(given.kv, layer=moved, page_table=table)
    return dataclasses.replace(given, query=given.query.to(place.device), kv=kv)


def _check_merge(head_dim: int, dtype: torch.dtype | None, place: Place) -> Comparison:
    """Tokens with none, one and many parts; parts that saw nothing among them."""
    counts = [0, 1, 2, 7, 0, 3, place.pick(64, 5)]
    starts = torch.tensor([0, *counts]).cumsum(0).tolist()
    num_heads, num_tokens, num_partials = place.pick(32, 3), len(counts), sum(counts)
    head_dim = place.pick(head_dim, 16)
    partial_out = place.randn(num_partials, num_heads, head_dim, dtype=torch.float32)
    partial_lse = 4 * place.randn(num_partials, num_heads, dtype=torch.float32, seed=1)
    partial_lse[1] = -torch.inf
    columns = place.ints(starts), place.some(num_partials, num_partials)
    shape = (num_tokens, num_heads, head_dim)
    out = torch.full(shape, 7.0, dtype=dtype or place.dtype, device=place.device)
    lse = torch.full(shape[:2], 7.0, device=place.device)
    wanted, wanted_lse = out.double(), lse.double()
    merge_partials(partial_out, partial_lse, *columns, out, lse)
    with in_float64(place.device):
        merge_partials_reference(
            partial_out.double(), partial_lse.double(), *columns, wanted, wanted_lse
        )
    return worst([near(out, wanted), near(lse, wanted_lse, 1e-5)])
