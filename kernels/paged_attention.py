"""Attention over a paged pool of keys and values: decode, extend, cascade and verify in one kernel.

A batch is cut into work items, each a run of query tokens against a range of positions of one page
table.  Where a token's context is one item, the item writes the result; where it is several (split
context, shared stem), each writes a partial result and its log-sum-exp, and `merge_partials` makes
one of them.  What a batch asks for is in the cuts alone:

    decode   one query token an item, contexts cut at multiples of a fixed split
    extend   BLOCK_M / groups query tokens an item, causal among themselves, behind their prefix
    cascade  the query tokens of all rows that share a stem in one item over the stem, which is then
             read once; the rest of each row as above
    verify   extend with as many query tokens as there are drafts, and one

A fixed split makes a token's bits independent of its company; cascade changes the cuts, and so the
last bits.  Online softmax: Milakov and Gimelshein, 2018; split contexts: Flash-Decoding (Dao et
al., 2023); shared stems: Hydragen (Juravsky et al., 2024) and the cascade of FlashInfer (2024).

Moves, for each item and KV head, its positions' keys and values once: 2 * positions * head_dim *
bytes (+ 8 a position for scales), and does 4 * queries * heads * positions * head_dim operations.
Decode is bound by memory, extend by the matrix units.
"""

import torch
import triton
import triton.language as tl

from kernels.attention_inputs import (
    ITEM_FIELDS,
    NO_PARTIAL,
    AttentionRules,
    PagedKv,
    WorkItems,
    Workspace,
    check_inputs,
    check_workspace,
    workspace_for,
)
from kernels.attention_tile import Tile, tile_for
from kernels.compile_case import (
    FUSED,
    SHORT_DTYPES,
    CompileCase,
    CompileCases,
    Vendor,
    limited_registers,
    vendor_here,
)
from kernels.kv_codes import FP8_FACTOR, CodedSlots, KvKind, decode, fp8_over_factor
from kernels.merge_partials import merge_partials, merge_partials_reference

_ITEM_FIELDS = tl.constexpr(ITEM_FIELDS)
_LOG2_E = tl.constexpr(1.4426950408889634)
_LN_2 = tl.constexpr(0.6931471805599453)


def paged_attention(
    query: torch.Tensor,
    kv: PagedKv,
    work: WorkItems,
    rules: AttentionRules,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    workspace: Workspace | None = None,
) -> torch.Tensor:
    """softmax(scores) @ values of every query token.

    query: [tokens, heads, head_dim], each token contiguous.
    out: where the result goes, shaped like query; made, of zeros, where None.
    lse: float32 [tokens, heads]; gets the natural log of the sum of exp(scores), where given.
    workspace: for partial results; made where None.  With it and `out` nothing is allocated.

    Raises:
        ValueError: shapes, types or strides do not go together; names which.
    """
    check_inputs(query, kv, work, out, lse)
    out = torch.zeros_like(query, memory_format=torch.contiguous_format) if out is None else out
    if workspace is None:
        workspace = workspace_for(work.num_partials, query)
    check_workspace(workspace, work.num_partials, query)
    num_heads, keys, values = query.shape[1], kv.layer.keys, kv.layer.values
    num_kv_heads, head_dim = kv.layer.heads
    unused, is_capped = workspace.lse, rules.soft_cap > 0
    for part in (work.stems, work) if work.stems else (work,):
        tile = tile_for(
            part.block_queries, head_dim, keys.kind, vendor_here(), query.dtype, is_capped=is_capped
        )
        _attend_items[(part.items.shape[0], num_kv_heads)](
            query, keys.codes, values.codes,
            unused if keys.scale is None else keys.scale,
            unused if values.scale is None else values.scale,
            kv.page_table, part.items, part.num_items, out, workspace.out, workspace.lse,
            unused if lse is None else lse,
            rules.scale, rules.window, rules.soft_cap,
            query.stride(0), out.stride(0), keys.codes.stride(0), values.codes.stride(0),
            **_constants(
                num_heads, num_kv_heads, head_dim, kv.page_size, keys.kind,
                part.block_queries, tile,
                window=rules.window > 0, soft_cap=is_capped, wants_lse=lse is not None,
            ),
            num_warps=tile.num_warps, num_stages=tile.num_stages,
            **limited_registers(tile.most_registers), **FUSED,
        )  # fmt: skip
    if work.num_partials:
        merge_partials(workspace.out, workspace.lse, work.merge_start, work.merge_rows, out, lse)
    return out


def _constants(
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    page_size: int,
    kind: KvKind,
    block_queries: int,
    tile: Tile,
    *,
    window: bool = False,
    soft_cap: bool = False,
    wants_lse: bool = False,
) -> dict[str, object]:
    return {
        "NUM_HEADS": num_heads,
        "NUM_KV_HEADS": num_kv_heads,
        "GROUPS": num_heads // num_kv_heads,
        "HEAD_DIM": head_dim,
        "BLOCK_D": triton.next_power_of_2(head_dim),
        "PAGE_SIZE": page_size,
        "KIND": kind,
        "BLOCK_M": block_queries,
        "BLOCK_N": tile.block_positions,
        "HAS_WINDOW": window,
        "HAS_SOFT_CAP": soft_cap,
        "WANTS_LSE": wants_lse,
        "STAGES": tile.num_stages,
    }


@triton.jit
def _attend_items(
    query, keys, values, key_scale, value_scale, page_table, items, num_items,
    out, partial_out, partial_lse, lse, scale, window, soft_cap,
    query_stride, out_stride, key_stride, value_stride,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, GROUPS: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, PAGE_SIZE: tl.constexpr, KIND: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HAS_WINDOW: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr, WANTS_LSE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Grid (items, KV heads).  Rows of the score matrix: query tokens, and their groups within."""
    if tl.program_id(0) >= tl.load(num_items):
        return
    kv_head = tl.program_id(1)
    item = items + tl.program_id(0) * _ITEM_FIELDS
    num_queries, first_position = tl.load(item + 1), tl.load(item + 5)
    partial = tl.load(item + 6)
    row = tl.arange(0, BLOCK_M)
    token, head = row // GROUPS, kv_head * GROUPS + row % GROUPS
    dim = tl.arange(0, BLOCK_D)
    live = (token < num_queries)[:, None] & (dim < HEAD_DIM)[None, :]
    at = (tl.load(item) + token).to(tl.int64)
    place = head[:, None] * HEAD_DIM + dim[None, :]
    mixed, row_max, row_sum = _attend_range(
        tl.load(query + at[:, None] * query_stride + place, mask=live, other=0.0),
        keys + kv_head * HEAD_DIM, values + kv_head * HEAD_DIM,
        key_scale + kv_head, value_scale + kv_head,
        page_table + tl.load(item + 2), tl.load(item + 3),
        tl.minimum(tl.load(item + 4), first_position + num_queries), first_position + token,
        scale, window, soft_cap, key_stride, value_stride,
        NUM_KV_HEADS, HEAD_DIM, BLOCK_D, PAGE_SIZE, KIND, BLOCK_M, BLOCK_N,
        HAS_WINDOW, HAS_SOFT_CAP, STAGES,
    )  # fmt: skip
    mixed = mixed / tl.where(row_sum > 0, row_sum, 1.0)[:, None]
    # In base 2; a query that sees nothing of the range has weight 0 in a merge.
    row_lse = tl.where(row_sum > 0, row_max + tl.log2(tl.maximum(row_sum, 1e-38)), -float("inf"))
    if partial < 0:
        tl.store(out + at[:, None] * out_stride + place, mixed.to(out.dtype.element_ty), mask=live)
        if WANTS_LSE:
            tl.store(lse + at * NUM_HEADS + head, row_lse * _LN_2, mask=token < num_queries)
    else:
        at = ((partial + token) * NUM_HEADS + head).to(tl.int64)
        tl.store(partial_out + at[:, None] * HEAD_DIM + dim[None, :], mixed, mask=live)
        tl.store(partial_lse + at, row_lse, mask=token < num_queries)


@triton.jit
def _attend_range(
    query, keys, values, key_scale, value_scale, pages, begin, end, query_position,
    scale, window, soft_cap, key_stride, value_stride,
    NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    PAGE_SIZE: tl.constexpr, KIND: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_SOFT_CAP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Online softmax of the query rows [BLOCK_M, BLOCK_D] over positions begin..end-1.

    Returns the weighted sum of values, not yet divided; the largest score a row, in base 2; and the
    sum of 2 ** (score - largest).
    """
    if KIND == "fp8":
        query = query.to(tl.float16)
    dim = tl.arange(0, BLOCK_D)
    mixed = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    row_max = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    row_sum = tl.zeros((BLOCK_M,), tl.float32)
    for start in tl.range(begin, end, BLOCK_N, num_stages=STAGES):
        position = start + tl.arange(0, BLOCK_N)
        inside = position < end
        slot = tl.load(pages + position // PAGE_SIZE, mask=inside, other=0).to(tl.int64)
        slot = slot * PAGE_SIZE + position % PAGE_SIZE
        key = tl.load(
            keys + slot[None, :] * key_stride + dim[:, None],
            mask=inside[None, :] & (dim < HEAD_DIM)[:, None], other=0,
        )  # fmt: skip
        score = tl.dot(query, _widened(key, query.dtype, KIND), input_precision="ieee") * scale
        if KIND != "none":
            score *= _scale(key_scale + slot * NUM_KV_HEADS, inside, KIND)[None, :]
        if HAS_SOFT_CAP:
            score = soft_cap * _tanh(score / soft_cap)
        seen = _seen(position, inside, query_position, window, HAS_WINDOW)
        score = tl.where(seen, score * _LOG2_E, -float("inf"))
        new_max = tl.maximum(row_max, tl.max(score, 1))
        finite_max = tl.where(new_max == -float("inf"), 0.0, new_max)  # of rows that saw nothing
        faded = tl.exp2(row_max - finite_max)
        weight = tl.exp2(score - finite_max[:, None])
        row_sum = row_sum * faded + tl.sum(weight, 1)
        value = tl.load(
            values + slot[:, None] * value_stride + dim[None, :],
            mask=inside[:, None] & (dim < HEAD_DIM)[None, :], other=0,
        )  # fmt: skip
        if KIND != "none":
            weight *= _scale(value_scale + slot * NUM_KV_HEADS, inside, KIND)[None, :]
        value = _widened(value, query.dtype, KIND)
        added = tl.dot(weight.to(value.dtype), value, input_precision="ieee")
        mixed = mixed * faded[:, None] + added
        row_max = new_max
    return mixed, row_max, row_sum


@triton.jit
def _seen(position, inside, query_position, window, HAS_WINDOW: tl.constexpr):
    """[queries, positions] which a query may see."""
    seen = inside[None, :] & (position[None, :] <= query_position[:, None])
    if HAS_WINDOW:
        seen = seen & (position[None, :] > query_position[:, None] - window)
    return seen


@triton.jit
def _widened(code, dtype: tl.constexpr, KIND: tl.constexpr):
    """Codes as numbers that a product takes."""
    return fp8_over_factor(code) if KIND == "fp8" else code.to(dtype)


@triton.jit
def _scale(scales, inside, KIND: tl.constexpr):
    scale = tl.load(scales, mask=inside, other=0.0)
    return scale * FP8_FACTOR if KIND == "fp8" else scale


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


def paged_attention_reference(
    query: torch.Tensor,
    kv: PagedKv,
    work: WorkItems,
    rules: AttentionRules,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    workspace: Workspace | None = None,
) -> torch.Tensor:
    """The same in plain torch and float64, item by item; it needs no workspace."""
    check_inputs(query, kv, work, out, lse)
    out = torch.zeros_like(query, memory_format=torch.contiguous_format) if out is None else out
    num_heads, head_dim = query.shape[1:]
    partial_out = torch.zeros(work.num_partials, num_heads, head_dim, dtype=torch.float64)
    partial_lse = torch.full((work.num_partials, num_heads), -torch.inf, dtype=torch.float64)
    parts = (work.stems, work) if work.stems else (work,)
    for item in (i for part in parts for i in part.items[: int(part.num_items)].tolist()):
        first, num_queries, partial = item[0], item[1], item[6]
        mixed, row_lse = _reference_item(query[first : first + num_queries], kv, item, rules)
        if partial == NO_PARTIAL:
            out[first : first + num_queries] = mixed.to(out.dtype)
            if lse is not None:
                lse[first : first + num_queries] = row_lse.float()
        else:
            partial_out[partial : partial + num_queries] = mixed
            partial_lse[partial : partial + num_queries] = row_lse / _LN_2.value
    if work.num_partials:
        merge_partials_reference(
            partial_out, partial_lse, work.merge_start, work.merge_rows, out, lse
        )
    return out


def _reference_item(
    query: torch.Tensor, kv: PagedKv, item: list[int], rules: AttentionRules
) -> tuple[torch.Tensor, torch.Tensor]:
    """Result [queries, heads, head_dim] and natural log-sum-exp [queries, heads] of one item."""
    num_queries, num_heads, _ = query.shape
    offset, begin, end, first_position = item[2:6]
    positions = torch.arange(begin, end)
    pages = kv.page_table[offset + positions // kv.page_size].long()
    slots = pages * kv.page_size + positions % kv.page_size

    def heads(pool: CodedSlots) -> torch.Tensor:
        numbers = decode(pool.at(slots)).double()
        return numbers.repeat_interleave(num_heads // numbers.shape[1], dim=1)

    key, value = heads(kv.layer.keys), heads(kv.layer.values)
    scores = torch.einsum("qhd,nhd->qhn", query.double(), key) * rules.scale
    if rules.soft_cap:
        scores = rules.soft_cap * torch.tanh(scores / rules.soft_cap)
    of_query = (first_position + torch.arange(num_queries))[:, None, None]
    hidden = positions > of_query
    if rules.window:
        hidden = hidden | (positions <= of_query - rules.window)
    scores = scores.masked_fill(hidden, -torch.inf)
    row_lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - row_lse.nan_to_num(neginf=0.0)[..., None])
    return torch.einsum("qhn,nhd->qhd", weights, value), row_lse


def compile_cases() -> CompileCases:
    """Decode and extend for every kind of pool; of shapes with one tile the one that holds most."""
    small, usual, wide = (3, 3, 64), (4, 8, 128), (2, 8, 256)
    vendors: tuple[Vendor, ...] = ("nvidia", "amd")
    kinds: tuple[KvKind, ...] = ("none", "int8", "fp8")
    capped = ("window", "soft_cap")
    for vendor in vendors:
        for kind in kinds:
            yield _case(vendor, kind, usual, 16)
            yield _case(vendor, kind, usual, 64, page_size=16)
            yield _case(vendor, kind, usual, 64, flags=capped)
            yield _case(vendor, kind, wide, 16, flags=() if kind == "none" else capped)
            lse = ("wants_lse",) if kind == "none" else ()
            yield _case(vendor, kind, wide, 64, flags=capped + lse)
        yield _case(vendor, "none", small, 16)
        yield _case(vendor, "fp8", small, 16)
        yield _case(vendor, "none", small, 64, page_size=16)
        yield _case(vendor, "none", usual, 16, page_size=64, flags=("window",))
        yield _case(vendor, "none", usual, 128, page_size=16)
        for kind in ("none", "int8"):  # with codes of fp8 float32 has the tiles of other types
            for shape in (small, usual, wide):
                yield _case(vendor, kind, shape, 16, dtype="f32", flags=capped)
                yield _case(vendor, kind, shape, 64, dtype="f32", flags=capped)
        yield _case(vendor, "fp8", wide, 64, dtype="f32")


def _case(
    vendor: Vendor,
    kind: KvKind,
    shape: tuple[int, int, int],
    block_queries: int,
    *,
    page_size: int = 1,
    dtype: str = "bf16",
    flags: tuple[str, ...] = (),
) -> CompileCase:
    """shape: groups, KV heads, head_dim.  flags: constants that are true."""
    groups, num_kv_heads, head_dim = shape
    stored = {"none": SHORT_DTYPES[dtype], "int8": "*i8", "fp8": "*u8"}[kind]
    is_exact = dtype == "f32"
    number = torch.float32 if is_exact else torch.bfloat16
    is_capped = "soft_cap" in flags
    tile = tile_for(block_queries, head_dim, kind, vendor, number, is_capped=is_capped)
    wants = ("sm_80:cp.async", "sm_90:wgmma.mma_async")
    what = "decode" if block_queries < 64 else "extend"
    special = "".join(f" {name}" for name in flags)
    return CompileCase(
        name=f"paged_attention {what} {dtype} kv={kind} G{groups} D{head_dim} page{page_size}"
        f" BM{block_queries}{special}",
        kernel=_attend_items,
        vendor=vendor,
        types={
            "query": SHORT_DTYPES[dtype], "keys": stored, "values": stored, "key_scale": "*fp32",
            "value_scale": "*fp32", "page_table": "*i32", "items": "*i32", "num_items": "*i32",
            "out": SHORT_DTYPES[dtype], "partial_out": "*fp32", "partial_lse": "*fp32",
            "lse": "*fp32", "scale": "fp32", "window": "i32", "soft_cap": "fp32",
            "query_stride": "i32", "out_stride": "i32", "key_stride": "i32", "value_stride": "i32",
        },
        constants=_constants(
            groups * num_kv_heads, num_kv_heads, head_dim, page_size, kind, block_queries, tile,
            **dict.fromkeys(flags, True),
        ),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        most_registers=tile.most_registers,
        any_size=frozenset({"window"}),
        wants=wants if what == "extend" and not is_exact else (),
    )  # fmt: skip
