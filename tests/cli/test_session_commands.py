"""`sessions`: what it asks, shows and prints as JSON."""

import json

from protos.radixd.v1 import admin_pb2
from tests.cli.conftest import Run
from tests.cli.fake_server import FakeServer


def test_sessions(server: FakeServer, run: Run) -> None:
    assert "there are no sessions" in run("sessions", "--target", server.target).out
    server.admin.sessions.sessions.add(
        session="agent [b]7",
        cache_domain="own",
        num_tokens=640,
        kept_tokens=512,
        expires_in_ms=90_000,
        num_turns=12,
        hits=11,
    )
    server.admin.sessions.num_left_out = 3
    ran = run("sessions", "--target", server.target)
    (line,) = (line for line in ran.out.splitlines() if "agent" in line)
    for text in ("agent [b]7", "own", "640", "512", "12", "11", "1m30s"):
        assert text in line, text
    assert ("tenant" in ran.out, "cache domain" in ran.out) == (False, True)
    assert "and 3 more" in ran.out
    value = json.loads(run("sessions", "--json", "--tenant", "a", "--target", server.target).out)
    assert value["sessions"][0]["session"] == "agent [b]7"
    asked = [request.HasField("tenant") for request in server.admin.asked]
    assert asked == [False, False, True]


def test_a_session_is_closed(server: FakeServer, run: Run) -> None:
    server.admin.sessions.sessions.add(session="s")
    argv = ("sessions", "--close", "s", "--cache-domain", "own", "--tenant", "a")
    ran = run(*argv, "--target", server.target)
    assert (ran.code, "s is closed" in ran.out) == (0, True), ran.err
    wanted = admin_pb2.CloseSessionRequest(session="s", cache_domain="own", tenant="a")
    assert server.admin.asked == [wanted]
    ran = run("sessions", "--close", "other", "--target", server.target)
    assert (ran.code, "other names no session" in ran.out) == (1, True)
    assert server.admin.asked[-1] == admin_pb2.CloseSessionRequest(session="other")
    ran = run("sessions", "--close", "other", "--json", "--target", server.target)
    assert (ran.code, json.loads(ran.out)) == (1, {"found": False})


def test_a_domain_without_a_session_to_close(server: FakeServer, run: Run) -> None:
    ran = run("sessions", "--cache-domain", "own", "--target", server.target)
    assert (ran.code, "--cache-domain" in ran.err) == (1, True)
    assert not server.admin.asked
