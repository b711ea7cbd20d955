"""What a pool under pressure was worth: differences of counters and samples of its use.

Pure arithmetic.  Definitions:

- `recompute_tax`: tokens computed again / tokens computed, in this run.
- `used_share`: slots that cannot be had / slots; mean and highest after the first tenth of the
  run, in which the pool fills.  `volatility` is its standard deviation there.
- `longest_gap_s`: longest time in which no token of any stream came; a stall, if it is long.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from protos.radixd.v1 import admin_pb2

WARM_UP = 0.1
"""Share of the samples that are left out, because the pool fills."""


class Sample(NamedTuple):
    """The pool at one moment of a run."""

    at_s: float
    used_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PressureFigures:
    """One run under one set of policies."""

    retraction_policy: str = ""
    retraction_keep: str = ""
    wall_s: float
    requests: int
    """That ended by themselves."""
    endings: dict[str, int]
    """Of those, by reason."""
    output_tokens: int
    out_tok_s: float
    computed_tokens: int
    recomputed_tokens: int
    recompute_tax: float
    retractions: int
    evicted_tokens: int
    used_share_mean: float
    used_share_max: float
    volatility: float
    longest_gap_s: float


def figures_of(
    before: admin_pb2.GetStatsResponse,
    after: admin_pb2.GetStatsResponse,
    samples: Sequence[Sample],
    *,
    wall_s: float,
    num_tokens: int,
    longest_gap_s: float,
    endings: Mapping[str, int],
) -> PressureFigures:
    """From the books before and after, at least one sample, and what the clients saw."""
    computed = after.tokens.computed - before.tokens.computed
    recomputed = after.tokens.recomputed - before.tokens.recomputed
    used = [sample.used_share for sample in samples[int(WARM_UP * len(samples)) :]]
    return PressureFigures(
        wall_s=wall_s,
        requests=sum(endings.values()),
        endings=dict(sorted(endings.items())),
        output_tokens=num_tokens,
        out_tok_s=num_tokens / wall_s,
        computed_tokens=computed,
        recomputed_tokens=recomputed,
        recompute_tax=recomputed / computed if computed else 0.0,
        retractions=after.requests.retractions - before.requests.retractions,
        evicted_tokens=after.tokens.evicted - before.tokens.evicted,
        used_share_mean=statistics.fmean(used),
        used_share_max=max(used),
        volatility=statistics.pstdev(used),
        longest_gap_s=longest_gap_s,
    )


def tax_ratio(runs: Sequence[PressureFigures]) -> float | None:
    """How many times the tax of the first run that of the last is; None where the first is 0."""
    first, last = runs[0].recompute_tax, runs[-1].recompute_tax
    return last / first if first else None


def report(runs: Sequence[PressureFigures], **facts: Any) -> dict[str, Any]:
    """The JSON object of the command."""
    value = {**facts, "runs": [_rounded(asdict(run)) for run in runs]}
    if len(runs) > 1:
        ratio = tax_ratio(runs)
        value["tax_ratio"] = None if ratio is None else round(ratio, 3)
    return value


def _rounded(figures: dict[str, Any]) -> dict[str, Any]:
    return {
        name: round(value, 6) if isinstance(value, float) else value
        for name, value in figures.items()
    }
