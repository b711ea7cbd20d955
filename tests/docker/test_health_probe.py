"""The health check of the images, against a server that serves and one that does not."""

import pytest
from grpc_health.v1 import health_pb2

from radixd.chassis.health_probe import main
from tests.cli.fake_server import FakeServer


def test_serving_or_not(capsys: pytest.CaptureFixture[str]) -> None:
    # field case 125
    with FakeServer() as server:
        server.health.set("a.Service", health_pb2.HealthCheckResponse.NOT_SERVING)
        assert main([server.target]) == 0
        assert main([server.target, "a.Service"]) == 1
        assert main([server.target, "no.Service"]) == 1
    assert main([server.target]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{server.target}: SERVING"
    assert lines[1] == f"{server.target} a.Service: NOT_SERVING"


def test_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main(["a", "b", "c"]) == 2
    assert capsys.readouterr().err.startswith("usage: ")
