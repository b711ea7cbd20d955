"""One token drawn from each row of logits, without a sort.

Temperature, then top-k, top-p and min-p choose candidates; the candidate with the largest
logit / temperature + Gumbel noise wins.  The noise of a token is a function of (seed, position,
token id) alone: Philox4x32-10 (Salmon et al., 2011) with key = seed and counter =
(token id // 4, position, 0, 0), of whose four words the one of token id % 4 counts.  So a draw
depends on no other row and on no generator's state.

Thresholds are found by search over the order-preserving integer image of the logits (as in
FlashInfer's sort-free sampler, 2025), a few bits a pass; of tokens equal at a threshold the lowest
ids stay.  Ties go to the lowest id.  NaN counts as -inf, and a row that has one, or an infinity, is
greedy.  One program a row.

Moves vocab * 4 bytes a row and pass: 2 passes greedy, 3 with a temperature, 16 more for each of
top-k and top-p, which the second-level cache mostly serves.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.compile_case import CompileCase, CompileCases
from kernels.logit_row import load_logits, winner

GREEDY_BELOW = 1e-5
"""Temperatures below it are greedy."""

_GREEDY_BELOW = tl.constexpr(GREEDY_BELOW)
_BLOCK = 2048
_BITS = 2
_NUM_WARPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Parameters of rows, [rows] each."""

    temperature: torch.Tensor
    """float32"""
    top_k: torch.Tensor
    """int32; 0, or the vocabulary and more: no limit."""
    top_p: torch.Tensor
    """float32; from 1 on: no limit."""
    min_p: torch.Tensor
    """float32; 0: no limit."""
    seed: torch.Tensor
    """int64"""
    position: torch.Tensor
    """int32, absolute, of the token that is drawn."""


def sample(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """int32 [rows] of float32 [rows, vocab].

    Raises:
        ValueError: shapes or types do not go together; names which.
    """
    _check(logits, sampling)
    out = torch.empty(len(logits), dtype=torch.int32, device=logits.device)
    if len(logits):
        _sample[(len(logits),)](
            logits, out, sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p,
            sampling.seed, sampling.position, logits.stride(0), logits.shape[1],
            BLOCK=_BLOCK, BITS=_BITS, num_warps=_NUM_WARPS,
        )  # fmt: skip
    return out


@triton.jit
def _sample(
    logits, out, temperature, top_k, top_p, min_p, seed, position, row_stride, vocab_size,
    BLOCK: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """Grid (rows)."""
    row = tl.program_id(0)
    x = logits + row.to(tl.int64) * row_stride
    top, choice, is_broken = _largest(x, vocab_size, BLOCK)
    heat = tl.load(temperature + row)
    # Where the largest is infinite or all are -inf there is nothing to weigh.
    can_weigh = (top < float("inf")) & (top > -float("inf")) & (is_broken == 0)
    if (heat >= _GREEDY_BELOW) & can_weigh:
        threshold = tl.full((), 0, tl.uint32)
        ties = vocab_size
        k, p = tl.load(top_k + row), tl.load(top_p + row)
        if (k > 0) & (k < vocab_size):
            threshold, ties = _kth_largest(x, k, vocab_size, BLOCK, BITS)
        if p < 1.0:
            threshold, ties = _nucleus(x, top, heat, p, threshold, ties, vocab_size, BLOCK, BITS)
        choice = _draw(
            x, top, heat, tl.load(min_p + row), threshold, ties, tl.load(seed + row),
            tl.load(position + row), vocab_size, BLOCK,
        )  # fmt: skip
    tl.store(out + row, choice)


@triton.jit
def _key(x):
    """uint32 in the order of the floats."""
    bits = x.to(tl.uint32, bitcast=True)
    return tl.where((bits >> 31) != 0, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def _value(key):
    """The float of a key."""
    bits = tl.where((key >> 31) != 0, key ^ 0x80000000, key ^ 0xFFFFFFFF)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _largest(x, vocab_size, BLOCK: tl.constexpr):
    """The largest logit and its lowest id; and whether a NaN is among them."""
    lane = tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), -float("inf"), tl.float32)
    best_token = lane
    broken = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, vocab_size, BLOCK):
        value = tl.load(x + start + lane, mask=start + lane < vocab_size, other=-float("inf"))
        broken = tl.where(value == value, broken, 1)
        better = value > best  # never of a NaN
        best = tl.where(better, value, best)
        best_token = tl.where(better, start + lane, best_token)
    top, token = winner(best, best_token)
    return top, token, tl.max(broken, 0)


@triton.jit
def _kth_largest(x, k, vocab_size, BLOCK: tl.constexpr, BITS: tl.constexpr):
    """Key of the k-th largest logit, and how many tokens of that key are among the k largest."""
    lane = tl.arange(0, BLOCK)
    step = tl.arange(0, 2**BITS).to(tl.uint32)
    key = tl.full((), 0, tl.uint32)
    above = 0
    for done in tl.range(0, 32, BITS):
        candidate = (key + (step << (32 - BITS - done))).to(tl.uint32)
        count = tl.zeros((2**BITS,), tl.int32)
        for start in range(0, vocab_size, BLOCK):
            keys = _key(load_logits(x, start + lane, vocab_size))
            keys = tl.where(start + lane < vocab_size, keys, 0)
            count += tl.sum((keys[None, :] >= candidate[:, None]).to(tl.int32), 1)
        enough = (count >= k) | (step == 0)
        key = tl.max(tl.where(enough, candidate, key), 0)
        # Those at or above a candidate too high: the last pass leaves those above the key itself.
        above = tl.maximum(above, tl.max(tl.where(enough, 0, count), 0))
    return key, k - above


@triton.jit
def _nucleus(
    x, top, heat, p, least_key, least_ties, vocab_size, BLOCK: tl.constexpr, BITS: tl.constexpr
):  # fmt: skip
    """Narrows (key, ties) to the fewest likeliest tokens whose share of probability reaches p."""
    lane = tl.arange(0, BLOCK)
    step = tl.arange(0, 2**BITS).to(tl.uint32)
    # Probability above the least key, and of its ties that stay.
    mass = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, vocab_size, BLOCK):
        value = load_logits(x, start + lane, vocab_size)
        mass += tl.where(_key(value) > least_key, tl.exp((value - top) / heat), 0.0)
    of_ties = least_ties.to(tl.float32) * tl.exp((_value(least_key) - top) / heat)
    # Without a least key there are no ties to count; its value is no number then.
    of_ties = tl.where(least_key > 0, of_ties, 0.0)
    need = p * (tl.sum(mass, 0) + of_ties)
    key = tl.full((), 0, tl.uint32)
    above = 0.0
    for done in tl.range(0, 32, BITS):
        candidate = (key + (step << (32 - BITS - done))).to(tl.uint32)
        reached = tl.zeros((2**BITS,), tl.float32)
        for start in range(0, vocab_size, BLOCK):
            value = load_logits(x, start + lane, vocab_size)
            keys = _key(value)
            weight = tl.where(keys > least_key, tl.exp((value - top) / heat), 0.0)
            reached += tl.sum(
                tl.where(keys[None, :] >= candidate[:, None], weight[None, :], 0.0), 1
            )
        reached += tl.where(candidate <= least_key, of_ties, 0.0)
        enough = (reached >= need) | (step == 0)
        key = tl.max(tl.where(enough, candidate, key), 0)
        above = tl.maximum(above, tl.max(tl.where(enough, 0.0, reached), 0))
    each = tl.exp((_value(tl.maximum(key, 1)) - top) / heat)
    wanted = tl.ceil((need - above) / tl.maximum(each, 1e-38))
    ties = tl.minimum(tl.maximum(wanted, 1.0), 1e9).to(tl.int32)
    if key <= least_key:
        key = least_key
        ties = tl.minimum(ties, least_ties)
    return key, ties


@triton.jit
def _draw(
    x, top, heat, p_min, threshold, ties, seed, position, vocab_size, BLOCK: tl.constexpr
):  # fmt: skip
    """The winner among tokens above the threshold, the first `ties` at it, and at least p_min."""
    lane = tl.arange(0, BLOCK)
    least_score = tl.where(
        p_min > 0, tl.minimum(tl.log(tl.maximum(p_min, 1e-38)), 0.0), -float("inf")
    )
    best = tl.full((BLOCK,), -float("inf"), tl.float32)
    best_token = lane
    used = 0
    for start in range(0, vocab_size, BLOCK):
        token = start + lane
        value = load_logits(x, token, vocab_size)
        keys = _key(value)
        score = (value - top) / heat
        possible = (keys >= threshold) & (score >= least_score) & (value > -float("inf"))
        if tl.max(possible.to(tl.int32), 0) > 0:
            tie = ((keys == threshold) & (token < vocab_size)).to(tl.int32)
            kept = possible & ((tie == 0) | (used + tl.cumsum(tie, 0) <= ties))
            used += tl.sum(tie, 0)
            noisy = tl.where(kept, score + _noise(seed, position, start, BLOCK), -float("inf"))
            better = noisy > best
            best = tl.where(better, noisy, best)
            best_token = tl.where(better, token, best_token)
    _, choice = winner(best, best_token)
    return choice


@triton.jit
def _noise(seed, position, start, BLOCK: tl.constexpr):
    """Gumbel noise of tokens start..start + BLOCK - 1, where start is a multiple of 4."""
    group = (start // 4 + tl.arange(0, BLOCK // 4)).to(tl.uint32)
    zero = tl.zeros_like(group)
    a, b, c, d = tl.philox(seed, group, zero + position.to(tl.uint32), zero, zero)
    # The four words of a group side by side.
    words = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (BLOCK,))
    # u = (word + 1/2) / 2**32 is not to be rounded to 1: above 1/2 its distance to 1 is used.
    low = words < 0x80000000
    u = (words.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    v = ((words ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    rest = 1.0 - v
    # log(1 - v) of a small v: log(rest) times what rounding did to rest (Kahan).
    upper = tl.where(rest == 1.0, v, -tl.log(rest) * v / tl.where(rest == 1.0, 1.0, 1.0 - rest))
    return -tl.log(tl.where(low, -tl.log(u), upper))


def sample_reference(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """The same in plain torch and float64, row by row, by sorting."""
    _check(logits, sampling)
    chosen = [_reference_row(row, sampling, index) for index, row in enumerate(logits)]
    return torch.tensor(chosen, dtype=torch.int32, device=logits.device)


def _reference_row(logits: torch.Tensor, sampling: Sampling, row: int) -> int:
    x = logits.double().nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    top, heat = float(x.max()), float(sampling.temperature[row])
    if heat < GREEDY_BELOW or abs(top) == float("inf") or logits.isnan().any():
        return int(x.argmax())
    scores = (x - top) / heat
    order = torch.sort(scores, descending=True, stable=True).indices
    top_k, top_p = int(sampling.top_k[row]), float(sampling.top_p[row])
    if 0 < top_k < len(order):
        order = order[:top_k]
    if top_p < 1:
        reached = torch.exp(scores[order]).cumsum(0)
        order = order[: int(torch.searchsorted(reached, top_p * reached[-1])) + 1]
    p_min = float(sampling.min_p[row])
    if p_min > 0:
        order = order[scores[order] >= min(torch.tensor(p_min).double().log().item(), 0.0)]
    ids = order.sort().values
    words = _reference_words(int(sampling.seed[row]), int(sampling.position[row]), ids)
    noise = -torch.log(-torch.log((words.double() + 0.5) / 2.0**32))
    return int(ids[(scores[ids] + noise).argmax()])


def _reference_words(seed: int, position: int, ids: torch.Tensor) -> torch.Tensor:
    """Philox4x32-10, in int64 whose 32-bit halves are multiplied apart."""
    mask = 0xFFFFFFFF
    zero = torch.zeros_like(ids)
    c0, c1, c2, c3 = ids // 4, zero + position, zero, zero
    k0, k1 = seed & mask, (seed >> 32) & mask
    for _ in range(10):
        (high0, low0), (high2, low2) = _product(c0, 0xD2511F53), _product(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = high2 ^ c1 ^ k0, low2, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    words = torch.stack([c0, c1, c2, c3], dim=1)
    return words.gather(1, (ids % 4)[:, None])[:, 0]


def _product(x: torch.Tensor, factor: int) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low 32 bits of 32-bit numbers times a 32-bit factor."""
    low = (x & 0xFFFF) * factor
    high = (x >> 16) * factor + (low >> 16)
    return high >> 16, ((high & 0xFFFF) << 16) | (low & 0xFFFF)


def _check(logits: torch.Tensor, sampling: Sampling) -> None:
    if logits.ndim != 2 or logits.dtype != torch.float32 or logits.stride(1) != 1:
        raise ValueError(f"logits {tuple(logits.shape)} {logits.dtype}: not float32 [rows, vocab]")
    wanted = {"top_k": torch.int32, "seed": torch.int64, "position": torch.int32}
    for name in ("temperature", "top_k", "top_p", "min_p", "seed", "position"):
        column, dtype = getattr(sampling, name), wanted.get(name, torch.float32)
        if column.shape != (len(logits),) or column.dtype != dtype:
            raise ValueError(f"{name} {tuple(column.shape)} {column.dtype}: not {dtype} [rows]")


def compile_cases() -> CompileCases:
    """The vocabulary is no constant."""
    yield CompileCase(
        name="sample",
        kernel=_sample,
        types={
            "logits": "*fp32", "out": "*i32", "temperature": "*fp32", "top_k": "*i32",
            "top_p": "*fp32", "min_p": "*fp32", "seed": "*i64", "position": "*i32",
            "row_stride": "i32", "vocab_size": "i32",
        },
        constants={"BLOCK": _BLOCK, "BITS": _BITS},
        num_warps=_NUM_WARPS,
    )  # fmt: skip
