"""HTTP for Prometheus: formats, failures, clients that misbehave, and its end."""

import gzip
import http.client
import socket
import threading
import time

import pytest
import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily

from protos.errors import InvalidRequest
from scheduler_svc import metrics_server
from scheduler_svc.metrics import ScrapeFailed
from scheduler_svc.metrics_server import CLIENT_TIMEOUT_S, MAX_SCRAPES, MetricsServer


class Source:
    """One gauge, or the error it is told to raise; waits while `gate` is closed."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.num_waiting = 0

    def collect(self):
        self.num_waiting += 1
        assert self.gate.wait(20)
        if self.error is not None:
            raise self.error
        return [GaugeMetricFamily("radixd_x", "X", value=5)]


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def registry(source) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(source)
    return registry


@pytest.fixture
def server(registry):
    server = MetricsServer(registry, "127.0.0.1", 0)
    server.start()
    yield server
    server.stop()


def get(server: MetricsServer, **headers: str) -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.request("GET", "/metrics", headers=headers)
        response = connection.getresponse()
        return response.status, response.getheader("Content-Type", ""), response.read()
    finally:
        connection.close()


def soon(condition) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def test_both_formats_are_served(server):
    status, kind, body = get(server)
    assert (status, body) == (200, b"# HELP radixd_x X\n# TYPE radixd_x gauge\nradixd_x 5.0\n")
    assert kind.startswith("text/plain")
    status, kind, body = get(server, Accept="application/openmetrics-text; version=1.0.0")
    assert status == 200
    assert kind.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
    status, _, body = get(server, **{"Accept-Encoding": "gzip"})
    assert b"radixd_x 5.0" in gzip.decompress(body)


def test_a_failed_scrape_is_unavailable_and_the_next_one_works(server, source):
    source.error = ScrapeFailed("no answer within 2 s")
    with structlog.testing.capture_logs() as logs:
        status, _, body = get(server)
    assert (status, body) == (503, b"no answer within 2 s\n")
    assert [entry["event"] for entry in logs] == ["scrape_failed"]
    source.error = None
    assert get(server)[0] == 200


def test_a_defect_is_logged_and_not_shown(server, source, capfd):
    source.error = KeyError("secret")
    with structlog.testing.capture_logs() as logs:
        status, _, body = get(server)
    assert status == 500
    assert b"secret" not in body
    assert [entry["event"] for entry in logs] == ["scrape_defect"]
    assert capfd.readouterr().err == ""


def test_a_silent_client_holds_up_nobody(server):
    with socket.create_connection(("127.0.0.1", server.port)) as silent:
        silent.send(b"GET /met")
        assert get(server)[0] == 200


def test_a_silent_client_is_cut(server, monkeypatch):
    assert metrics_server._Handler.timeout == CLIENT_TIMEOUT_S
    monkeypatch.setattr(metrics_server._Handler, "timeout", 0.1)
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as silent:
        silent.send(b"GET /met")
        assert silent.recv(100) == b""


def test_scrapes_at_once_are_bounded(server, source):
    source.gate.clear()
    statuses = []
    threads = [
        threading.Thread(target=lambda: statuses.append(get(server)[0])) for _ in range(MAX_SCRAPES)
    ]
    for thread in threads:
        thread.start()
    soon(lambda: source.num_waiting == MAX_SCRAPES)
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        get(server)
    source.gate.set()
    for thread in threads:
        thread.join()
    assert statuses == [200] * MAX_SCRAPES
    soon(lambda: server._server._places._value == MAX_SCRAPES)
    assert get(server)[0] == 200


def test_a_taken_port_is_named(registry, server):
    with pytest.raises(InvalidRequest, match="is already in use") as caught:
        MetricsServer(registry, "127.0.0.1", server.port)
    assert caught.value.field == "metrics_port"


def test_stopping_gives_the_port_free_and_ends_the_thread(registry):
    server = MetricsServer(registry, "127.0.0.1", 0)
    server.start()
    assert get(server)[0] == 200
    server.stop()
    assert "metrics_server" not in {thread.name for thread in threading.enumerate()}
    again = MetricsServer(registry, "127.0.0.1", server.port)
    assert again.port == server.port
    again.stop()  # before it was started
    MetricsServer(registry, "127.0.0.1", server.port).stop()
