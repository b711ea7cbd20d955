"""The front's own numbers for Prometheus; the scheduler's are on a port of its own.

All begin with radixd_front_, so that whoever scrapes both counts nothing twice.
"""

from collections.abc import Awaitable, Callable, Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    Metric,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from protos.errors import RadixdError
from protos.radixd.v1 import admin_pb2

_KIND = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 640)


class HttpMetrics:
    """Counts requests, and shows them beside the sums of the books."""

    def __init__(
        self,
        *,
        books: Callable[[], Awaitable[admin_pb2.GetStatsResponse]],
        num_live: Callable[[], int],
        is_serving: Callable[[], bool],
    ) -> None:
        """`books` raises RadixdError while the scheduler is away."""
        self._books = books
        self._num_live = num_live
        self._is_serving = is_serving
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "radixd_front_http_requests",
            "HTTP requests by path and status",
            ["path", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "radixd_front_http_request_seconds",
            "Time of HTTP requests from their headers to the end of the reply",
            ["path"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self.num_gone = Counter(
            "radixd_front_http_clients_gone",
            "Requests whose client left, or was cut, before the end of the reply",
            registry=self._registry,
        )

    def note(self, path: str, status: int, seconds: float) -> None:
        """A request is over; status 0: nobody was left to answer."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    async def show(self, request: Request) -> ASGIApp:
        """GET /metrics."""
        now = CollectorRegistry()
        now.register(_Given(list(await self._gauges())))
        text = generate_latest(self._registry) + generate_latest(now)
        return Response(text, headers={"content-type": _KIND})

    async def _gauges(self) -> Iterator[Metric]:
        gauges: dict[str, tuple[str, float]] = {
            "requests_live": ("Requests in the front, each choice one", self._num_live()),
            "serving": ("1 while requests are served at once", int(self._is_serving())),
        }
        try:
            books = await self._books()
        except RadixdError:
            pass  # the front's own numbers are worth having without them
        else:
            slots = books.slots
            used = slots.total - slots.free - slots.evictable
            gauges["requests_running"] = ("Requests that hold slots", books.requests.running)
            gauges["requests_waiting"] = ("Requests that wait", books.requests.waiting)
            share = used / slots.total if slots.total else 0.0
            gauges["pool_used_share"] = ("Share of slots that requests or pins hold", share)
        return (
            GaugeMetricFamily(f"radixd_front_{name}", text, value=value)
            for name, (text, value) in gauges.items()
        )


class _Given(Collector):
    """Metrics that are known already."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics
