"""Speed of paged_attention: decodes of many contexts, prompts, and rows that share a stem.

torch is given keys and values as one block, rows of one length: the best case that it has.  The
engine reads its pool by single slots (pages of 1) in whatever order the scheduler dealt them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 (its name everywhere)

from kernels.kv_codes import KvKind
from tests.gpu.case import Aim, Prepared, Speed
from tests.gpu.comparison import Comparison, near, worst
from tests.gpu.large_batch import LargeBatch, large_batch
from tests.gpu.place import Place
from tests.gpu.work import AttentionShape, attention_work, shared_attention_work

DECODE_BLOCK, PROMPT_BLOCK, SPLIT = 16, 64, 512
"""As the engine cuts: gpu_worker/device/step_inputs.py."""
_WHOLE = 1 << 30

_DECODE_AIM = Aim(quantity="share of roofline", limit=0.85, text=">= 85 % of copies")
_EXTEND_AIM = Aim(quantity="share of roofline", limit=0.60, text=">= 60 % of bf16 products")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Rows of one length against one layer of the 8B shape: 32 heads on 8 KV heads of 128."""

    num_rows: int
    length: int
    queries: int = 1
    page_size: int = 1
    kind: KvKind = "none"
    in_order: bool = False
    stem_len: int = 0
    block_queries: int = DECODE_BLOCK
    split: int = SPLIT
    has_rivals: bool = False


DECODE = Layer(num_rows=32, length=32_768)
EXTEND = Layer(num_rows=1, length=8192, queries=8192, block_queries=PROMPT_BLOCK, split=_WHOLE)
"""Tiles enough to fill a card: the engine does not cut their contexts."""


def speeds() -> Iterator[Speed]:
    """Those with an aim first."""
    yield _speed("decode 32 x 32k", replace(DECODE, has_rivals=True), _DECODE_AIM)
    yield _speed("extend 1 x 8k", replace(EXTEND, has_rivals=True), _EXTEND_AIM)
    yield _speed("decode 32 x 32k, slots in order", replace(DECODE, in_order=True))
    for page_size in (16, 64):
        yield _speed(f"decode 32 x 32k page{page_size}", replace(DECODE, page_size=page_size))
    kinds: tuple[KvKind, ...] = ("int8", "fp8")
    for kind in kinds:
        yield _speed(f"decode 32 x 32k kv={kind}", replace(DECODE, kind=kind))
        yield _speed(f"extend 1 x 8k kv={kind}", replace(EXTEND, kind=kind))
    yield _speed("decode 1 x 32k", replace(DECODE, num_rows=1))
    yield _speed("decode 256 x 1k", replace(DECODE, num_rows=256, length=1024))
    yield _speed("extend 1 x 8k page16", replace(EXTEND, page_size=16))
    yield _speed("extend 1 x 8k, fixed cuts", replace(EXTEND, split=SPLIT))
    yield _speed("extend 1 x 8k BM128", replace(EXTEND, block_queries=128))
    yield _speed("extend 2k behind 30k", replace(EXTEND, length=32_768, queries=2048))
    yield _speed(
        "cascade 64 x 16k shared + 512 own",
        replace(DECODE, num_rows=64, length=16_896, stem_len=16_384, block_queries=64),
    )


def _speed(name: str, layer: Layer, aim: Aim | None = None) -> Speed:
    return Speed(kernel="paged_attention", name=name, prepare=partial(_prepare, layer), aim=aim)


def _prepare(layer: Layer, place: Place) -> Prepared:
    shape = _shape(layer, place)
    stem_len = min(layer.stem_len, place.pick(_WHOLE, 16))
    given = large_batch(place, shape, stem_len=stem_len, in_order=layer.in_order)
    out = torch.zeros_like(given.query)
    run = given.attend(
        given.work(layer.block_queries, min(layer.split, place.pick(_WHOLE, 32))), out
    )

    def check() -> Comparison:
        run()
        return worst(_compared(given, out, row) for row in {0, len(shape.lengths) - 1})

    rivals: Mapping[str, Callable[[], object]] = {}
    if layer.has_rivals:
        rivals = _rivals(place, shape)
    work = shared_attention_work(shape, stem_len) if stem_len else attention_work(shape)
    return Prepared(work=work, run=run, check=check, rivals=rivals)


def _shape(layer: Layer, place: Place) -> AttentionShape:
    num_rows = min(layer.num_rows, place.pick(_WHOLE, 2))
    length, queries = layer.length, layer.queries
    if place.is_tiny:
        length, queries = 40, min(queries, 6)
    return AttentionShape(
        lengths=[length] * num_rows,
        queries=[queries] * num_rows,
        num_heads=place.pick(32, 4),
        num_kv_heads=place.pick(8, 1),
        head_dim=place.pick(128, 16),
        page_size=layer.page_size,
        kind=layer.kind,
        itemsize=place.dtype.itemsize,
    )


def _compared(given: LargeBatch, out: torch.Tensor, row: int) -> Comparison:
    """The first and the last queries of a row."""
    first, count = int(given.rows.first_query[row]), given.shape.queries[row]
    ours = out[first : first + count]
    parts = (slice(0, 16), slice(max(0, count - 16), count))
    is_coded = given.shape.kind == "fp8" and out.dtype == torch.float32
    allowed = 4e-3 if is_coded else 1e-5 if out.dtype == torch.float32 else 1.6e-2
    return worst(near(ours[part], given.wanted(row, part), allowed) for part in parts)


def _rivals(place: Place, shape: AttentionShape) -> dict[str, Callable[[], object]]:
    """torch's two, on keys and values [rows, kv_heads, length, head_dim]."""
    num_rows, length, queries = len(shape.lengths), shape.lengths[0], shape.queries[0]
    query = place.randn(num_rows, shape.num_heads, queries, shape.head_dim)
    key, value = (
        place.randn(num_rows, shape.num_kv_heads, length, shape.head_dim, seed=seed)
        for seed in (1, 2)
    )
    is_causal = queries > 1

    def sdpa() -> torch.Tensor:
        return F.scaled_dot_product_attention(
            query, key, value, is_causal=is_causal, enable_gqa=True
        )

    found: dict[str, Callable[[], object]] = {"SDPA": sdpa}
    if not place.is_tiny:  # its compiler takes half a minute on the processor
        found["FlexAttention"] = _flex(query, key, value, is_causal)
    return found


def _flex(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool
) -> Callable[[], object]:
    """FlexAttention as it is meant to be used: compiled, with a mask that skips blocks."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled = torch.compile(flex_attention, dynamic=False)
    mask = None
    if is_causal:
        length = query.shape[2]
        mask = create_block_mask(
            lambda b, h, q, k: q >= k, None, None, length, length, device=query.device
        )
    return lambda: compiled(query, key, value, block_mask=mask, enable_gqa=True)
