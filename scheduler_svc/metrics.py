"""The books as Prometheus metrics, taken anew from the engine loop for every scrape.

Nothing is remembered between scrapes: counters are the core's own, gauges are what holds now, so
none goes stale when traffic stops.  Names are listed in DESIGN.md.  Not here: HTTP.
"""

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from itertools import accumulate

from prometheus_client import Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

from protos.radixd.scheduler.v1 import scheduler_pb2 as pb
from protos.radixd.v1 import admin_pb2
from scheduler_svc import answers
from scheduler_svc.engine_loop import Ask, EngineLoop
from scheduler_svc.service import Engine

SCRAPE_TIMEOUT_S = 2.0
"""Well below the ten seconds after which Prometheus gives a scrape up."""

_OWNERS = ("free", "private", "evictable", "locked", "in_flight")
_REQUEST_COUNTERS = ("submitted", "finished", "rejected", "cancelled", "expired", "failed")
_ECONOMY = {
    "reuse_rate": "Prompt tokens served from the cache / prompt tokens, since the start",
    "density": "Tokens of context that live requests see / slots they occupy",
    "tokens_per_gib": "Tokens of context that live requests see, per GiB of pool",
    "turnover": "Slots freed per second / slots, over the last minute",
    "recompute_tax": "Tokens computed again / tokens computed, since the start",
    "volatility": "Standard deviation of the used share of slots over the last minute",
    "context_tokens": "Tokens of context that running requests see",
    "pinned_slots": "Slots held by pins nobody else holds",
}
_TENANT_GAUGES = ("running", "waiting", "held_slots", "pinned_slots")
_STEP_COUNTERS = {
    "num_steps": ("steps_answered", "Steps answered, by kind"),
    "num_rows": ("step_rows", "Rows of steps, by kind of step"),
    "num_tokens": ("step_tokens", "Tokens computed, by kind of step"),
    "num_sampled": ("step_sampled_tokens", "Tokens sampled, by kind of step"),
}
_PHASES = (
    *("products", "attention", "forward_rest", "sampling", "worker_rest"),
    *("schedule", "apply"),
)
_MS_PER_S = 1000.0
_NS_PER_S = 1e9


class ScrapeFailed(Exception):
    """The engine loop did not answer in time, or has too much to do to be asked."""


class StatsCollector(Collector):
    """Asks the loop one question a scrape; any thread may collect."""

    def __init__(self, engine: Engine, *, timeout_s: float = SCRAPE_TIMEOUT_S) -> None:
        self._engine = engine
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._pending: Future[pb.GetStatsResponse] | None = None

    def collect(self) -> Iterator[Metric]:
        """Every metric.

        Raises:
            ScrapeFailed: instead of waiting longer than the timeout.
        """
        try:
            stats = self._question().result(self._timeout_s)
        except TimeoutError:
            raise ScrapeFailed(f"no answer within {self._timeout_s:g} s") from None
        return metrics_of(stats)

    def _question(self) -> Future[pb.GetStatsResponse]:
        """One for all who scrape at once, and one for all who scrape while the loop hangs."""
        with self._lock:
            if self._pending is None or self._pending.done():
                answer: Future[pb.GetStatsResponse] = Future()
                if not self._engine.post(Ask(question=_stats, answer=answer)):
                    raise ScrapeFailed("too many commands wait for the scheduler")
                self._pending = answer
            return self._pending


def _stats(engine: EngineLoop) -> pb.GetStatsResponse:
    return answers.stats(engine)


def metrics_of(stats: pb.GetStatsResponse) -> Iterator[Metric]:
    """The books as metrics."""
    for name, value in sorted(stats.counters.items()):
        full_name = f"requests_{name}" if name in _REQUEST_COUNTERS else name
        yield CounterMetricFamily(f"radixd_{full_name}", _words(full_name), value=value)
    yield _labelled("slots", "owner", ((owner, getattr(stats, owner)) for owner in _OWNERS))
    yield _gauge("pool_slots", "Slots of the pool, whoever owns them", stats.num_slots)
    yield _gauge("tree_nodes", "Nodes of the prefix tree", stats.num_tree_nodes)
    yield _gauge("sessions", "Sessions that are known", stats.num_sessions)
    yield _gauge("session_tokens", "Tokens of their tails that are cached", stats.session_tokens)
    yield _gauge("worker_connected", "1 while a worker is attached", stats.worker_connected)
    yield _gauge("requests_running", "Requests that hold slots", stats.num_running)
    reasons = ((name.lower(), count) for name, count in stats.waiting_by_reason.items())
    yield _labelled("requests_waiting", "reason", sorted(reasons))
    yield from _economy(stats.economy)
    for name, histogram in sorted(stats.histograms.items()):
        yield _histogram(name, histogram)
    yield from _tenants(sorted(stats.tenants.items()))
    yield from _steps(stats.step_profile)


def _economy(economy: admin_pb2.Economy) -> Iterator[Metric]:
    for name, text in _ECONOMY.items():
        yield _gauge(name, text, getattr(economy, name))


def _tenants(tenants: Iterable[tuple[str, admin_pb2.TenantBooks]]) -> Iterator[Metric]:
    """At most as many label values as the core keeps tenants apart."""
    listed = list(tenants)
    for name in admin_pb2.TenantBooks.DESCRIPTOR.fields_by_name:
        kind = GaugeMetricFamily if name in _TENANT_GAUGES else CounterMetricFamily
        text = f"{_words(name)} of the tenant"
        family = kind(f"radixd_tenant_{name}", text, labels=["tenant"])
        for tenant, books in listed:
            family.add_metric([tenant], getattr(books, name))
        yield family


def _steps(profile: admin_pb2.StepProfile) -> Iterator[Metric]:
    """By kind of step: steps that decode alone, and steps with tokens of prompts."""
    kinds = {"decode": profile.decode, "prompt": profile.prompt}
    for field, (name, text) in _STEP_COUNTERS.items():
        family = CounterMetricFamily(f"radixd_{name}", text, labels=["kind"])
        for kind, sums in kinds.items():
            family.add_metric([kind], getattr(sums, field))
        yield family
    text = "Time the worker had a plan, by kind of step"
    busy = CounterMetricFamily("radixd_step_busy_seconds", text, labels=["kind"])
    text = "Time of steps by kind and phase"
    phases = CounterMetricFamily("radixd_step_phase_seconds", text, labels=["kind", "phase"])
    for kind, sums in kinds.items():
        busy.add_metric([kind], sums.busy_ns / _NS_PER_S)
        for phase in _PHASES:
            phases.add_metric([kind, phase], getattr(sums, f"{phase}_ns") / _NS_PER_S)
    yield busy
    yield phases


def _histogram(name: str, histogram: admin_pb2.Histogram) -> Metric:
    """In seconds, with the running sums that Prometheus wants of its buckets."""
    bounds = [str(bound / _MS_PER_S) for bound in histogram.bounds]
    buckets = list(zip([*bounds, "+Inf"], accumulate(histogram.counts), strict=True))
    base = name.removesuffix("_ms")
    family = HistogramMetricFamily(f"radixd_{base}_seconds", _words(base))
    family.add_metric([], buckets, sum_value=histogram.sum / _MS_PER_S)
    return family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"radixd_{name}", text, value=value)


def _labelled(name: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    family = GaugeMetricFamily(f"radixd_{name}", f"{_words(name)} by {label}", labels=[label])
    for value, count in values:
        family.add_metric([value], count)
    return family


def _words(name: str) -> str:
    return name.replace("_", " ").capitalize()
