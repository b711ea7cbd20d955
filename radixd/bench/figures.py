"""From the arrivals a client saw to the figures of a benchmark.  Pure arithmetic, no clock.

Definitions, once:

- `wall_s`: from the first request sent to the last answer ended.
- `out_tok_s`: tokens generated in the run, divided by wall_s.
- time to first token: from sending a request to its first token.  A request that waits at the
  client for its turn has not been sent.
- inter-token latency: between successive tokens of a request.  A message with k tokens that comes
  a gap g after the one before counts as k gaps of g/k, so that batching tokens into messages
  neither hides nor invents latency.  Tokens beside the first one in the first message have no gap.
- percentiles interpolate linearly between the two nearest values; null where there is no value.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

SHORT_PROMPT_TOKENS = 256
"""Requests with fewer prompt tokens make short_ttft_s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What the client saw of one request; times are seconds on one clock of the run."""

    num_prompt_tokens: int
    sent_s: float
    arrivals: tuple[tuple[float, int], ...]
    """(moment, number of tokens) of each message that carried tokens."""
    ended_s: float
    cached_tokens: int

    @property
    def num_output_tokens(self) -> int:
        """Tokens that came."""
        return sum(num_tokens for _, num_tokens in self.arrivals)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Median and tail; None where nothing was measured."""

    p50: float | None
    p95: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One run of a workload."""

    wall_s: float
    out_tok_s: float
    ttft_s: Quantiles
    short_ttft_s: Quantiles
    itl_s: Quantiles
    cached_tokens: int
    peak_rss_bytes: int
    """Of all services together."""


def figures_of(traces: Sequence[Trace], *, peak_rss_bytes: int) -> Figures:
    """The figures of one run; traces must not be empty and each holds at least one arrival."""
    wall_s = max(t.ended_s for t in traces) - min(t.sent_s for t in traces)
    return Figures(
        wall_s=wall_s,
        out_tok_s=sum(t.num_output_tokens for t in traces) / wall_s,
        ttft_s=quantiles(first_token_s(t) for t in traces),
        short_ttft_s=quantiles(
            first_token_s(t) for t in traces if t.num_prompt_tokens < SHORT_PROMPT_TOKENS
        ),
        itl_s=quantiles(gap for t in traces for gap in gaps_s(t)),
        cached_tokens=sum(t.cached_tokens for t in traces),
        peak_rss_bytes=peak_rss_bytes,
    )


def first_token_s(trace: Trace) -> float:
    """Time to the first token of a request."""
    return trace.arrivals[0][0] - trace.sent_s


def gaps_s(trace: Trace) -> list[float]:
    """One gap for each token after those of the first message."""
    gaps: list[float] = []
    for (before_s, _), (at_s, num_tokens) in zip(trace.arrivals, trace.arrivals[1:], strict=False):
        gaps += [(at_s - before_s) / num_tokens] * num_tokens
    return gaps


def quantiles(values: Iterable[float]) -> Quantiles:
    """Median and 95th percentile."""
    ordered = sorted(values)
    if not ordered:
        return Quantiles(p50=None, p95=None)
    return Quantiles(p50=percentile(ordered, 0.50), p95=percentile(ordered, 0.95))


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """Linear interpolation in a sorted, non-empty sequence."""
    place = fraction * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def report(workload: str, runs: Sequence[Figures], machine: dict[str, Any]) -> dict[str, Any]:
    """The JSON object of `radixd bench`: medians over the runs, and their ranges if several."""
    flat = [_flat(run) for run in runs]
    middle = {key: _over(flat, key, statistics.median) for key in flat[0]}
    value = {"workload": workload, **_nested(middle), "machine": machine}
    if len(runs) > 1:
        lowest = {key: _over(flat, key, min) for key in flat[0]}
        highest = {key: _over(flat, key, max) for key in flat[0]}
        value["runs"] = {
            "num_runs": len(runs),
            "lowest": _nested(lowest),
            "highest": _nested(highest),
        }
    return value


def _over(flat: Sequence[dict[str, Any]], key: str, choose: Any) -> Any:
    values = [run[key] for run in flat if run[key] is not None]
    if not values:
        return None
    chosen = choose(values)
    return round(chosen) if isinstance(values[0], int) else round(chosen, 6)


def _flat(run: Figures) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key in ("wall_s", "out_tok_s", "ttft_s", "short_ttft_s", "itl_s"):
        value = getattr(run, key)
        if isinstance(value, Quantiles):
            flat[f"{key}.p50"], flat[f"{key}.p95"] = value.p50, value.p95
        else:
            flat[key] = value
    return flat | {"cached_tokens": run.cached_tokens, "peak_rss_bytes": run.peak_rss_bytes}


def _nested(flat: dict[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        name, _, part = key.partition(".")
        if part:
            nested.setdefault(name, {})[part] = value
        else:
            nested[name] = value
    return nested
