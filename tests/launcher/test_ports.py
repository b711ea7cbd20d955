"""Which ports a server takes, settled before anything starts."""

import socket

import pytest

from protos.errors import InvalidRequest
from radixd.chassis.settings import Settings
from radixd.launcher.ports import free_ports, settle_ports
from radixd.launcher.supervisor import Supervisor


def settled(**options) -> Settings:
    return settle_ports(Settings(**options))


def test_a_server_on_any_port_takes_any_port_for_http():
    found = settled(port=0)
    assert len({found.port, found.scheduler_port, found.http_port}) == 3
    assert found.http_port not in (0, 3000)
    assert settled(port=0, http_port=-1).http_port == -1


def test_the_default_port_of_http_gives_way_and_one_that_was_asked_for_does_not():
    (port, taken) = free_ports("127.0.0.1", 2)
    with (
        socket.create_server(("127.0.0.1", taken)),
        pytest.raises(InvalidRequest, match=rf"http_port: .*{taken} is already in use"),
    ):
        settled(port=port, http_port=taken)
    assert settled(port=port, http_port=taken).http_port == taken
    with pytest.raises(InvalidRequest, match=r"http_port: .* like port"):
        settled(port=port, http_port=port)


def test_the_host_of_http_is_that_of_the_server_unless_it_has_its_own():
    def url(**options) -> str | None:
        return Supervisor(Settings(**options), echo=lambda line: None).http_url

    assert url() == "http://127.0.0.1:3000"
    assert url(host="0.0.0.0", http_port=8000) == "http://127.0.0.1:8000"
    assert url(host="0.0.0.0", http_host="localhost") == "http://localhost:3000"
    assert url(http_host="::") == "http://[::1]:3000"
    assert url(http_port=-1) is None
