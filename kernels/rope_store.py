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

from kernels.compile_case import SHORT_DTYPES, CompileCase, CompileCases
from kernels.kv_codes import KvKind, coded, encode, scale_of


@dataclass(frozen=True, slots=True, kw_only=True)
class KvTarget:
    """One layer's pool, to be written."""

    keys: torch.Tensor
    """[slots, kv_heads, head_dim], coded as `kind` says."""
    values: torch.Tensor
    kind: KvKind = "none"
    key_scale: torch.Tensor | None = None
    """float32 [slots, kv_heads] for coded pools."""
    value_scale: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadNorms:
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
    target: KvTarget,
    norms: HeadNorms | None = None,
) -> torch.Tensor:
    """Queries [tokens, heads, head_dim], rotated; keys and values go to `target`.

    qkv: [tokens, (heads + 2 * kv_heads) * head_dim].  positions, slots: int32 [tokens].

    Raises:
        ValueError: shapes or types do not go together; names which.
    """
    num_heads = _check(qkv, positions, slots, rotation, target)
    num_kv_heads, head_dim = target.keys.shape[1:]
    query = qkv.new_empty(len(qkv), num_heads, head_dim)
    weight = rotation.cos
    if len(qkv):
        _rope_store[(len(qkv), num_heads + 2 * num_kv_heads)](
            qkv, query, target.keys, target.values,
            weight if target.key_scale is None else target.key_scale,
            weight if target.value_scale is None else target.value_scale,
            weight if norms is None else norms.query_weight,
            weight if norms is None else norms.key_weight,
            rotation.cos, rotation.sin, positions, slots,
            0.0 if norms is None else norms.eps, 0.0 if norms is None else norms.weight_offset,
            qkv.stride(0), target.keys.stride(0), target.values.stride(0),
            **_constants(
                num_heads, num_kv_heads, head_dim, 2 * rotation.cos.shape[1], target.kind,
                norms is not None,
            ),
            num_warps=1,
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
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, HALF: tl.constexpr, KIND: tl.constexpr, HAS_NORMS: tl.constexpr,
):  # fmt: skip
    """Grid (tokens, heads + 2 * kv_heads)."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + token).to(tl.int64)
    position = tl.load(positions + token).to(tl.int64)
    dim = tl.arange(0, BLOCK_D)
    live = dim < HEAD_DIM
    source = qkv + token * qkv_stride + head * HEAD_DIM
    if head < NUM_HEADS:
        x = _rotated(
            source, query_weight, cos + position * HALF, sin + position * HALF, eps, weight_offset,
            HEAD_DIM, BLOCK_D, HALF, HAS_NORMS,
        )  # fmt: skip
        place = query + (token * NUM_HEADS + head) * HEAD_DIM + dim
        tl.store(place, x.to(query.dtype.element_ty), mask=live)
    elif slot >= 0:
        if head < NUM_HEADS + NUM_KV_HEADS:
            x = _rotated(
                source, key_weight, cos + position * HALF, sin + position * HALF, eps,
                weight_offset, HEAD_DIM, BLOCK_D, HALF, HAS_NORMS,
            )  # fmt: skip
            kv_head = head - NUM_HEADS
            at = slot * NUM_KV_HEADS + kv_head
            _store(
                keys + slot * key_stride + kv_head * HEAD_DIM + dim, key_scale + at, x, live, KIND
            )
        else:
            x = tl.load(source + dim, mask=live, other=0.0).to(tl.float32)
            kv_head = head - NUM_HEADS - NUM_KV_HEADS
            at = slot * NUM_KV_HEADS + kv_head
            place = values + slot * value_stride + kv_head * HEAD_DIM + dim
            _store(place, value_scale + at, x, live, KIND)


@triton.jit
def _rotated(
    source, weight, cos, sin, eps, weight_offset,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, HALF: tl.constexpr, HAS_NORMS: tl.constexpr,
):  # fmt: skip
    """A head [BLOCK_D] float32, normed and rotated; 0 beyond the head."""
    dim = tl.arange(0, BLOCK_D)
    turned = dim < 2 * HALF
    partner = tl.where(dim < HALF, dim + HALF, dim - HALF)
    x = tl.load(source + dim, mask=dim < HEAD_DIM, other=0.0).to(tl.float32)
    other = tl.load(source + partner, mask=turned, other=0.0).to(tl.float32)
    if HAS_NORMS:
        scale = tl.rsqrt(tl.sum(x * x, 0) / HEAD_DIM + eps)
        factor = tl.load(weight + dim, mask=dim < HEAD_DIM, other=0.0).to(tl.float32)
        x = x * scale * (factor + weight_offset)
        factor = tl.load(weight + partner, mask=turned, other=0.0).to(tl.float32)
        other = other * scale * (factor + weight_offset)
    c = tl.load(cos + dim % HALF, mask=turned, other=1.0)
    s = tl.load(sin + dim % HALF, mask=turned, other=0.0)
    return tl.where(turned, x * c + tl.where(dim < HALF, -other, other) * s, x)


@triton.jit
def _store(place, scale_place, x, live, KIND: tl.constexpr):
    if KIND == "none":
        tl.store(place, x.to(place.dtype.element_ty), mask=live)
    else:
        scale = scale_of(x, KIND)
        tl.store(scale_place, scale)
        tl.store(place, coded(x, scale, KIND), mask=live)


def rope_store_reference(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    rotation: Rotation,
    target: KvTarget,
    norms: HeadNorms | None = None,
) -> torch.Tensor:
    """The same in plain torch."""
    num_heads = _check(qkv, positions, slots, rotation, target)
    num_kv_heads, head_dim = target.keys.shape[1:]
    heads = qkv.view(len(qkv), -1, head_dim).float()
    query, key, value = heads.split((num_heads, num_kv_heads, num_kv_heads), dim=1)
    if norms is not None:
        query = _reference_norm(query, norms.query_weight, norms)
        key = _reference_norm(key, norms.key_weight, norms)
    cos, sin = (table[positions.long()][:, None] for table in (rotation.cos, rotation.sin))
    query, key = _reference_turn(query, cos, sin), _reference_turn(key, cos, sin)
    live = slots >= 0
    kept = slots[live].long()
    for numbers, pool, scales in (
        (key, target.keys, target.key_scale),
        (value, target.values, target.value_scale),
    ):
        codes, scale = encode(numbers[live], target.kind)
        pool[kept] = codes.to(pool.dtype)
        if scales is not None and scale is not None:
            scales[kept] = scale
    return query.to(qkv.dtype)


def _reference_norm(x: torch.Tensor, weight: torch.Tensor, norms: HeadNorms) -> torch.Tensor:
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
    target: KvTarget,
) -> int:
    """Number of query heads."""
    num_kv_heads, head_dim = target.keys.shape[1:]
    num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
    if num_heads < 1 or qkv.shape[1] % head_dim or qkv.stride(1) != 1:
        raise ValueError(f"qkv {tuple(qkv.shape)} for {num_kv_heads} KV heads of {head_dim}")
    for name, column in (("positions", positions), ("slots", slots)):
        if column.shape != (len(qkv),) or column.dtype != torch.int32:
            raise ValueError(f"{name} {tuple(column.shape)} {column.dtype}: not int32 [tokens]")
    if rotation.cos.shape != rotation.sin.shape or 2 * rotation.cos.shape[1] > head_dim:
        raise ValueError(f"cos {tuple(rotation.cos.shape)} for heads of {head_dim}")
    scales = (target.key_scale, target.value_scale)
    if any((scale is None) != (target.kind == "none") for scale in scales):
        raise ValueError(f"a pool of kind {target.kind} and its scales do not go together")
    if target.keys.shape != target.values.shape or target.keys.stride()[1:] != (head_dim, 1):
        raise ValueError(f"keys {tuple(target.keys.shape)}, values {tuple(target.values.shape)}")
    return num_heads


def compile_cases() -> CompileCases:
    """Heads of 64, 128 and 256 for every kind of pool."""
    shapes = ((9, 3, 64, "f32", False), (32, 8, 128, "bf16", False), (16, 8, 256, "bf16", True))
    for kind, stored in (("none", ""), ("int8", "*i8"), ("fp8", "*u8")):
        for num_heads, num_kv_heads, head_dim, dtype, has_norms in shapes:
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
                num_warps=1,
            )  # fmt: skip
