"""From the arrivals a client saw to the figures of a benchmark.  Pure arithmetic, no clock.

Definitions, once:

- `wall_s`: from the first request sent to the last answer ended.
- `out_tok_s`: tokens generated in the run, divided by wall_s.
- time to first token: from sending a request to its first token.  A request that waits at the
  client for its turn has not been sent.
- inter-token latency: between successive tokens of a request.  A message with k tokens that comes
  a gap g after the one before counts as k gaps of g/k, so that batching tokens into messages
  neither hides nor invents latency.  Tokens beside the first one in the first message have no gap.
- `cached_tokens`: prompt tokens that the server found in its cache; null where it does not say.
- percentiles interpolate linearly between the two nearest values; null where there is no value.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    cached_tokens: int | None
    """None: the server does not say."""

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
    cached_tokens: int | None
    peak_rss_bytes: int | None
    """Of all services together; None: not known."""


def figures_of(traces: Sequence[Trace], *, peak_rss_bytes: int | None) -> Figures:
    """The figures of one run; traces must not be empty and each holds at least one arrival."""
    wall_s = max(t.ended_s for t in traces) - min(t.sent_s for t in traces)
    cached_tokens = [t.cached_tokens for t in traces if t.cached_tokens is not None]
    return Figures(
        wall_s=wall_s,
        out_tok_s=sum(t.num_output_tokens for t in traces) / wall_s,
        ttft_s=quantiles(first_token_s(t) for t in traces),
        short_ttft_s=quantiles(
            first_token_s(t) for t in traces if t.num_prompt_tokens < SHORT_PROMPT_TOKENS
        ),
        itl_s=quantiles(gap for t in traces for gap in gaps_s(t)),
        cached_tokens=sum(cached_tokens) if len(cached_tokens) == len(traces) else None,
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
    return {"workload": workload, **summary(runs), "machine": machine}


def summary(runs: Sequence[Figures]) -> dict[str, Any]:
    """Medians over the runs; if several, also their ranges and the figures of each."""
    flat = [_flat(run) for run in runs]

    def nested(choose: Callable[[list[Any]], Any]) -> dict[str, Any]:
        return _nested({key: _over(flat, key, choose) for key in flat[0]})

    value = nested(statistics.median)
    if len(runs) > 1:
        each = [_nested({key: _over([run], key, min) for key in run}) for run in flat]
        value["runs"] = {
            "num_runs": len(runs),
            "lowest": nested(min),
            "highest": nested(max),
            "each": each,
        }
    return value


def ratios(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Ours divided by theirs for each figure of two summaries; None where either is missing."""
    value: dict[str, Any] = {}
    for key, own in ours.items():
        if key == "runs":
            continue
        if isinstance(own, dict):
            value[key] = ratios(own, theirs[key])
        else:
            is_known = own is not None and theirs[key]
            value[key] = round(own / theirs[key], 4) if is_known else None
    return value


def comparison(
    workload: str,
    ours: Sequence[Figures],
    peers: Mapping[str, Sequence[Figures]],
    machine: dict[str, Any],
) -> dict[str, Any]:
    """The JSON object of `radixd bench --vs`: as `report`, with each peer's figures by name, and
    ours divided by theirs."""
    own = summary(ours)
    theirs = {name: summary(runs) for name, runs in peers.items()}
    return report(workload, ours, machine) | {
        "peers": theirs,
        "ratios": {name: ratios(own, peer) for name, peer in theirs.items()},
    }


def _over(flat: Sequence[dict[str, Any]], key: str, choose: Callable[[list[Any]], Any]) -> Any:
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
