"""Rotary embedding of queries and keys, and keys and values written to their slots, in one pass.

Takes the joint projection [query heads | key heads | value heads].  Queries and keys are normed by
head where the model does so (Qwen3, Gemma 3), then rotated: pairs half the rotated part apart
(Su et al., RoFormer, 2021, in the order of GPT-NeoX).  Keys and values are coded as the pool is;
see kv_codes.  A slot below 0 marks padding: nothing of it is written.

Moves the projection once in and once out, in the pool's bytes for keys and values.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.compile_case import FUSED, SHORT_DTYPES, CompileCase, CompileCases
from kernels.kv_codes import KvKind, KvLayer, coded, encode, scale_of

_NUM_WARPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class QkNorms:
    """Root-mean-square norms of single heads."""

    query_weight: torch.Tensor
    """[head_dim]"""
    key_weight: torch.Tensor
    eps: float
    weight_offset: float = 0.0
    """Added to every weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """Angles by position."""

    cos: torch.Tensor
    """float32 [positions, rotated / 2], contiguous; dimensions past `rotated` stay as they are."""
    sin: torch.Tensor


def rope_store(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    rotation: Rotation,
    target: KvLayer,
    norms: QkNorms | None = None,
) -> torch.Tensor:
    """Queries [tokens, heads, head_dim], rotated; keys and values go to `target`.

    qkv: [tokens, (heads + 2 * kv_heads) * head_dim].  positions, slots: int32 [tokens].

    Raises:
        ValueError: shapes or types do not go together; names which.
    """
    num_heads = _check(qkv, positions, slots, rotation, target)
    keys, values, (num_kv_heads, head_dim) = target.keys, target.values, target.heads
    query = qkv.new_empty(len(qkv), num_heads, head_dim)
    weight = rotation.cos
    if len(qkv):
        _rope_store[(len(qkv), 3)](
            qkv, query, keys.codes, values.codes,
            weight if keys.scale is None else keys.scale,
            weight if values.scale is None else values.scale,
            weight if norms is None else norms.query_weight,
            weight if norms is None else norms.key_weight,
            rotation.cos, rotation.sin, positions, slots,
            0.0 if norms is None else norms.eps, 0.0 if norms is None else norms.weight_offset,
            qkv.stride(0), keys.codes.stride(0), values.codes.stride(0),
            **_constants(
                num_heads, num_kv_heads, head_dim, 2 * rotation.cos.shape[1], keys.kind,
                norms is not None,
            ),
            num_warps=_NUM_WARPS,
            **FUSED,
        )  # fmt: skip
    return query


def _constants(
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    rotated: int,
    kind: KvKind,
    has_norms: bool,
) -> dict[str, object]:
    return {
        "NUM_HEADS": num_heads,
        "NUM_KV_HEADS": num_kv_heads,
        "BLOCK_H": triton.next_power_of_2(num_heads),
        "BLOCK_KV": triton.next_power_of_2(num_kv_heads),
        "HEAD_DIM": head_dim,
        "BLOCK_D": triton.next_power_of_2(head_dim),
        "HALF": rotated // 2,
        "KIND": kind,
        "HAS_NORMS": has_norms,
    }


@triton.jit
def _rope_store(
    qkv, query, keys, values, key_scale, value_scale, query_weight, key_weight,
    cos, sin, positions, slots, eps, weight_offset, qkv_stride, key_stride, value_stride,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_KV: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, HALF: tl.constexpr,
    KIND: tl.constexpr, HAS_NORMS: tl.constexpr,
):  # fmt: skip
    """Grid (tokens, 3): queries, keys, values."""
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + token).to(tl.int64)
    angle = tl.load(positions + token).to(tl.int64) * HALF
    source = qkv + token * qkv_stride
    if part == 0:
        x, place, live = _rotated(
            source, query_weight, cos + angle, sin + angle, eps, weight_offset,
            NUM_HEADS, BLOCK_H, HEAD_DIM, BLOCK_D, HALF, HAS_NORMS,
        )  # fmt: skip
        query += token * NUM_HEADS * HEAD_DIM
        tl.store(query + place, x.to(query.dtype.element_ty), mask=live)
    elif slot >= 0:
        source += NUM_HEADS * HEAD_DIM
        if part == 1:
            x, place, live = _rotated(
                source, key_weight, cos + angle, sin + angle, eps, weight_offset,
                NUM_KV_HEADS, BLOCK_KV, HEAD_DIM, BLOCK_D, HALF, HAS_NORMS,
            )  # fmt: skip
            scales = key_scale + slot * NUM_KV_HEADS
            _store(keys + slot * key_stride, scales, x, place, live, NUM_KV_HEADS, BLOCK_KV, KIND)
        else:
            source += NUM_KV_HEADS * HEAD_DIM
            place, live = _tile(NUM_KV_HEADS, BLOCK_KV, HEAD_DIM, BLOCK_D)
            x = tl.load(source + place, mask=live, other=0.0).to(tl.float32)
            scales = value_scale + slot * NUM_KV_HEADS
            values += slot * value_stride
            _store(values, scales, x, place, live, NUM_KV_HEADS, BLOCK_KV, KIND)


@triton.jit
def _tile(HEADS: tl.constexpr, BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Places [BLOCK, BLOCK_D] of a token's numbers, and which there are."""
    head, dim = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK_D)[None, :]
    return head * HEAD_DIM + dim, (head < HEADS) & (dim < HEAD_DIM)


@triton.jit
def _rotated(
    source, weight, cos, sin, eps, weight_offset, HEADS: tl.constexpr, BLOCK: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, HALF: tl.constexpr, HAS_NORMS: tl.constexpr,
):  # fmt: skip
    """Heads [BLOCK, BLOCK_D] float32, normed and rotated, 0 beyond; their places, which are."""
    place, live = _tile(HEADS, BLOCK, HEAD_DIM, BLOCK_D)
    dim = tl.arange(0, BLOCK_D)
    turned = dim < 2 * HALF
    partner = tl.where(dim < HALF, HALF, -HALF)
    x = tl.load(source + place, mask=live, other=0.0).to(tl.float32)
    there = live & turned[None, :]
    other = tl.load(source + place + partner[None, :], mask=there, other=0.0).to(tl.float32)
    if HAS_NORMS:
        scale = tl.rsqrt(tl.sum(x * x, 1) / HEAD_DIM + eps)[:, None]
        factor = tl.load(weight + dim, mask=dim < HEAD_DIM, other=0.0).to(tl.float32)
        x = x * scale * (factor + weight_offset)[None, :]
        factor = tl.load(weight + dim + partner, mask=turned, other=0.0).to(tl.float32)
        other = other * scale * (factor + weight_offset)[None, :]
    c = tl.load(cos + dim % HALF, mask=turned, other=1.0)[None, :]
    s = tl.load(sin + dim % HALF, mask=turned, other=0.0)[None, :]
    moved = x * c + tl.where(dim < HALF, -1.0, 1.0)[None, :] * other * s
    return tl.where(there, moved, tl.where(live, x, 0.0)), place, live


@triton.jit
def _store(
    pool, scales, x, place, live, HEADS: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr
):
    if KIND == "none":
        tl.store(pool + place, x.to(pool.dtype.element_ty), mask=live)
    else:
        scale = scale_of(x, KIND)
        head = tl.arange(0, BLOCK)
        tl.store(scales + head, scale, mask=head < HEADS)
        tl.store(pool + place, coded(x, scale, KIND), mask=live)


def rope_store_reference(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    rotation: Rotation,
    target: KvLayer,
    norms: QkNorms | None = None,
) -> torch.Tensor:
    """The same in plain torch."""
    num_heads = _check(qkv, positions, slots, rotation, target)
    num_kv_heads, head_dim = target.heads
    heads = qkv.view(len(qkv), -1, head_dim).float()
    query, key, value = heads.split((num_heads, num_kv_heads, num_kv_heads), dim=1)
    if norms is not None:
        query = _reference_norm(query, norms.query_weight, norms)
        key = _reference_norm(key, norms.key_weight, norms)
    cos, sin = (table[positions.long()][:, None] for table in (rotation.cos, rotation.sin))
    query, key = _reference_turn(query, cos, sin), _reference_turn(key, cos, sin)
    live = slots >= 0
    kept = slots[live].long()
    for numbers, pool in ((key, target.keys), (value, target.values)):
        new = encode(numbers[live], pool.kind)
        pool.codes[kept] = new.codes.to(pool.codes.dtype)
        if pool.scale is not None and new.scale is not None:
            pool.scale[kept] = new.scale
    return query.to(qkv.dtype)


def _reference_norm(x: torch.Tensor, weight: torch.Tensor, norms: QkNorms) -> torch.Tensor:
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + norms.eps)
    return x * scale * (weight.float() + norms.weight_offset)


def _reference_turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    turned = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat([*turned, rest], dim=-1)


def _check(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    rotation: Rotation,
    target: KvLayer,
) -> int:
    """Number of query heads."""
    num_kv_heads, head_dim = target.heads
    num_heads = int(qkv.shape[1] // head_dim - 2 * num_kv_heads)
    if num_heads < 1 or qkv.shape[1] % head_dim or qkv.stride(1) != 1:
        raise ValueError(f"qkv {tuple(qkv.shape)} for {num_kv_heads} KV heads of {head_dim}")
    for name, column in (("positions", positions), ("slots", slots)):
        if column.shape != (len(qkv),) or column.dtype != torch.int32:
            raise ValueError(f"{name} {tuple(column.shape)} {column.dtype}: not int32 [tokens]")
    if rotation.cos.shape != rotation.sin.shape or 2 * rotation.cos.shape[1] > head_dim:
        raise ValueError(f"cos {tuple(rotation.cos.shape)} for heads of {head_dim}")
    return num_heads


def compile_cases() -> CompileCases:
    """Heads of 64, 128 and 256, and every kind of pool."""
    shapes = ((9, 3, 64, "f32", False), (32, 8, 128, "bf16", False), (16, 8, 256, "bf16", True))
    kinds: tuple[tuple[KvKind, str], ...] = (("none", ""), ("int8", "*i8"), ("fp8", "*u8"))
    for kind, stored in kinds:
        for num_heads, num_kv_heads, head_dim, dtype, has_norms in shapes:
            if kind != "none" and head_dim == 64:
                continue  # of float32 pools, and in the others nothing is larger than of 128
            number = SHORT_DTYPES[dtype]
            yield CompileCase(
                name=f"rope_store {dtype} kv={kind} D{head_dim}{' norms' * has_norms}",
                kernel=_rope_store,
                types={
                    "qkv": number, "query": number, "keys": stored or number,
                    "values": stored or number, "key_scale": "*fp32", "value_scale": "*fp32",
                    "query_weight": number, "key_weight": number, "cos": "*fp32", "sin": "*fp32",
                    "positions": "*i32", "slots": "*i32", "eps": "fp32", "weight_offset": "fp32",
                    "qkv_stride": "i32", "key_stride": "i32", "value_stride": "i32",
                },
                constants=_constants(num_heads, num_kv_heads, head_dim, head_dim, kind, has_norms),
                num_warps=_NUM_WARPS,
            )  # fmt: skip
