"""How far a kernel's result is from the wanted one, and how far it may be.

Errors are relative to the size of what is compared, with the typical size (root mean square) added
below, so that numbers near zero do not count as wholly wrong.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from kernels.kv_codes import CodedSlots, KvKind

ROUNDING = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Two units in the last place of a result, and of float32 the sums of some thousand numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """An error, and the largest that is right."""

    error: float
    """NaN: one side has a number where the other has none."""
    allowed: float

    @property
    def is_right(self) -> bool:
        """A NaN is within no bound."""
        return self.error <= self.allowed

    @property
    def badness(self) -> float:
        """Error in units of what is allowed; infinite for NaN."""
        if math.isnan(self.error):
            return math.inf
        return self.error / self.allowed if self.allowed else math.inf * bool(self.error)


def worst(comparisons: Iterable[Comparison]) -> Comparison:
    """The one that speaks for all."""
    return max(comparisons, key=lambda comparison: comparison.badness)


def near(ours: torch.Tensor, wanted: torch.Tensor, allowed: float | None = None) -> Comparison:
    """Largest relative error; infinities and NaN must be in the same places.

    allowed: None: what rounding to `ours`' type does.
    """
    allowed = ROUNDING[ours.dtype] if allowed is None else allowed
    if ours.shape != wanted.shape:
        return Comparison(error=math.inf, allowed=allowed)
    ours, wanted = ours.double(), wanted.double()
    finite = ours.isfinite() & wanted.isfinite()
    same = finite | (ours == wanted) | (ours.isnan() & wanted.isnan())
    if not bool(same.all()):
        return Comparison(error=math.nan, allowed=allowed)
    if not bool(finite.any()):
        return Comparison(error=0.0, allowed=allowed)
    ours, wanted = ours[finite], wanted[finite]
    typical = wanted.square().mean().sqrt().clamp_min(1e-30)
    error = float(((ours - wanted).abs() / (wanted.abs() + typical)).max())
    return Comparison(error=error, allowed=allowed)


def equal(ours: torch.Tensor, wanted: torch.Tensor, *, share: float = 0.0) -> Comparison:
    """Share of elements that differ, of which `share` may."""
    if ours.shape != wanted.shape or ours.dtype != wanted.dtype:
        return Comparison(error=math.inf, allowed=share)
    if not ours.numel():
        return Comparison(error=0.0, allowed=share)
    return Comparison(error=float((ours != wanted).double().mean()), allowed=share)


def coded(ours: CodedSlots, wanted: CodedSlots) -> Comparison:
    """Of a pool, coded or not: numbers are near, or scales are and codes hardly differ.

    Codes differ by one step at most, and in one of a hundred: a number at the middle between two
    takes either, as float32 or float64 has it.
    """
    if ours.scale is None or wanted.scale is None:
        return near(ours.codes, wanted.codes)
    return worst([_codes(ours, wanted), near(ours.scale, wanted.scale)])


def _codes(ours: CodedSlots, wanted: CodedSlots) -> Comparison:
    places, wanted_places = _in_order(ours.codes, ours.kind), _in_order(wanted.codes, wanted.kind)
    apart = (places - wanted_places).abs()
    if int(apart.max()) > 1:
        return Comparison(error=math.inf, allowed=0.01)
    return Comparison(error=float((apart != 0).double().mean()), allowed=0.01)


def _in_order(codes: torch.Tensor, kind: KvKind) -> torch.Tensor:
    """Integers in the order of the numbers that are coded, neighbours one apart."""
    wide = codes.to(torch.int32)
    if kind == "int8":
        return wide
    magnitude = wide & 0x7F
    return torch.where(wide >= 0x80, -magnitude, magnitude)
