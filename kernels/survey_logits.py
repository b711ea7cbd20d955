"""What a draw must know of the logits before it looks at few of them: the first half of `sample`.

Of each row and group of 64 token ids, two numbers, in planes [2, rows, groups] float32:

    plane 0  the largest logit; a NaN counts as -inf
    plane 1  of a row with top-k, top-p or min-p: the group's probability mass over that of its
             largest logit, sum of exp((logit - largest) / temperature)
             of a row without: a bound that no token's logit / temperature + noise is above, by more
             than rounding
             NaN where the group has a NaN, or the row an infinity and a limit
             of a greedy row: nothing, whatever was there

The noise is that of gumbel_noise, two exact logarithms, of which all tokens together would take a
card longer than their bytes; the bound takes one rough logarithm: -ln(-ln(1 - v)) <= -ln(v).

Moves vocab * 4 bytes a row in, once, and vocab / 8 out; does some 10 operations a token with a
limit, some 40 without, most of them integer ones of Philox.
"""

import torch
import triton
import triton.language as tl

from kernels.compile_case import FUSED, CompileCase, CompileCases
from kernels.gumbel_noise import random_words, random_words_reference
from kernels.logit_row import bounded_score, has_limits
from kernels.sampling_parameters import GREEDY_BELOW, Sampling, check_draw_inputs

GROUP = 64
"""Token ids of a group."""

_GREEDY_BELOW = tl.constexpr(GREEDY_BELOW)
_CONSTANTS = {"GROUP": GROUP, "TILE": 4096}
_NUM_WARPS = 8


def survey_logits(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """The planes of float32 [rows, vocab].

    Raises:
        ValueError: shapes or types do not go together; names which.
    """
    check_draw_inputs(logits, sampling)
    num_rows, vocab_size = logits.shape
    num_groups = triton.cdiv(vocab_size, _CONSTANTS["GROUP"])
    planes = logits.new_empty(2, num_rows, num_groups)
    if num_rows:
        _survey[(num_rows, triton.cdiv(vocab_size, _CONSTANTS["TILE"]))](
            logits, planes, sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p,
            sampling.seed, sampling.position, logits.stride(0), vocab_size, num_groups,
            planes.stride(0), **_CONSTANTS, num_warps=_NUM_WARPS,
            **FUSED,
        )  # fmt: skip
    return planes


# Not specialised: what a step's number of rows changes must not be compiled anew while they wait.
@triton.jit(do_not_specialize=["plane"])
def _survey(
    logits, planes, temperature, top_k, top_p, min_p, seed, position, row_stride, vocab_size,
    num_groups, plane, GROUP: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Grid (rows, tiles)."""
    row, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * TILE
    token = first + tl.arange(0, TILE)
    there = token < vocab_size
    raw = tl.load(logits + row * row_stride + token, mask=there, other=-float("inf"))
    value = tl.where(raw == raw, raw, -float("inf"))
    shape: tl.constexpr = (TILE // GROUP, GROUP)
    highest = tl.max(tl.reshape(value, shape), 1)
    group = first // GROUP + tl.arange(0, TILE // GROUP)
    place = planes + row * num_groups + group
    tl.store(place, highest, mask=group < num_groups)
    heat = tl.load(temperature + row)
    if heat >= _GREEDY_BELOW:
        if has_limits(row, top_k, top_p, min_p, vocab_size):
            finite = tl.where(highest > -float("inf"), highest, 0.0)
            more = tl.sum(tl.exp((tl.reshape(raw, shape) - finite[:, None]) / heat), 1)
        else:
            words = random_words(
                tl.load(seed + row), tl.load(position + row), first // 4 + tl.arange(0, TILE // 4)
            )
            # -log(1 - v) >= v, and so the noise -log(-log(1 - v)) <= -log(v).
            v = ((words ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * 2.3283064365386963e-10
            bound = bounded_score(value, heat) - tl.log2(v) * 0.6931471805599453
            broken = tl.sum(tl.reshape((raw != raw).to(tl.int32), shape), 1)
            bound = tl.max(tl.reshape(tl.where(there, bound, -float("inf")), shape), 1)
            more = tl.where(broken > 0, float("nan"), bound)
        tl.store(place + plane, more, mask=group < num_groups)


def survey_logits_reference(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """The same in plain torch and float64; plane 1 of greedy rows is 0."""
    check_draw_inputs(logits, sampling)
    num_rows, vocab_size = logits.shape
    size = _CONSTANTS["GROUP"]
    num_groups = triton.cdiv(vocab_size, size)
    raw = logits.new_full((num_rows, num_groups * size), -torch.inf, dtype=torch.float64)
    raw[:, :vocab_size] = logits
    highest = raw.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    highest = highest.view(num_rows, num_groups, size).amax(-1)
    more = torch.zeros_like(highest)
    ids = torch.arange(vocab_size, device=logits.device)
    for row in range(num_rows):
        heat, top_k = float(sampling.temperature[row]), int(sampling.top_k[row])
        numbers = raw[row].view(num_groups, size)
        if heat < GREEDY_BELOW:
            continue
        if 0 < top_k < vocab_size or sampling.top_p[row] < 1 or sampling.min_p[row] > 0:
            finite = highest[row].nan_to_num(posinf=torch.inf, neginf=0.0)
            more[row] = torch.exp((numbers - finite[:, None]) / heat).sum(-1)
        else:
            words = random_words_reference(
                int(sampling.seed[row]), int(sampling.position[row]), ids
            )
            scores = torch.full_like(raw[row], -torch.inf)
            scores[:vocab_size] = raw[row, :vocab_size] / heat
            scores[:vocab_size] -= torch.log((2.0**32 - words.double() - 0.5) / 2.0**32)
            more[row] = scores.view(num_groups, size).amax(-1)
    return torch.stack([highest, more]).float()


def compile_cases() -> CompileCases:
    """The vocabulary is no constant."""
    yield CompileCase(
        name="survey_logits",
        kernel=_survey,
        types={
            "logits": "*fp32", "planes": "*fp32", "temperature": "*fp32", "top_k": "*i32",
            "top_p": "*fp32", "min_p": "*fp32", "seed": "*i64", "position": "*i32",
            "row_stride": "i32", "vocab_size": "i32", "num_groups": "i32", "plane": "i32",
        },
        constants=_CONSTANTS,
        num_warps=_NUM_WARPS,
        any_size=frozenset({"num_groups", "plane"}),
    )  # fmt: skip
