"""One token drawn from each row of logits, without a sort, reading the logits about once.

Temperature, then top-k, top-p and min-p choose candidates; the candidate with the largest
logit / temperature + Gumbel noise wins.  The noise of a token is a function of (seed, position,
token id) alone, see gumbel_noise; so a draw depends on no other row and on no generator's state.
Ties go to the lowest id, in every step.  NaN counts as -inf, and a row that has one, or an
infinity, is greedy.

Two launches.  `survey_logits`, of many programs a row, reads every logit and says of each group of
64 ids how much they can matter.  The one here, of one program a row, finds from that which groups
can hold the token, lists them, and looks at these alone: it draws the best of them, and where it
lies outside top-k or top-p the best of those ahead of it, and so on.  (Rejection as in FlashInfer's
sampler, 2025, but with the noise fixed, so that the draw is the one a sort would give.)

Moves vocab * 4 bytes a row once, vocab / 8 twice, and 256 for each listed group a few times, from
the caches.  Top-k lists about k groups, top-p somewhat more than the nucleus has tokens, min-p
those that pass, temperature alone a few.  Where a nucleus is so flat that its groups are most of
the vocabulary, or k is above vocab / 64, all are listed, and each look reads the row again.
"""

import torch
import triton
import triton.language as tl

from kernels.compile_case import FUSED, CompileCase, CompileCases, limited_registers
from kernels.gumbel_noise import gumbel_noise, random_words, random_words_reference
from kernels.logit_row import bounded_score, has_limits, load_logits, winner
from kernels.sampling_parameters import GREEDY_BELOW, Sampling, check_draw_inputs
from kernels.survey_logits import GROUP, survey_logits

__all__ = ["Sampling", "compile_cases", "sample", "sample_reference"]

_GREEDY_BELOW = tl.constexpr(GREEDY_BELOW)
_NO_TOKEN = tl.constexpr(2147483647)
_CONSTANTS = {"GROUP": GROUP, "BLOCK": 2048, "BITS": 2}
_NUM_WARPS = 8
_MOST_REGISTERS = 128
"""Said outright: left alone the compiler stops at as many, and spills one there is room for."""


def sample(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """int32 [rows] of float32 [rows, vocab].

    Raises:
        ValueError: shapes or types do not go together; names which.
    """
    planes = survey_logits(logits, sampling)
    num_rows, num_groups = planes.shape[1:]
    out = torch.empty(num_rows, dtype=torch.int32, device=logits.device)
    if num_rows:
        _choose[(num_rows,)](
            logits, planes, out.new_empty(num_rows, num_groups), out, sampling.temperature,
            sampling.top_k, sampling.top_p, sampling.min_p, sampling.seed, sampling.position,
            logits.stride(0), logits.shape[1], num_groups, planes.stride(0), **_CONSTANTS,
            num_warps=_NUM_WARPS, **limited_registers(_MOST_REGISTERS),
            **FUSED,
        )  # fmt: skip
    return out


# Not specialised: what a step's number of rows changes must not be compiled anew while they wait.
@triton.jit(do_not_specialize=["plane"])
def _choose(
    logits, planes, listed, out, temperature, top_k, top_p, min_p, seed, position, row_stride,
    vocab_size, num_groups, plane, GROUP: tl.constexpr, BLOCK: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """Grid (rows)."""
    row = tl.program_id(0).to(tl.int64)
    x = logits + row * row_stride
    highest = planes + row * num_groups
    listed += row * num_groups
    top, group, _ = _largest(highest, num_groups, BLOCK)
    near = group * GROUP + tl.arange(0, GROUP)
    is_top = (load_logits(x, near, vocab_size) == top) & (near < vocab_size)
    token = tl.min(tl.where(is_top, near, _NO_TOKEN), 0)
    heat = tl.load(temperature + row)
    # Where the largest is infinite or all are -inf there is nothing to weigh.
    if (heat >= _GREEDY_BELOW) & (top < float("inf")) & (top > -float("inf")):
        most, _, is_broken = _largest(highest + plane, num_groups, BLOCK)
        if is_broken == 0:
            if has_limits(row, top_k, top_p, min_p, vocab_size):
                drawn = _limited(
                    x, highest, highest + plane, listed, top, heat, tl.load(top_k + row),
                    tl.load(top_p + row), tl.load(min_p + row), tl.load(seed + row),
                    tl.load(position + row), vocab_size, num_groups, GROUP, BLOCK, BITS,
                )  # fmt: skip
            else:
                drawn = _unlimited(
                    x, highest + plane, listed, top, heat, most, tl.load(seed + row),
                    tl.load(position + row), vocab_size, num_groups, GROUP, BLOCK,
                )  # fmt: skip
            token = tl.where(drawn == _NO_TOKEN, token, drawn)
    tl.store(out + row, token)


@triton.jit
def _largest(numbers, count, BLOCK: tl.constexpr):
    """The largest of an array, its lowest index; and whether a NaN is among them."""
    lane = tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), -float("inf"), tl.float32)
    best_index = lane
    broken = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, count, BLOCK):
        value = tl.load(numbers + start + lane, mask=start + lane < count, other=-float("inf"))
        broken = tl.where(value == value, broken, 1)
        better = value > best  # never of a NaN
        best = tl.where(better, value, best)
        best_index = tl.where(better, start + lane, best_index)
    top, index = winner(best, best_index)
    return top, index, tl.max(broken, 0)


@triton.jit
def _unlimited(
    x, bounds, listed, top, heat, most, seed, position, vocab_size, num_groups,
    GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The best of all: of the groups with the largest bound first, then of all with one as good."""
    floor, token = most, 0
    for _ in range(2):
        count = _list(bounds, listed, floor, -float("inf"), 0.0, 1.0, num_groups, BLOCK)
        token, noisy = _best(
            x, listed, count, top, heat, -float("inf"), -float("inf"), _NO_TOKEN, seed, position,
            vocab_size, GROUP, BLOCK,
        )  # fmt: skip
        # Bounds are rounded at the size of the score that they were made from.
        score = bounded_score(top, heat)
        floor = score + noisy - (1e-3 + 2e-6 * tl.abs(score))
    return token


@triton.jit
def _limited(
    x, highest, masses, listed, top, heat, k, p, p_min, seed, position, vocab_size, num_groups,
    GROUP: tl.constexpr, BLOCK: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """The best of those within top-k, top-p and min-p."""
    limits_k, limits_p = (k > 0) & (k < vocab_size), p < 1.0
    least_score = tl.where(
        p_min > 0, tl.minimum(tl.log(tl.maximum(p_min, 1e-38)), 0.0), -float("inf")
    )
    total = _mass(highest, masses, top, heat, num_groups, BLOCK)
    most_ahead = tl.where(limits_k, k, vocab_size)
    need = tl.where(limits_p, p * total, float("inf"))
    floor = tl.full((), -float("inf"), tl.float32)
    if limits_k | limits_p:
        # Of top-p a guess: masses of groups have a share of tokens below the floor.
        wanted = tl.where(limits_k, k.to(tl.float32), total * (1 + p) * 0.5)
        floor = _floor(highest, masses, limits_k, top, heat, wanted, num_groups, BLOCK, BITS)
    least_listed = tl.where(limits_k, -float("inf"), least_score)
    count = _list(highest, listed, floor, least_listed, top, heat, num_groups, BLOCK)
    if limits_k & limits_p:
        mass = _mass_of_likeliest(x, listed, count, k, top, heat, vocab_size, GROUP, BLOCK, BITS)
        need = p * mass
    elif limits_p:
        _, found = _ahead(x, listed, count, floor, _NO_TOKEN, top, heat, vocab_size, GROUP, BLOCK)
        if found < need:
            floor = -float("inf")
            count = _list(highest, listed, floor, least_listed, top, heat, num_groups, BLOCK)
    value, token = tl.full((), -float("inf"), tl.float32), _NO_TOKEN
    accepted = False
    while not accepted:
        token, _ = _best(
            x, listed, count, top, heat, least_score, value, token, seed, position, vocab_size,
            GROUP, BLOCK,
        )  # fmt: skip
        value = tl.load(x + token, mask=token < vocab_size, other=-float("inf"))
        ahead, mass = _ahead(x, listed, count, value, token, top, heat, vocab_size, GROUP, BLOCK)
        accepted = (ahead < most_ahead) & (mass < need)
        # Whatever the parameters are, the loop ends: with the likeliest, or where there is none.
        accepted = accepted | (ahead == 0) | (token == _NO_TOKEN)
    return token


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
def _mass(highest, masses, top, heat, num_groups, BLOCK: tl.constexpr):
    """Sum of exp((logit - top) / heat) over the vocabulary."""
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, num_groups, BLOCK):
        group = start + tl.arange(0, BLOCK)
        value = load_logits(highest, group, num_groups)
        mass = tl.load(masses + group, mask=group < num_groups, other=0.0)
        total += mass * tl.exp((value - top) / heat)
    return tl.sum(total, 0)


@triton.jit
def _floor(
    highest, masses, counts, top, heat, wanted, num_groups, BLOCK: tl.constexpr,
    BITS: tl.constexpr,
):  # fmt: skip
    """The largest value that groups of enough weight reach together; -inf if all have too little.

    A group reaches what its largest logit does; it weighs 1 if `counts`, else its mass.
    """
    step = tl.arange(0, 2**BITS).to(tl.uint32)
    key = tl.full((), 0, tl.uint32)
    for done in tl.range(0, 32, BITS):
        candidate = (key + (step << (32 - BITS - done))).to(tl.uint32)
        reached = tl.zeros((2**BITS,), tl.float32)
        for start in range(0, num_groups, BLOCK):
            group = start + tl.arange(0, BLOCK)
            value = load_logits(highest, group, num_groups)
            weight = tl.load(masses + group, mask=group < num_groups, other=0.0)
            weight = tl.where(counts, 1.0, weight * tl.exp((value - top) / heat))
            keys = tl.where(group < num_groups, _key(value), 0)
            reached += tl.sum(
                tl.where(keys[None, :] >= candidate[:, None], weight[None, :], 0.0), 1
            )
        key = tl.max(tl.where((reached >= wanted) | (step == 0), candidate, key), 0)
    return tl.where(key == 0, -float("inf"), _value(tl.maximum(key, 1)))


@triton.jit
def _list(numbers, listed, floor, least_score, top, heat, num_groups, BLOCK: tl.constexpr):
    """Writes the groups whose number is at least the floor, and its score the least; how many."""
    count = 0
    tl.debug_barrier()  # those of an earlier list may still be read
    for start in range(0, num_groups, BLOCK):
        group = start + tl.arange(0, BLOCK)
        value = load_logits(numbers, group, num_groups)
        kept = (value >= floor) & ((value - top) / heat >= least_score) & (group < num_groups)
        ones = kept.to(tl.int32)
        tl.store(listed + count + tl.cumsum(ones, 0) - 1, group, mask=kept)
        count += tl.sum(ones, 0)
    tl.debug_barrier()
    return count


@triton.jit
def _listed(listed, start, count, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """BLOCK places of listed groups, SIZE to a group, from entry `start` on; which there are."""
    lane = tl.arange(0, BLOCK)
    entry = start + lane // SIZE
    group = tl.load(listed + entry, mask=entry < count, other=0)
    return group * SIZE + lane % SIZE, entry < count


@triton.jit
def _listed_logits(x, listed, start, count, vocab_size, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    """Logits of BLOCK tokens of the listed groups, -inf for those that are none; their ids."""
    token, there = _listed(listed, start, count, GROUP, BLOCK)
    token = tl.where(there, token, _NO_TOKEN)
    return load_logits(x, token, vocab_size), token


@triton.jit
def _ahead(
    x, listed, count, at_value, at_token, top, heat, vocab_size, GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """How many of the listed tokens come before this one by logit, then id; and their mass."""
    number, mass = tl.zeros((BLOCK,), tl.int32), tl.zeros((BLOCK,), tl.float32)
    for start in range(0, count, BLOCK // GROUP):
        value, token = _listed_logits(x, listed, start, count, vocab_size, GROUP, BLOCK)
        before = (value > at_value) | ((value == at_value) & (token < at_token))
        number += before.to(tl.int32)
        mass += tl.where(before, tl.exp((value - top) / heat), 0.0)
    return tl.sum(number, 0), tl.sum(mass, 0)


@triton.jit
def _mass_of_likeliest(
    x, listed, count, k, top, heat, vocab_size, GROUP: tl.constexpr, BLOCK: tl.constexpr,
    BITS: tl.constexpr,
):  # fmt: skip
    """Mass of the k largest of the listed logits, by the key of the k-th."""
    step = tl.arange(0, 2**BITS).to(tl.uint32)
    key = tl.full((), 0, tl.uint32)
    for done in tl.range(0, 32, BITS):
        candidate = (key + (step << (32 - BITS - done))).to(tl.uint32)
        number = tl.zeros((2**BITS,), tl.int32)
        for start in range(0, count, BLOCK // GROUP):
            value, token = _listed_logits(x, listed, start, count, vocab_size, GROUP, BLOCK)
            keys = tl.where(token < vocab_size, _key(value), 0)
            number += tl.sum((keys[None, :] >= candidate[:, None]).to(tl.int32), 1)
        key = tl.max(tl.where((number >= k) | (step == 0), candidate, key), 0)
    least = _value(key)
    above, mass = _ahead(x, listed, count, least, -1, top, heat, vocab_size, GROUP, BLOCK)
    return mass + (k - above).to(tl.float32) * tl.exp((least - top) / heat)


@triton.jit
def _best(
    x, listed, count, top, heat, least_score, at_value, at_token, seed, position, vocab_size,
    GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The winner of the listed tokens before this one, from the least score on; its noisy score."""
    best = tl.full((BLOCK,), -float("inf"), tl.float32)
    best_token = tl.full((BLOCK,), _NO_TOKEN, tl.int32)
    for start in range(0, count, BLOCK // GROUP):
        value, token = _listed_logits(x, listed, start, count, vocab_size, GROUP, BLOCK)
        score = (value - top) / heat
        before = (value > at_value) | ((value == at_value) & (token < at_token))
        kept = before & (score >= least_score) & (value > -float("inf"))
        if tl.max(kept.to(tl.int32), 0) > 0:
            four, _ = _listed(listed, start, count, GROUP // 4, BLOCK // 4)
            noisy = tl.where(
                kept, score + gumbel_noise(random_words(seed, position, four)), -float("inf")
            )
            better = noisy > best
            best = tl.where(better, noisy, best)
            best_token = tl.where(better, token, best_token)
    noisy, token = winner(best, best_token)
    return token, noisy


def sample_reference(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """The same in plain torch and float64, row by row, by sorting."""
    check_draw_inputs(logits, sampling)
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
    words = random_words_reference(int(sampling.seed[row]), int(sampling.position[row]), ids)
    noise = -torch.log(-torch.log((words.double() + 0.5) / 2.0**32))
    return int(ids[(scores[ids] + noise).argmax()])


def compile_cases() -> CompileCases:
    """The vocabulary is no constant."""
    yield CompileCase(
        name="sample",
        kernel=_choose,
        types={
            "logits": "*fp32", "planes": "*fp32", "listed": "*i32", "out": "*i32",
            "temperature": "*fp32", "top_k": "*i32", "top_p": "*fp32", "min_p": "*fp32",
            "seed": "*i64", "position": "*i32", "row_stride": "i32", "vocab_size": "i32",
            "num_groups": "i32", "plane": "i32",
        },
        constants=_CONSTANTS,
        num_warps=_NUM_WARPS,
        most_registers=_MOST_REGISTERS,
        any_size=frozenset({"num_groups", "plane"}),
    )  # fmt: skip
