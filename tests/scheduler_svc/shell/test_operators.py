"""Operators' calls over gRPC, before there is a core and with one; the core is scripted."""

import grpc
import pytest
import structlog

from protos.radixd.scheduler.v1 import scheduler_pb2 as pb
from protos.radixd.scheduler.v1 import scheduler_pb2_grpc
from protos.radixd.v1 import admin_pb2, policy_pb2
from radixd.chassis.grpc_server import create_server, listen
from scheduler_svc.core.config import CHANGEABLE, POLICY_NAMES, SchedulerConfig
from scheduler_svc.core.views import WaitingReason
from scheduler_svc.engine_loop import EngineLoop, Submit
from scheduler_svc.lobby import Lobby
from scheduler_svc.service import SchedulerService
from scheduler_svc.view_translation import pin_to_proto, request_to_proto
from scheduler_svc.worker_link import Attached, Lost
from tests.scheduler_svc.shell.scripted import (
    Clock,
    FakeCore,
    FakeLink,
    a_hello,
    a_submission,
)
from tests.scheduler_svc.shell.views import a_pin, a_request


class TurningEngine:
    """A loop that turns once for each command it is given, in the caller's thread."""

    def __init__(self) -> None:
        self.link = FakeLink()
        self.clock = Clock()
        self.crashes = []
        self.loop = EngineLoop(
            self.link,
            FakeCore,
            config=SchedulerConfig(),
            lobby=Lobby(max_waiting=9),
            now_ns=self.clock,
            wake=lambda: None,
            deliver=lambda delivery: None,
            on_crash=self.crashes.append,
        )

    def post(self, command) -> bool:
        taken = self.loop.post(command)
        self.loop.turn()
        return taken

    def leave(self, front_id: int) -> None:
        self.loop.leave(front_id)

    def hear(self, event) -> None:
        self.link.script.append([event])
        self.loop.turn()


@pytest.fixture
def engine() -> TurningEngine:
    return TurningEngine()


@pytest.fixture
def with_core(engine) -> TurningEngine:
    engine.hear(Attached(hello=a_hello()))
    return engine


@pytest.fixture
async def stub(engine):
    service = SchedulerService(engine, epoch=1, started_ns=0, on_worker=lambda hello: None)
    server = create_server()
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(service, server)
    port = listen(server, "127.0.0.1", 0)
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield scheduler_pb2_grpc.SchedulerServiceStub(channel)
    await server.stop(None)


async def refused(call) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details()


def wait_in_lobby(engine: TurningEngine) -> None:
    for request_id, tenant in (("a", "acme"), ("b", "")):
        submission = a_submission(request_id, tenant=tenant)
        engine.post(Submit(front_id=1, submission=submission))


# --- pins -------------------------------------------------------------------------------------


async def test_pins_are_listed_by_tenant_or_all(with_core, stub):
    everything = await stub.ListPins(pb.ListPinsRequest())
    assert list(everything.pins) == [
        pin_to_proto(a_pin("p1")),
        pin_to_proto(a_pin("p2", tenant="acme")),
    ]
    theirs = await stub.ListPins(pb.ListPinsRequest(tenant="acme"))
    assert [pin.pin_id for pin in theirs.pins] == ["p2"]
    nobodys = await stub.ListPins(pb.ListPinsRequest(tenant=""))
    assert [pin.pin_id for pin in nobodys.pins] == ["p1"]


async def test_unpin_tells_what_was_removed_and_what_is_unknown(with_core, stub):
    request = pb.UnpinRequest(pin_ids=["p2", "x", "p1"], tenant="acme")
    with structlog.testing.capture_logs() as logs:
        answer = await stub.Unpin(request)
    assert answer == admin_pb2.UnpinResponse(removed=["p2"], unknown=["x", "p1"])
    assert [(entry["event"], entry["num_pins"]) for entry in logs] == [("pins_removed", 1)]
    answer = await stub.Unpin(pb.UnpinRequest(all=True))
    assert answer == admin_pb2.UnpinResponse(removed=["p1"])


async def test_all_pins_and_some_pins_contradict(with_core, stub):
    code, text = await refused(stub.Unpin(pb.UnpinRequest(all=True, pin_ids=["p1"])))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text.startswith("pin_ids: ")
    assert len((await stub.ListPins(pb.ListPinsRequest())).pins) == 2


async def test_before_the_first_worker_there_are_no_pins(stub):
    assert not (await stub.ListPins(pb.ListPinsRequest())).pins
    answer = await stub.Unpin(pb.UnpinRequest(pin_ids=["p1"]))
    assert answer == admin_pb2.UnpinResponse(unknown=["p1"])


# --- requests ---------------------------------------------------------------------------------


async def test_requests_are_listed_by_tenant_and_cut_short(with_core, stub):
    answer = await stub.ListRequests(admin_pb2.ListRequestsRequest())
    assert list(answer.requests) == [
        request_to_proto(a_request("r1")),
        request_to_proto(a_request("r2", tenant="acme")),
    ]
    answer = await stub.ListRequests(admin_pb2.ListRequestsRequest(max_requests=1))
    assert (len(answer.requests), answer.num_left_out) == (1, 1)
    answer = await stub.ListRequests(admin_pb2.ListRequestsRequest(tenant="acme"))
    assert [view.request_id for view in answer.requests] == ["r2"]


@pytest.mark.parametrize("most", [0, 100_001])
async def test_a_list_has_bounds(with_core, stub, most):
    request = admin_pb2.ListRequestsRequest(max_requests=most)
    code, text = await refused(stub.ListRequests(request))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text.startswith("max_requests: ")


async def test_before_the_first_worker_the_lobby_is_listed(engine, stub):
    wait_in_lobby(engine)
    engine.clock.pass_s(2)
    answer = await stub.ListRequests(admin_pb2.ListRequestsRequest())
    assert [view.request_id for view in answer.requests] == ["a", "b"]
    assert {view.waiting_reason for view in answer.requests} == {admin_pb2.WAITING_REASON_NO_WORKER}
    assert [view.age_ms for view in answer.requests] == [2000, 2000]
    answer = await stub.ListRequests(admin_pb2.ListRequestsRequest(tenant="acme"))
    assert [view.request_id for view in answer.requests] == ["a"]


async def test_a_request_is_explained(with_core, stub):
    answer = await stub.Explain(pb.ExplainRequest(request_id="r2", tenant="acme"))
    assert answer.request == request_to_proto(a_request("r2", tenant="acme"))
    assert (answer.rank, answer.history[0].ago_ms) == (32, 37)


async def test_before_the_first_worker_a_request_is_explained(engine, stub):
    wait_in_lobby(engine)
    engine.clock.pass_s(3)
    answer = await stub.Explain(pb.ExplainRequest(request_id="b"))
    assert (answer.rank, answer.num_waiting) == (2, 2)
    assert [(event.event, event.ago_ms) for event in answer.history] == [("submitted", 3000)]


@pytest.mark.parametrize("has_core", [False, True])
async def test_unknown_requests_and_those_of_others_are_not_found(engine, stub, has_core):
    wait_in_lobby(engine)
    if has_core:
        engine.hear(Attached(hello=a_hello()))
    for request in (
        pb.ExplainRequest(request_id="x"),
        pb.ExplainRequest(request_id="b", tenant="acme"),
        pb.ExplainRequest(request_id="r1", tenant="acme"),
    ):
        code, text = await refused(stub.Explain(request))
        assert code is grpc.StatusCode.NOT_FOUND
        assert repr(request.request_id) in text


# --- policies ---------------------------------------------------------------------------------


def set_policy(**policies) -> admin_pb2.SetPolicyRequest:
    return admin_pb2.SetPolicyRequest(policies=policy_pb2.Policies(**policies))


@pytest.mark.parametrize("has_core", [False, True])
async def test_policies_are_told_and_explained(engine, stub, has_core):
    if has_core:
        engine.hear(Attached(hello=a_hello()))
    answer = await stub.GetPolicy(admin_pb2.GetPolicyRequest())
    assert answer.policies.waiting_order == "adaptive"
    assert {field.name for field, _ in answer.policies.ListFields()} == set(CHANGEABLE)
    assert [family.name for family in answer.families] == list(POLICY_NAMES)


async def test_a_policy_holds_before_with_and_after_a_worker(engine, stub):
    answer = await stub.SetPolicy(set_policy(waiting_order="lpm", chunk_sizes={"chat": 0}))
    assert answer.policies.waiting_order == "lpm"
    engine.hear(Attached(hello=a_hello()))
    assert engine.loop.core.config.waiting_order == "lpm"
    await stub.SetPolicy(set_policy(weight_cost=0.0))
    engine.hear(Lost(reason="gone"))
    await stub.SetPolicy(set_policy(most_passes=9))
    engine.hear(Attached(hello=a_hello(instance_id=8)))
    policies = (await stub.GetPolicy(admin_pb2.GetPolicyRequest())).policies
    assert (policies.waiting_order, policies.weight_cost, policies.most_passes) == ("lpm", 0.0, 9)
    assert dict(policies.chunk_sizes) == {"code": 1024, "longform": 2048}
    assert engine.loop.core.config.most_passes == 9


@pytest.mark.parametrize("has_core", [False, True])
@pytest.mark.parametrize(
    ("policies", "field"),
    [
        ({"most_passes": 5, "high_watermark": 2.0}, "policies.high_watermark"),
        ({"most_passes": 5, "retraction_policy": "fate"}, "policies.retraction_policy"),
        ({"most_passes": 5, "low_watermark": 0.99}, "policies.low_watermark"),
        ({"most_passes": 5, "chunk_sizes": {"": 1}}, "policies.chunk_sizes"),
    ],
)
async def test_a_policy_that_cannot_be_is_named_and_changes_nothing(
    engine, stub, has_core, policies, field
):
    if has_core:
        engine.hear(Attached(hello=a_hello()))
    with structlog.testing.capture_logs() as logs:
        code, text = await refused(stub.SetPolicy(set_policy(**policies)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text.startswith(f"{field}: ")
    assert (await stub.GetPolicy(admin_pb2.GetPolicyRequest())).policies.most_passes == 64
    assert logs == []
    assert engine.crashes == []


async def test_a_change_is_logged_with_old_and_new_values(with_core, stub):
    with structlog.testing.capture_logs() as logs:
        await stub.SetPolicy(set_policy(most_passes=5, waiting_order="adaptive"))
        await stub.SetPolicy(set_policy(most_passes=5))
        await stub.SetPolicy(admin_pb2.SetPolicyRequest())
    assert logs == [
        {
            "event": "policy_changed",
            "log_level": "info",
            "old": {"most_passes": 64},
            "new": {"most_passes": 5},
        }
    ]


# --- books ------------------------------------------------------------------------------------


async def test_books_hold_economy_histograms_tenants_and_reasons(with_core, stub):
    stats = await stub.GetStats(pb.GetStatsRequest())
    assert stats.economy.freed_slots == 47
    assert list(stats.histograms["block_lifetime_ms"].counts) == [5, 6, 7]
    assert stats.tenants["acme"].recomputed_tokens == 59
    assert stats.waiting_by_reason["TWIN"] == 1
    assert set(stats.waiting_by_reason) == {reason.name for reason in WaitingReason}
    assert (stats.num_slots, stats.in_flight, stats.num_tree_nodes) == (60, 14, 5)
    assert (stats.counters["cached_tokens"], stats.page_size) == (40, 1)


async def test_before_the_first_worker_books_count_the_lobby(engine, stub):
    wait_in_lobby(engine)
    stats = await stub.GetStats(pb.GetStatsRequest())
    assert (stats.num_waiting, stats.num_slots, stats.worker_connected) == (2, 0, False)
    waiting = {name: count for name, count in stats.waiting_by_reason.items() if count}
    assert waiting == {"NO_WORKER": 2}
    assert len(stats.waiting_by_reason) == len(WaitingReason)
