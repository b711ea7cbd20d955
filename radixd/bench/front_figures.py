"""From what a load saw and the worker's stamps to the figures of the front.  Pure arithmetic.

Definitions, once:

- the window: the time in which all streams of a load ran (front_load.Load).  Every figure is of
  the tokens that came in it, so that neither intake nor farewell counts.
- `out_tok_s`: tokens divided by the window.
- `front_cpu_us`: processor time of the front, all of its threads, divided by tokens.
- `cpu_share`: processor time of each process divided by the window; 1 is one core.
- the front has a core of its own where there are two or more; load, scheduler and worker share the
  others, so that no client's reading holds it up.
- `bound_by`: the busiest process, where it kept a core busy.  Where none did: `steps`, where the
  worker was in a step most of the time, those it is told to take and what it computes in them;
  else `others`: something else ran on the machine, and the figures of time say little.
- `delay_ms`: what the server adds to a token: from the moment the worker has sampled it, which the
  worker writes down, to the moment a client has read it from its socket.  In it are the way to the
  scheduler, its step, the way to the front, the front, and the other streams' tokens of the same
  step that go out first: a step's tokens are all sampled at one moment and are written one after
  the other.
- `gap_ms`: between successive messages of a stream.
- percentiles interpolate linearly; null where there is no value.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from radixd.bench.figures import percentile

FRONT, WORKER = "tokenizer_svc", "gpu_worker"
_NS_PER_S = 1e9
_NS_PER_MS = 1e6
_BUSY_SHARE = 0.8
"""Of a core; a process that has less than this waits for others."""

Stamps = Mapping[int, Sequence[int]]
"""By stream: when each token was sampled."""
Arrivals = Mapping[int, Sequence[tuple[int, int]]]
"""By stream: nanoseconds and number of tokens of each message."""


def load_figures(load: dict[str, Any], stamps: Stamps, *, step_ms: float) -> dict[str, Any]:
    """The figures of one Load, whose steps took `step_ms` and what the worker computes."""
    begin, end = load["begin"], load["end"]
    arrivals = {int(stream): came for stream, came in load["arrivals"].items()}
    span = begin["now_ns"], end["now_ns"]
    num_tokens = sum(count for came in arrivals.values() for ns, count in came if _in(ns, span))
    window_s = (span[1] - span[0]) / _NS_PER_S
    cpu_s = {name: end["cpu_s"][name] - used for name, used in begin["cpu_s"].items()}
    share = {name: round(used / window_s, 3) for name, used in cpu_s.items()}
    out_tok_s = num_tokens / window_s
    return {
        "num_streams": len(arrivals),
        "step_ms": step_ms,
        "window_s": round(window_s, 3),
        "out_tok_s": round(out_tok_s, 1),
        "front_cpu_us": round(cpu_s[FRONT] / num_tokens * 1e6, 1) if num_tokens else None,
        "cpu_share": share,
        "bound_by": _bound_by(share, out_tok_s * step_ms / 1000 / len(arrivals)),
        "delay_ms": spread(delays_ms(arrivals, stamps, span)),
    }


def _bound_by(share: Mapping[str, float], slept: float) -> str:
    """`slept` is the share of the window that the worker's steps took beside its processor time."""
    busiest = max(share, key=share.__getitem__)
    if share[busiest] >= _BUSY_SHARE:
        return busiest
    return "steps" if slept + share.get(WORKER, 0.0) >= _BUSY_SHARE else "others"


def delays_ms(arrivals: Arrivals, stamps: Stamps, span: tuple[int, int]) -> list[float]:
    """Of each token that came in the span of time."""
    delays = []
    for stream, came in arrivals.items():
        first = 0
        for ns, num_tokens in came:
            if _in(ns, span):
                sampled = stamps[stream][first : first + num_tokens]
                delays += [(ns - each) / _NS_PER_MS for each in sampled]
            first += num_tokens
    return delays


def gaps_ms(arrivals: Arrivals, span: tuple[int, int]) -> list[float]:
    """Between messages of the same stream, of which the second came in the span of time."""
    return [
        (now - before) / _NS_PER_MS
        for came in arrivals.values()
        for (before, _), (now, _) in pairwise(came)
        if _in(now, span)
    ]


def spread(values: Iterable[float]) -> dict[str, float | None]:
    """Median, tail and worst."""
    ordered = sorted(values)
    if not ordered:
        return {"p50": None, "p99": None, "max": None}
    return {
        "p50": round(percentile(ordered, 0.50), 3),
        "p99": round(percentile(ordered, 0.99), 3),
        "max": round(ordered[-1], 3),
    }


def _in(ns: int, span: tuple[int, int]) -> bool:
    return span[0] < ns <= span[1]


LEAST_OUT_TOK_S = 2000.0
MOST_DELAY_MS = 2.0
MOST_SHARE = 1.0


def aims_met(doors: Mapping[str, Any]) -> dict[str, dict[str, bool]]:
    """Door by door: the rate over all streams on at most one core of the front, and the delay that
    one stream alone and each of all feels."""
    return {
        door: {
            "out_tok_s": figures["all"]["out_tok_s"] >= LEAST_OUT_TOK_S
            and figures["all"]["cpu_share"][FRONT] <= MOST_SHARE,
            "one_delay_ms": _below(figures["one"]["delay_ms"]["p50"], MOST_DELAY_MS),
            "all_delay_ms": _below(figures["all"]["delay_ms"]["p50"], MOST_DELAY_MS),
        }
        for door, figures in doors.items()
    }


def _below(value: float | None, most: float) -> bool:
    return value is not None and value < most
