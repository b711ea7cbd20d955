"""What operators and Prometheus see of a whole scheduler, over sockets, with its real core."""

import asyncio
import http.client
import socket
import threading
from concurrent.futures import Future

import grpc
import pytest

from protos.errors import InvalidRequest
from protos.radixd.scheduler.v1 import scheduler_pb2 as pb
from protos.radixd.v1 import admin_pb2, policy_pb2
from scheduler_svc.engine_loop import Ask
from scheduler_svc.server import SchedulerServer
from tests.scheduler_svc.shell.running import FrontClient, idle_stats, settings_for


def scrape(port: int) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


async def metrics(server: SchedulerServer) -> dict[str, float]:
    """By name, with its labels as the text has them."""
    status, text = await asyncio.to_thread(scrape, server.metrics_port)
    assert status == 200
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    values = {name: float(value) for name, _, value in lines}
    assert len(values) == len(lines), "a metric is told twice"
    return values


async def test_metrics_count_warm_and_cold_exactly(server, channel, workers):  # field case 142
    assert (await metrics(server))["radixd_worker_connected"] == 0
    workers(1)
    front = FrontClient(channel)
    warm = list(range(1, 11))
    for number in range(9):
        await front.submit(f"warm{number}", warm)
        await front.read_endings(f"warm{number}")
    await front.submit("cold", list(range(101, 111)))
    await front.read_endings("cold")
    await idle_stats(front)
    values = await metrics(server)
    cached = sum(output.cached_tokens for output in front.endings.values())
    assert cached == 8 * 9
    assert values["radixd_cached_tokens_total"] == cached
    assert values["radixd_prompt_tokens_total"] == 100
    assert values["radixd_reuse_rate"] == pytest.approx(cached / 100)
    assert values["radixd_requests_finished_total"] == 10
    assert values["radixd_worker_connected"] == 1
    owners = [value for name, value in values.items() if name.startswith("radixd_slots{")]
    assert sum(owners) == values["radixd_pool_slots"] == 4096
    assert values["process_resident_memory_bytes"] > 1 << 20


async def test_gauges_fall_when_everybody_has_left(server, channel, workers):  # field case 146
    workers(1, step_delay_s=0.005)
    front = FrontClient(channel)
    names = [f"r{number}" for number in range(50)]
    for number, name in enumerate(names):
        await front.submit(name, [number + 1, 2], max_tokens=500)
    await front.read_until(lambda: "r0" in front.tokens)
    assert (await metrics(server))["radixd_requests_running"] > 0
    for name in names:
        await front.cancel(name)
    await front.read_endings(*names)
    await idle_stats(front)
    values = await metrics(server)
    assert values["radixd_requests_running"] == 0
    assert values["radixd_requests_cancelled_total"] == 50
    waiting = {name: value for name, value in values.items() if "requests_waiting" in name}
    assert len(waiting) == 9
    assert not any(waiting.values())
    for owner in ("private", "locked", "in_flight"):
        assert values[f'radixd_slots{{owner="{owner}"}}'] == 0


@pytest.mark.parametrize("settings", [{"metrics_port": -1}], indirect=True)
async def test_metrics_may_be_turned_off(server, channel):
    assert server.metrics_port == -1
    assert "metrics_server" not in {thread.name for thread in threading.enumerate()}


async def test_a_taken_metrics_port_is_named_and_gives_all_free(tmp_path):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(InvalidRequest, match="is already in use") as caught:
            await SchedulerServer(settings_for(tmp_path, metrics_port=port)).start()
        assert caught.value.field == "metrics_port"
    server = SchedulerServer(settings_for(tmp_path, metrics_port=port))
    await server.start()
    assert server.metrics_port == port
    await server.stop()
    assert "metrics_server" not in {thread.name for thread in threading.enumerate()}


async def test_a_hung_loop_costs_a_scrape_and_not_a_thread(server, channel, monkeypatch):
    hangs, goes_on = threading.Event(), threading.Event()

    def hang(engine):
        hangs.set()
        assert goes_on.wait(20)

    monkeypatch.setattr(server._metrics_source, "_timeout_s", 0.05)
    server._engine.post(Ask(question=hang, answer=Future()))
    await asyncio.to_thread(hangs.wait, 20)
    statuses = [(await asyncio.to_thread(scrape, server.metrics_port))[0] for _ in range(5)]
    assert statuses == [503] * 5
    goes_on.set()
    async with asyncio.timeout(10):
        while (await asyncio.to_thread(scrape, server.metrics_port))[0] != 200:
            await asyncio.sleep(0.01)
    assert server.metrics_port > 0


async def test_operators_are_answered_by_the_real_core(server, channel, workers):
    front = FrontClient(channel)
    early = admin_pb2.SetPolicyRequest(policies=policy_pb2.Policies(waiting_order="fcfs"))
    await front.stub.SetPolicy(early)
    workers(1, step_delay_s=0.005)
    submit = {"client_request_id": "mine", "tenant": "acme", "workload": "code", "priority": 3}
    await front.submit("r", [1, 2, 3], max_tokens=400, **submit)
    await front.read_until(lambda: "r" in front.tokens)
    listed = await front.stub.ListRequests(admin_pb2.ListRequestsRequest(tenant="acme"))
    (view,) = listed.requests
    assert (view.request_id, view.tenant, view.workload, view.priority) == (
        "mine",
        "acme",
        "code",
        3,
    )
    explained = await front.stub.Explain(pb.ExplainRequest(request_id="mine"))
    assert explained.request.state == admin_pb2.REQUEST_STATE_DECODE
    assert explained.summary
    assert [event.event for event in explained.history][:2] == ["submitted", "admitted"]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await front.stub.Explain(pb.ExplainRequest(request_id="mine", tenant="other"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    await front.cancel("r")
    await front.read_endings("r")
    explained = await front.stub.Explain(pb.ExplainRequest(request_id="mine"))
    assert explained.ending == "CANCELLED"
    policies = (await front.stub.GetPolicy(admin_pb2.GetPolicyRequest())).policies
    assert policies.waiting_order == "fcfs"
    wrong = admin_pb2.SetPolicyRequest(policies=policy_pb2.Policies(low_watermark=0.99))
    with pytest.raises(grpc.aio.AioRpcError, match=r"policies\.low_watermark") as caught:
        await front.stub.SetPolicy(wrong)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_pin_is_made_listed_and_removed(server, channel, workers):
    workers(1)
    front = FrontClient(channel)
    pin = {"pin": admin_pb2.PIN_LEVEL_HARD, "pin_ttl_ms": 60_000, "tenant": "acme"}
    await front.submit("p", list(range(1, 11)), max_tokens=0, preheat=True, **pin)
    await front.read_endings("p")
    ending = front.endings["p"]
    assert (ending.ending, ending.pinned_tokens, ending.pin_error) == (pb.ENDING_PREHEATED, 10, "")
    (listed,) = (await front.stub.ListPins(pb.ListPinsRequest(tenant="acme"))).pins
    assert (listed.pin_id, listed.level) == (ending.pin_id, admin_pb2.PIN_LEVEL_HARD)
    assert listed.kept_tokens == 10
    assert 0 < listed.expires_in_ms <= 60_000
    assert not (await front.stub.ListPins(pb.ListPinsRequest(tenant="other"))).pins
    stats = await front.stub.GetStats(pb.GetStatsRequest())
    assert stats.economy.pinned_slots == 10
    answer = await front.stub.Unpin(pb.UnpinRequest(pin_ids=[ending.pin_id, "x"]))
    assert (list(answer.removed), list(answer.unknown)) == ([ending.pin_id], ["x"])
    assert not (await front.stub.ListPins(pb.ListPinsRequest())).pins


async def test_a_session_is_kept_listed_and_closed(server, channel, workers):
    front = FrontClient(channel)
    unknown = admin_pb2.CloseSessionRequest(session="s")
    assert not (await front.stub.CloseSession(unknown)).found, "before the first worker"
    assert not (await front.stub.ListSessions(admin_pb2.ListSessionsRequest())).sessions
    workers(1)
    for name, tenant in (("a", "acme"), ("b", "acme"), ("c", "other")):
        await front.submit(name, list(range(1, 11)), max_tokens=3, session=name, tenant=tenant)
        await front.read_endings(name)
    question = admin_pb2.ListSessionsRequest(tenant="acme", max_sessions=1)
    listed = await front.stub.ListSessions(question)
    (session,) = listed.sessions
    assert (session.session, session.tenant, session.num_turns) == ("a", "acme", 1)
    assert listed.num_left_out == 1
    assert 0 < session.expires_in_ms <= 600_000
    assert (await metrics(server))["radixd_sessions"] == 3
    for name, tenant, found in (("c", "acme", False), ("c", None, True), ("a", "acme", True)):
        closing = admin_pb2.CloseSessionRequest(session=name, tenant=tenant)
        assert (await front.stub.CloseSession(closing)).found is found
    left = await front.stub.ListSessions(admin_pb2.ListSessionsRequest())
    assert [session.session for session in left.sessions] == ["b"]
    assert (await front.stub.GetStats(pb.GetStatsRequest())).num_sessions == 1
    with pytest.raises(grpc.aio.AioRpcError, match="max_sessions") as caught:
        await front.stub.ListSessions(admin_pb2.ListSessionsRequest(max_sessions=0))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
